"""The table of a contrast, and what it says; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.table import Table

from quantdrift.cli.findings import data_line
from quantdrift.cli.tables import cell, console, headed, print_markdown, show
from quantdrift.display import clean, prose, say
from quantdrift.metrics import measure, parse_metric
from quantdrift.runs import Run
from quantdrift.statistics import Estimate

CHANGED, SEPARATION, TIED = "flip@1", "separation", "tied"
_HEAD = (
    ("changed", "classes", CHANGED),
    ("changed", "search", CHANGED),
    ("ratio", "", None),
    ("separation", "classes", SEPARATION),
    ("separation", "search", SEPARATION),
)


class TwoRuns(Protocol):
    """One spec on one dataset, read both ways."""

    @property
    def spec(self) -> str:
        """Model and scheme."""
        ...

    @property
    def data(self) -> str:
        """Name of the data."""
        ...

    @property
    def classification(self) -> Run:
        """The run that ranks classes."""
        ...

    @property
    def retrieval(self) -> Run:
        """The run that ranks the other inputs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        contrast: the two runs.
        classification: estimates by metric string.
        retrieval: likewise.
    """

    contrast: TwoRuns
    classification: Mapping[str, Estimate]
    retrieval: Mapping[str, Estimate]

    @property
    def ratio(self) -> float | None:
        """Change rate of the search over that of the classes; None where no class changed."""
        low, high = (side[CHANGED].value for side in (self.classification, self.retrieval))
        return high / low if low and high is not None else None


def row_of(contrast: TwoRuns) -> Row:
    """The line of two runs."""
    return Row(
        contrast=contrast, classification=_measured(contrast.classification), retrieval=_measured(contrast.retrieval)
    )


def _measured(run: Run) -> dict[str, Estimate]:
    names = (CHANGED, SEPARATION, TIED)
    return measure(run.evidence(), [parse_metric(name) for name in names])


def _cells(row: Row, joint: str) -> list[str]:
    sides = {"classes": row.classification, "search": row.retrieval}
    return [
        ("-" if row.ratio is None else f"{row.ratio:.1f}")
        if name is None
        else cell(parse_metric(name), sides[how][name], joint)
        for _, how, name in _HEAD
    ]


def print_contrast(rows: Sequence[Row], root: Path, *, markdown: bool) -> None:
    """Print the table, and what it says.

    Args:
        rows: at least one.
        root: folder of the run folders.
        markdown: print Markdown.
    """
    if markdown:
        head = ("data", "spec", *(f"{what}, {how}".rstrip(", ") for what, how, _ in _HEAD))
        print_markdown(head, [(row.contrast.data, row.contrast.spec, *_cells(row, " ")) for row in rows])
        for line in _lines(rows):
            say(f"\n{prose(line)}")
        return
    out = console(wide=True)
    table = Table(show_lines=True)
    table.add_column("data, scheme", overflow="fold")
    for what, how, _ in _HEAD:
        table.add_column(f"{what}\n{how}", justify="right", no_wrap=True)
    for row in rows:
        name = f"{clean(row.contrast.data)}\n{clean(row.contrast.spec)}"
        table.add_row(name, *_cells(row, "\n"))
    out.print()
    for name, line in _about(rows).items():
        out.print(headed(name, f": {line}"))
    out.print(table)
    out.print(
        "changed: share of inputs with another top-1, class or nearest neighbour; separation: the "
        "median of how far the first leads, 1 or more being safe. In brackets 95 % intervals."
    )
    for line in _lines(rows):
        out.print(line)
    line = f"\nrun folders: {root / '*-probe'} and {root / '*-self'}"
    out.print(line, soft_wrap=True)


def _about(rows: Sequence[Row]) -> dict[str, str]:
    """What was read from which data, and what deserves a word, by data and model."""
    found: dict[str, str] = {}
    for row in rows:
        record = row.contrast.classification.record
        name = f"{record['model']['name']} on {row.contrast.data}"
        notes = "".join(f"; {note}" for note in record["data"]["warnings"])
        tied = row.retrieval[TIED].value
        ties = f"; {100 * tied:.1f} % of the inputs have two equally near neighbours" if tied else ""
        found.setdefault(name, f"{data_line(record)}{notes}{ties}")
    return found


def _lines(rows: Sequence[Row]) -> list[str]:
    """What the table says."""
    if len(rows) > 1:
        return _of_many(rows)
    row = rows[0]
    classes, search = row.classification, row.retrieval
    if any(side[CHANGED].value is None for side in (classes, search)):
        return []
    changed, moved = (show(parse_metric(CHANGED), side[CHANGED]) for side in (classes, search))
    times = "" if row.ratio is None else f", {row.ratio:.1f} times as many"
    line = f"{changed} of the inputs changed class, {moved} changed nearest neighbour{times}."
    leads = [show(parse_metric(SEPARATION), side[SEPARATION]) for side in (classes, search)]
    return [
        line,
        f"The median lead is {leads[0]} of the margin that would guarantee the answer as classes, "
        f"and {leads[1]} of it as a search; model, data and embeddings are the same.",
    ]


def _of_many(rows: Sequence[Row]) -> list[str]:
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if not ratios:
        return ["No class changed in any row, so there is no ratio."]
    more = sum(ratio > 1 for ratio in ratios)
    shown = f"{min(ratios):.1f} to {max(ratios):.1f} times"
    lines = [
        f"The search changed more answers than the classes did in {more} of {len(ratios)} rows, "
        f"{shown} as many, on the same embeddings."
    ]
    if len(ratios) < len(rows):
        lines.append("Where no class changed there is no ratio (-).")
    return lines


def json_of(row: Row) -> dict[str, Any]:
    """The line as JSON values."""
    sides = (
        ("classification", row.contrast.classification, row.classification),
        ("retrieval", row.contrast.retrieval, row.retrieval),
    )
    return {
        "spec": row.contrast.spec,
        "data": row.contrast.data,
        "ratio": row.ratio,
        **{
            name: {"path": str(run.path), "metrics": {metric: one.to_json() for metric, one in estimates.items()}}
            for name, run, estimates in sides
        },
    }
