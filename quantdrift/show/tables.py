"""Tables, as terminals, Markdown and pages show them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantdrift.statistics.estimates import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """One table. The first column holds words; the others numbers, unless they are named in `words`.

    With `stacked`, what is in brackets stands below the rest of a cell on a terminal. With `ruled` a line separates
    rows whose first cells differ.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    words: Collection[str] = ()
    stacked: bool = False
    ruled: bool = False
    lines: Sequence[str] = ()
    """Sentences below this table."""
    links: Sequence[str] = ()
    """Where each row leads in a page: names of sections or of parts; empty for none."""
    on_terminal: Grid | None = None
    plain: Sequence[str] = ()
    """What a terminal shows in its place, if that is another one, or lines that are not broken."""


def metric_grid(estimates: Mapping[str, Estimate], title: str = "") -> Grid:
    """Value and interval of every metric; on a terminal its meaning too, and what is undefined for one reason once."""
    from quantdrift.metrics import parse_metric  # noqa: PLC0415 -- scipy
    from quantdrift.metrics.numbers import has_value, show, show_interval  # noqa: PLC0415

    def reason(item: tuple[str, Estimate]) -> str:
        return "" if has_value(item[1]) else str(item[1].to_json()["reason"])

    head, rows, meanings, told = ["metric", "value", "95 % interval", "n"], [], [], ""
    for why, group in groupby(estimates.items(), key=reason):
        items = list(group)
        for name, estimate in items:
            metric = parse_metric(name)
            row = [name, show(metric, estimate), why or show_interval(metric, estimate), f"{estimate.n:,}"]
            rows.append(row)
            if not why:  # members of a family stand beside each other: one explanation for all of them
                meanings.append([*row, metric.family.summary if metric.family.name != told else ""])
                told = metric.family.name
        if why:
            more = f" and {len(items) - 1} more" if len(items) > 1 else ""
            meanings.append([f"{items[0][0]}{more}", "-", "", "", why])
    last = "what it says"
    on_terminal = Grid(title=title, head=[*head, last], rows=meanings, words={last})
    return Grid(title=title, head=head, rows=rows, on_terminal=on_terminal)
