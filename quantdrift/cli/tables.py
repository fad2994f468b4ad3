"""Results as tables for people."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quantdrift.cli.findings import data_line, explain, headlines
from quantdrift.cli.quantization import quantization_lines
from quantdrift.errors import QuantDriftError
from quantdrift.metrics import parse_metric
from quantdrift.report.numbers import cell, has_value, show, show_interval
from quantdrift.runs import Run
from quantdrift.statistics import Estimate

__all__ = [
    "cell",
    "console",
    "has_value",
    "metric_table",
    "one_format",
    "print_markdown",
    "print_run",
    "show",
    "show_interval",
]


WIDE = 110
"""Columns that tables of numbers need: narrower, they would lose digits."""


def console(*, wide: bool = False) -> Console:
    """Standard output; wide enough for the tables where nothing says how wide it is.

    A terminal does, and so does the variable COLUMNS.

    Args:
        wide: for tables of numbers: never narrower than they need, also where the terminal is.
    """
    plain = Console()
    told = plain.is_terminal or os.environ.get("COLUMNS", "").isdecimal()
    if told and (not wide or plain.width >= WIDE):
        return plain
    return Console(width=WIDE)


def one_format(*, json_output: bool, markdown: bool) -> None:
    """Refuse two formats at once.

    Raises:
        QuantDriftError: both are asked for.
    """
    if json_output and markdown:
        raise QuantDriftError("expected --json or --markdown; got both")


def print_run(run: Run) -> None:
    """Print what a run found, and where it lies."""
    record = run.record
    name, bits = record["data"]["name"], record["bits_per_weight"]
    out = console()
    out.print(
        f"\n[bold]{escape(record['spec'])}[/bold] on {escape(name)}: {data_line(record)}",
        highlight=False,
    )
    if bits is None:
        out.print("bits per weight: not known, a server has the weights", highlight=False)
    else:
        out.print(
            f"{bits['linear']:g} bits per weight of the linear layers "
            f"({bits['linear_with_scales']:.3f} with scales), "
            f"{bits['all_parameters']:.2f} over all parameters",
            highlight=False,
        )
    for line in quantization_lines(record):
        out.print(line, highlight=False, markup=False)
    for warning in record["data"]["warnings"]:
        out.print(f"[yellow]note:[/yellow] {escape(warning)}", highlight=False)
    estimates = _estimates(record["metrics"])
    out.print(metric_table("", {shown: estimates[shown] for shown in headlines(record)}))
    for line in explain(record):
        out.print(line, highlight=False)
    for line in (
        f"\nrun folder: {run.path}",
        f"which inputs changed, with their texts: quantdrift show {run.path}",
        f"all metrics: quantdrift metrics {run.path}",
    ):
        out.print(line, highlight=False, markup=False, soft_wrap=True)


def _estimates(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Estimate]:
    names = ("value", "low", "high", "n", "reason", "bound")
    return {
        name: Estimate(**{key: value for key, value in entry.items() if key in names})
        for name, entry in metrics.items()
    }


def metric_table(title: str, estimates: Mapping[str, Estimate]) -> Table:
    """A table of estimates: value, 95 % interval, number of inputs, meaning.

    Args:
        title: above the table; none if empty.
        estimates: by metric string.
    """
    table = Table(title=title or None, title_justify="left")
    table.add_column("metric", overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("95 % interval", justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("what it says")
    told = section = ""
    for name, estimate in estimates.items():
        metric = parse_metric(name)
        family = metric.family
        if section and family.section != section:
            table.add_section()
        section = family.section
        # members of a family stand beside each other: one explanation for all of them
        summary = family.summary if family.name != told else ""
        told = family.name
        if not has_value(estimate):
            table.add_row(name, "-", "", "", f"[dim]{estimate.to_json()['reason']}[/dim]")
            continue
        table.add_row(
            name,
            show(metric, estimate),
            show_interval(metric, estimate),
            f"{estimate.n:,}",
            f"[dim]{summary}[/dim]",
        )
    return table


def print_markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table on standard output."""
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
