"""What `quantdrift route` prints: tables, and sentences below them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from quantdrift.cli.tables import console, print_markdown
from quantdrift.display import clean, prose, say
from quantdrift.trust.sentences import sentences_of
from quantdrift.trust.sweep import (
    RoutedGroup,
    RoutedRun,
    RouteSettings,
    Share,
    mean_curve,
    mean_rescoring,
    relative_cost,
)

Printed = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""Title, head and rows of a table."""


def print_groups(groups: Sequence[RoutedGroup], settings: RouteSettings, *, markdown: bool) -> None:
    """Print every group of runs: its tables, then what they come to.

    Args:
        groups: at least one.
        settings: how the runs were looked at.
        markdown: print Markdown tables and a list.
    """
    out = console(wide=True)
    for group in groups:
        tables, lines = _tables(group, settings), sentences_of(group, settings)
        if markdown:
            for title, head, rows in tables:
                say(f"{prose(title)}\n")
                print_markdown(head, rows)
                say()
            say("\n".join(f"- {prose(line)}" for line in lines) + "\n")
            continue
        for title, head, rows in tables:
            table = Table(title=clean(title), title_justify="left")
            for name in head:
                words = name in {"score", "data", "recommended"}
                table.add_column(name, justify="left" if words else "right", overflow="fold")
            for row in rows:
                table.add_row(*map(clean, row))
            out.print(table)
        for line in lines:
            out.print(line)
        out.print()


def _tables(group: RoutedGroup, settings: RouteSettings) -> list[Printed]:
    names = [str(run.run.record["data"]["name"]) for run in group.runs]
    title = f"{group.spec} on {names[0]}" if len(names) == 1 else f"{group.spec}, {len(names)} runs"
    tables = [_sweep(title, group, settings), _curve(group)] if group.logits else [_rescoring(title, group, settings)]
    if len(names) > 1:
        rows = [(name, *_run_cells(run)) for name, run in zip(names, group.runs, strict=True)]
        found = f"routed for {100 * settings.recover:g} %", "its cost"
        if not group.logits:
            found = (f"rescored to restore {100 * settings.recover:g} %", "cost of encoding queries")
        head = ("data", "inputs", "changed", "at risk (95 %)", *found, "recommended")
        tables.append(("Each run", head, rows))
    return tables


def _sweep(title: str, group: RoutedGroup, settings: RouteSettings) -> Printed:
    parts = "one half", "the other"
    if settings.share != 0.5:  # noqa: PLR2004 -- a half
        parts = f"{100 * settings.share:g} %", "the rest"
    rows = [
        (
            point.score,
            f"{point.percentile:g}",
            *(_share(share, len(group.runs)) for share in (point.routed, point.accuracy, point.changes)),
        )
        for point in group.points
    ]
    return (
        f"{title}: thresholds set on {parts[0]}, measured on {parts[1]}",
        ("score", "percentile", "routed", "lost accuracy recovered", "changes recovered"),
        rows,
    )


def _curve(group: RoutedGroup) -> Printed:
    curves = [run.curves[0] for run in group.runs]
    points = mean_curve(curves)
    rows = [
        tuple(_percent(row[name]) for name in ("routed", "cost", "changes", "accuracy"))
        for row in points
        # dearer than full precision alone: only the end, which is everything
        if row["cost"] <= 1 or row is points[-1]
    ]
    return (
        f"Cost of routing by {curves[0].score} on these very inputs (full precision alone is 100 %)",
        ("routed", "cost", "changes recovered", "lost accuracy recovered"),
        rows,
    )


def _rescoring(title: str, group: RoutedGroup, settings: RouteSettings) -> Printed:
    entries = mean_rescoring([run.rescoring for run in group.runs])
    metric = next((entry.metric for entry in entries if entry.metric), None)
    rows = [
        (
            f"{entry.percentile:g}",
            f"{entry.k}",
            _percent(entry.encoded),
            _percent(relative_cost(entry.encoded, settings.speed_up)),
            f"{entry.documents:.1f}",
            _percent(entry.restored),
            _percent(entry.ceiling),
            *((_signed(entry.change), _signed(entry.loss)) if metric else ()),
        )
        for entry in entries
    ]
    head = (
        "percentile",
        "k",
        "queries encoded again",
        "cost of encoding queries",
        "documents compared",
        "changes restored",
        "ceiling",
        *((f"{metric} regained", f"{metric} lost") if metric else ()),
    )
    return f"{title}: unsure queries' first k results rescored", head, rows


def _run_cells(run: RoutedRun) -> tuple[str, ...]:
    advice, point = run.advice, run.operating
    if run.restoring is not None and run.restoring.counts != "restored":
        point = None  # so many cannot be restored
    risk = advice.at_risk
    shown = _percent(risk.value)
    if risk.low is not None and risk.high is not None:
        shown += f" ({100 * risk.low:.1f} to {100 * risk.high:.1f})"
    return (
        f"{run.n_inputs:,}",
        _percent(advice.flip_rate.value),
        shown,
        *(("-", "-") if point is None else (_percent(point["routed"]), _percent(point["cost"]))),
        advice.fix + (" (unsure)" if advice.straddles else ""),
    )


def _share(share: Share, n_runs: int) -> str:
    if share.value is None:
        return "-"
    shown = _percent(share.value) + ("" if share.sd is None else f" ± {100 * share.sd:.1f}")
    return shown + (f" ({share.n})" if n_runs > 1 else "")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4f}"
