"""`quantdrift run`."""

from __future__ import annotations

from dataclasses import dataclass, field
from os.path import realpath
from pathlib import Path

from quantdrift.cli import Interrupted
from quantdrift.cli.measuring import MeasureOptions
from quantdrift.cli.places import default_place, earlier_run, tell_replaced
from quantdrift.cli.servers import ServerOptions
from quantdrift.cli.tables import print_run
from quantdrift.datasets.labelled import (
    ClassificationDataset,
    Dataset,
    is_classification_folder,
    read_classification_folder,
    read_search_folder,
)
from quantdrift.datasets.retrieval import RetrievalDataset, load_task
from quantdrift.display import print_json
from quantdrift.engine.refusals import check_pair
from quantdrift.errors import QuantDriftError, UnsupportedError
from quantdrift.finished.shortlist import FIRST, read_shortlist
from quantdrift.runs import Run, check_place
from quantdrift.spec import Spec, Versus, parse_pair


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(MeasureOptions):
    """The options of `quantdrift run`, as typed by the user."""

    spec: str
    data: Path | None
    task: str | None
    out: Path | None
    shortlist: Path | None = None
    top: int | None = None
    servers: ServerOptions = field(default_factory=ServerOptions)


def run_command(options: RunOptions) -> None:
    """Measure, write the run folder, print the table or the record.

    Raises:
        QuantDriftError: anything wrong with spec, data, model or disk.
    """
    run = measured(options)
    if options.json_output:
        print_json({**run.record, "path": str(run.path)})
    else:
        print_run(run)


def measured(options: RunOptions) -> Run:
    """Measure, and write the run folder.

    Raises:
        QuantDriftError: anything wrong with spec, data, model or disk.
    """
    spec = parse_pair(options.spec)
    if options.top is not None and options.shortlist is None:
        raise UnsupportedError("--top is the length of a shortlist; expected --shortlist RUN too")
    servers = options.servers.servers(spec, quiet=options.quiet)
    dataset: Dataset
    shortlist, ending = None, ""
    if options.shortlist is not None:
        dataset = dataset_of(options)
        _refuse_reranking(options, spec)
        shortlist = read_shortlist(options.shortlist, dataset, top=options.top or FIRST)
        ending = f"_top{shortlist.top}"
    else:
        dataset = classification_of(options) or dataset_of(options)
    check_pair(spec, dataset, reranks=shortlist is not None)
    out = options.out or default_place(spec, dataset, ending)
    check_place(out.absolute())
    from quantdrift.engine.run import run_pair  # noqa: PLC0415 -- torch, after all refusals

    earlier = earlier_run(out)
    try:
        run = run_pair(
            spec,
            dataset,
            out=out,
            settings=options.settings,
            store=options.store,
            progress=options.progress,
            device=options.device,
            revision=options.revision,
            shortlist=shortlist,
            servers=servers,
        )
    except KeyboardInterrupt:
        raise Interrupted("no run was written" + options.kept) from None
    tell_replaced(earlier)
    return run


def classification_of(options: RunOptions) -> ClassificationDataset | None:
    """The labelled inputs that the options name; None where they name something to search.

    Raises:
        DataError: it is classification data that cannot be read.
    """
    if options.data is None or options.task is not None:
        return None
    if not is_classification_folder(options.data):
        return None
    return read_classification_folder(options.data, options.split)


def _refuse_reranking(options: RunOptions, pair: Spec | Versus) -> None:
    """Refuse a shortlist for two models, and one that the run would take the place of."""
    if isinstance(pair, Versus):
        raise UnsupportedError(
            f'"{pair}" with --shortlist is not available; expected MODEL@SCHEME of one '
            "cross-encoder. Of two, rerank with each and compare the two TREC run files with "
            "quantdrift diff"
        )
    out, shortlist = options.out, options.shortlist
    if out is not None and shortlist is not None and realpath(out) == realpath(shortlist):
        raise UnsupportedError(f"{out} is the shortlist itself; choose another folder with --out")


def dataset_of(options: RunOptions) -> RetrievalDataset:
    """The folder in BEIR layout or the task that the options name.

    Raises:
        QuantDriftError: neither or both are given, or it cannot be read.
    """
    if (options.data is None) == (options.task is None):
        raise QuantDriftError(
            "expected either --data FOLDER or --task NAME (quantdrift list tasks); "
            + ("got both" if options.data else "got neither")
        )
    if options.data is not None:
        return read_search_folder(options.data, options.split)
    assert options.task is not None  # one of the two is given
    return load_task(options.task)
