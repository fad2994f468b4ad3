"""`quantdrift run`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from quantdrift.cli import Interrupted
from quantdrift.cli.measuring import MeasureOptions
from quantdrift.cli.places import default_place, earlier_run, tell_replaced
from quantdrift.cli.servers import ServerOptions
from quantdrift.cli.tables import print_run
from quantdrift.datasets.beir_files import LAYOUT as BEIR_LAYOUT
from quantdrift.datasets.classification import (
    LAYOUT,
    ClassificationDataset,
    is_classification_folder,
    read_classification_folder,
)
from quantdrift.datasets.retrieval import RetrievalDataset, read_beir_folder
from quantdrift.datasets.shortlist import FIRST, read_shortlist
from quantdrift.datasets.tasks import load_task
from quantdrift.errors import DataError, QuantDriftError, UnsupportedError
from quantdrift.measurement.classification_job import run_classification
from quantdrift.measurement.job import run_spec
from quantdrift.measurement.rerank_job import run_reranking
from quantdrift.measurement.versus_job import run_versus
from quantdrift.runs import Run
from quantdrift.spec import Spec
from quantdrift.versus import Versus, parse_pair

__all__ = ["RunOptions", "classification_of", "dataset_of", "run_command"]


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
    spec = parse_pair(options.spec)
    if options.top is not None and options.shortlist is None:
        raise UnsupportedError("--top is the length of a shortlist; expected --shortlist RUN too")
    servers = options.servers.servers(spec, quiet=options.quiet)
    labelled = None if options.shortlist is not None else classification_of(options)
    measure: Callable[..., Run] = run_spec
    dataset: RetrievalDataset | ClassificationDataset
    ending = ""
    if labelled is not None:
        measure, spec, dataset = run_classification, _one_model(spec), labelled
    else:
        dataset = dataset_of(options)
        if options.shortlist is not None:
            _refuse_reranking(options, spec)
            shortlist = read_shortlist(options.shortlist, dataset, top=options.top or FIRST)
            measure, ending = partial(run_reranking, shortlist=shortlist), f"_top{shortlist.top}"
        elif isinstance(spec, Versus):
            measure = partial(run_versus, servers=servers)
    out = options.out or default_place(spec, dataset, ending)
    earlier = earlier_run(out)
    try:
        run = measure(
            spec,
            dataset,
            out=out,
            settings=options.settings,
            store=options.store,
            progress=options.progress,
            device=options.device,
            revision=options.revision,
        )
    except KeyboardInterrupt:
        raise Interrupted("no run was written" + options.kept) from None
    tell_replaced(earlier)
    if options.json_output:
        print(json.dumps({**run.record, "path": str(run.path)}, indent=2, ensure_ascii=False))
    else:
        print_run(run)


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
    if out is not None and shortlist is not None and out.resolve() == shortlist.resolve():
        raise UnsupportedError(f"{out} is the shortlist itself; choose another folder with --out")


def _one_model(pair: Spec | Versus) -> Spec:
    if isinstance(pair, Versus):
        raise UnsupportedError(
            f'"{pair}" on classification data is not available; expected MODEL@SCHEME there, or '
            "data in BEIR layout for two models"
        )
    return pair


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
        return _searched(options.data, options.split)
    assert options.task is not None  # one of the two is given
    return load_task(options.task)


def _searched(folder: Path, split: str) -> RetrievalDataset:
    """A folder in BEIR layout; of one that is neither, it is said what else would do."""
    if not folder.exists():
        raise DataError(f"{folder} does not exist; expected a folder, or one .npz file of images")
    if folder.is_file() and folder.suffix != ".npz":
        raise DataError(f"{folder} is a file; give its folder, {folder.parent}")
    try:
        return read_beir_folder(folder, split)
    except DataError as error:
        if is_classification_folder(folder):
            raise DataError(
                f"{folder} holds classification data, and this takes queries and documents; "
                "quantdrift run and quantdrift contrast take it. To search, it needs " + BEIR_LAYOUT
            ) from error
        names = (
            {entry.name.removesuffix(".gz") for entry in folder.iterdir()}
            if folder.is_dir()
            else set()
        )
        if names & {"corpus.jsonl", "queries.jsonl", "qrels"}:
            raise
        raise DataError(f"{error}. For classification: {LAYOUT}") from error
