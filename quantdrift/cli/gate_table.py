"""A judged run on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from quantdrift.cli.tables import console
from quantdrift.console import Console
from quantdrift.gate.judge import GateResult
from quantdrift.gate.output import (
    NAMES,
    headline,
    rows,
    sentences,
    subject,
    worst_rows,
    worst_title,
)

__all__ = ["print_result"]

NOW, BASELINE, NO_WORSE = "now (95 %)", "baseline", "p no worse"
"""Titles of columns."""

STYLES = {
    "pass": "green",
    "fail": "red",
    "error": "red",
    "incomparable": "yellow",
    "underpowered": "yellow",
}


def print_result(result: GateResult, *, accept_underpowered: bool = False) -> None:
    """Print the table of rules, the inputs to look at, the finding, and the verdict last.

    Args:
        result: a judged run.
        accept_underpowered: whether too few inputs end in success.
    """
    out = console(wide=True)
    out.print(subject(result), style="bold", soft_wrap=True)
    out.print(_rules(*_fitting(*rows(result))))
    if result.worst:
        _print_worst(out, result)
    for line in sentences(result, accept_underpowered=accept_underpowered):
        out.print(line)
    line = headline(result, accept_underpowered=accept_underpowered)
    out.print(line, style=STYLES[result.verdict], soft_wrap=True)


def _rules(head: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    table = Table(pad_edge=False)
    for title in head:
        left = title in {"rule", "outcome"}
        table.add_column(
            _on_lines(title), justify="left" if left else "right", no_wrap=title != "rule"
        )
    for row in cells:
        style = STYLES.get(row[-1], "")
        table.add_row(row[0], *map(_on_lines, row[1:-1]), Text(row[-1], style))
    return table


def _on_lines(text: str) -> str:
    """What stands in parentheses below the rest."""
    return text.replace(" (", "\n(")


def _fitting(
    head: Sequence[str], cells: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """As much as a terminal has room for; reports have it all.

    Beside a baseline, both values stand below each other and the interval is that of the
    difference.
    """
    if NOW not in head or BASELINE not in head:
        kept = [place for place, title in enumerate(head) if title != NO_WORSE]
        return [head[place] for place in kept], [[row[place] for place in kept] for row in cells]
    now, before = head.index(NOW), head.index(BASELINE)
    kept = [place for place, title in enumerate(head) if title not in {NO_WORSE, BASELINE}]

    def told(row: Sequence[str], place: int) -> str:
        if place != now or row[before] == "-":
            return row[place]
        return f"{row[before]}\n{row[now].partition(' (')[0]}"

    titles = ["baseline\nnow" if place == now else head[place] for place in kept]
    return titles, [[told(row, place) for place in kept] for row in cells]


def _print_worst(out: Console, result: GateResult) -> None:
    head, cells = worst_rows(result)
    table = Table(title=worst_title(result), title_justify="left", pad_edge=False)
    for title in head:
        table.add_column(title, justify="left" if title in NAMES else "right", overflow="fold")
    for row in cells:
        table.add_row(*row)
    out.print(table)
