"""`quantdrift contrast`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantdrift.cli import Interrupted
from quantdrift.cli.contrast_table import json_of, print_contrast, row_of
from quantdrift.cli.measuring import MeasureOptions
from quantdrift.cli.places import RUNS, default_place, earlier_run, tell_replaced
from quantdrift.cli.tables import one_format
from quantdrift.datasets.labelled import (
    LAYOUT,
    ClassificationDataset,
    is_classification_folder,
    read_classification_folder,
)
from quantdrift.display import clean, print_json, say
from quantdrift.engine.refusals import check_pair
from quantdrift.errors import DataError, QuantDriftError
from quantdrift.records import check_writable
from quantdrift.spec import Spec, parse

if TYPE_CHECKING:
    from quantdrift.engine.neighbours import Places


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastOptions(MeasureOptions):
    """The options of `quantdrift contrast`, as typed by the user."""

    specs: Sequence[str]
    data: Sequence[Path]
    out: Path | None
    markdown: bool


def contrast_command(options: ContrastOptions) -> None:
    """Measure both readings, write the run folders, print the table and what it says.

    Raises:
        QuantDriftError: anything wrong with specs, data, model or disk.
    """
    one_format(json_output=options.json_output, markdown=options.markdown)
    specs = [parse(text) for text in options.specs]
    if not options.data:
        raise QuantDriftError("expected --data FOLDER with classification data; got none")
    datasets = [_dataset(path, options.split) for path in dict.fromkeys(options.data)]
    for spec in specs:
        for dataset in datasets:
            check_pair(spec, dataset)
    root = options.out or RUNS
    check_writable(root / "runs", what="the runs")
    from quantdrift.engine.neighbours import Places, run_contrast  # noqa: PLC0415 -- torch

    earlier: dict[Path, Mapping[str, Any] | None] = {}

    def place(spec: Spec, dataset: ClassificationDataset) -> Places:
        paths = [default_place(spec, dataset, ending, root=root) for ending in ("-probe", "-self")]
        earlier.update((path, earlier_run(path)) for path in paths)
        return Places(classification=paths[0], retrieval=paths[1])

    def announce(what: str) -> None:
        if not options.quiet:
            say(f"\n{clean(what)}", error=True)

    try:
        found = run_contrast(
            specs,
            datasets,
            place=place,
            settings=options.settings,
            store=options.store,
            progress=options.progress,
            announce=announce,
            device=options.device,
            revision=options.revision,
        )
    except KeyboardInterrupt:
        raise Interrupted("run folders that are there are whole" + options.kept) from None
    for record in earlier.values():
        tell_replaced(record)
    rows = [row_of(one) for one in found]
    if options.json_output:
        contrasts = [json_of(row) for row in rows]
        print_json({"contrasts": contrasts})
    else:
        print_contrast(rows, root, markdown=options.markdown)


def _dataset(path: Path, split: str) -> ClassificationDataset:
    if path.is_dir() and not is_classification_folder(path):
        raise DataError(f"{path} holds no classification data, which a contrast needs. Expected {LAYOUT}")
    return read_classification_folder(path, split)
