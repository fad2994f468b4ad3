"""`quantdrift run`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quantdrift.cli import Interrupted
from quantdrift.cli.measuring import MeasureOptions
from quantdrift.cli.places import default_place, earlier_run, tell_replaced
from quantdrift.cli.tables import print_run
from quantdrift.datasets.beir_files import LAYOUT as BEIR_LAYOUT
from quantdrift.datasets.classification import (
    LAYOUT,
    ClassificationDataset,
    is_classification_folder,
    read_classification_folder,
)
from quantdrift.datasets.retrieval import RetrievalDataset, read_beir_folder
from quantdrift.datasets.tasks import load_task
from quantdrift.errors import DataError, QuantDriftError, UnsupportedError
from quantdrift.measurement.classification_job import run_classification
from quantdrift.measurement.job import run_spec
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


def run_command(options: RunOptions) -> None:
    """Measure, write the run folder, print the table or the record.

    Raises:
        QuantDriftError: anything wrong with spec, data, model or disk.
    """
    spec = parse_pair(options.spec)
    labelled = classification_of(options)
    dataset = dataset_of(options) if labelled is None else labelled
    measure: Callable[..., Run] = run_spec
    if labelled is not None:
        measure, spec = run_classification, _one_model(spec)
    elif isinstance(spec, Versus):
        measure = run_versus
    out = options.out or default_place(spec, dataset)
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
