"""`quantdrift contrast`: the same embeddings as classes and as a search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantdrift.base.display import clean, say
from quantdrift.base.errors import DataError
from quantdrift.cli.measuring import RUNS, default_place
from quantdrift.cli.options import SPEC, Measuring, argument, option, prints
from quantdrift.runs.words import data_line
from quantdrift.show.output import Shown
from quantdrift.show.tables import Grid
from quantdrift.spec.grammar import Spec, parse

if TYPE_CHECKING:
    from quantdrift.data.labelled import ClassificationDataset
    from quantdrift.runs.folder import Run
    from quantdrift.statistics.estimates import Estimate

_CHANGED, _SEPARATION, _TIED = "flip@1", "separation", "tied"


@dataclass(frozen=True, kw_only=True)
class ContrastOptions(Measuring):
    """The options of `quantdrift contrast`."""

    specs: list[str] = argument(SPEC)
    data: list[Path] = option(
        "FOLDER: Classification data: a folder with test.jsonl and train.jsonl, with images, or a .npz file; may "
        "be given several times.",
        default=...,
    )
    split: str = option("NAME: The part that is evaluated, and searched.", default="test")
    out: Path | None = option(
        "DIR: Folder for the run folders, two of each spec and data: SPEC_on_DATA-probe and -self; "
        "quantdrift-runs if not given."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """The runs of the classes and of the search, with what was measured of either, by metric string."""

    runs: tuple[Run, Run]
    figures: Sequence[Mapping[str, Estimate]]

    @property
    def names(self) -> tuple[str, str]:
        """The spec, and the data."""
        record = self.runs[0].record
        return record["spec"], record["data"]["name"]

    @property
    def ratio(self) -> float | None:
        """Change rate of the search over that of the classes; None where no class changed."""
        low, high = (side[_CHANGED].value for side in self.figures)
        return high / low if low and high is not None else None

    def to_json(self) -> dict[str, Any]:
        """The contrast as JSON values."""
        sides = zip(("classification", "retrieval"), self.runs, self.figures, strict=True)
        return {
            **dict(zip(("spec", "data"), self.names, strict=True)),
            "ratio": self.ratio,
            **{
                name: {"path": str(run.path), "metrics": {each: one.to_json() for each, one in estimates.items()}}
                for name, run, estimates in sides
            },
        }


@prints("json", "markdown")
def command(options: ContrastOptions) -> Shown:
    """Read the same embeddings both ways: as classes, and as a search among the inputs.

    Classes are read by a linear probe that is fitted on the full-precision embeddings of the train part and then
    frozen; a classifier is read by its own head. The search ranks, for every input of the evaluated part, all others
    by cosine. Model, data and quantization are the same, so what differs is the reading alone.

    Give several specs of one model (minilm@W8 minilm@W4 minilm@W3): they share its embeddings.
    """
    specs = [parse(text) for text in options.specs]
    from quantdrift.base.records import check_writable
    from quantdrift.metrics import measure

    datasets = [_dataset(path, options.split) for path in dict.fromkeys(options.data)]
    root = options.out or RUNS
    check_writable(root / "runs", what="the runs")

    def place(spec: Spec, dataset: ClassificationDataset) -> tuple[Path, Path]:
        return (default_place(spec, dataset, "-probe", root=root), default_place(spec, dataset, "-self", root=root))

    from quantdrift.engine.run import run_contrast

    with options.stoppable("run folders that are there are whole"):
        found = run_contrast(
            specs,
            datasets,
            place=place,
            **options.how,
            announce=lambda what: None if options.quiet else say(f"\n{clean(what)}", error=True),
        )
    metrics = (_CHANGED, _SEPARATION, _TIED)
    read = [_Read(runs=runs, figures=[measure(run.evidence(), metrics) for run in runs]) for runs in found]
    return Shown(
        data={"contrasts": [one.to_json() for one in read]},
        about=_about(read),
        grids=[_grid(read)],
        lines=list(_lines(read)),
        next=[f"\nrun folders: {root / '*-probe'} and {root / '*-self'}"],
    )


def _dataset(path: Path, split: str) -> ClassificationDataset:
    from quantdrift.data.labelled import LAYOUT, is_classification_folder, read_classification_folder

    if path.is_dir() and not is_classification_folder(path):
        raise DataError(f"{path} holds no classification data, which a contrast needs. Expected {LAYOUT}")
    return read_classification_folder(path, split)


def _grid(read: Sequence[_Read]) -> Grid:
    from quantdrift.metrics import parse_metric
    from quantdrift.metrics.numbers import cell

    rows = []
    for one in read:
        changed, lead = (
            [cell(parse_metric(name), side[name]) for side in one.figures] for name in (_CHANGED, _SEPARATION)
        )
        spec, data = one.names
        rows.append([data, spec, *changed, "-" if one.ratio is None else f"{one.ratio:.1f}", *lead])
    sides = [f"{what}, {how}" for what in ("changed", "separation") for how in ("classes", "search")]
    return Grid(head=["data", "spec", *sides[:2], "ratio", *sides[2:]], rows=rows, words={"spec"}, stacked=True)


def _about(read: Sequence[_Read]) -> list[str]:
    """What was read from which data, and what deserves a word, by data and model."""
    found: dict[str, str] = {}
    for one in read:
        record = one.runs[0].record
        tied = one.figures[1][_TIED].value
        ties = [f"{100 * tied:.1f} % of the inputs have two equally near neighbours"] if tied else []
        name = f"{record['model']['name']} on {one.names[1]}"
        found.setdefault(name, f"{name}: " + "; ".join([data_line(record), *record["data"]["warnings"], *ties]))
    return list(found.values())


def _lines(read: Sequence[_Read]) -> Iterator[str]:
    """How to read the table, and what it says."""
    yield (
        "changed: share of inputs with another top-1, class or nearest neighbour; separation: the median of how far "
        "the first leads, 1 or more being safe. In brackets 95 % intervals."
    )
    ratios = [one.ratio for one in read if one.ratio is not None]
    if not ratios:
        yield "No class changed, so there is no ratio."
    elif len(read) == 1:
        yield f"The search changed {ratios[0]:.1f} times as many answers as the classes did, on the same embeddings."
    else:
        more = sum(ratio > 1 for ratio in ratios)
        yield (
            f"The search changed more answers than the classes did in {more} of {len(ratios)} rows, "
            f"{min(ratios):.1f} to {max(ratios):.1f} times as many, on the same embeddings."
        )
