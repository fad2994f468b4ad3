"""Results as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from rich.table import Table
from rich.text import Text

from quantdrift.cli.findings import data_line, explain, headlines
from quantdrift.cli.quantization import quantization_lines
from quantdrift.console import console
from quantdrift.display import clean, one_line, print_markdown
from quantdrift.errors import QuantDriftError
from quantdrift.metrics import parse_metric
from quantdrift.metrics.numbers import cell, has_value, show, show_interval
from quantdrift.runs import Run
from quantdrift.statistics import Estimate

__all__ = [
    "cell",
    "console",
    "has_value",
    "headed",
    "metric_table",
    "noted",
    "one_format",
    "print_markdown",
    "print_run",
    "show",
    "show_interval",
]


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
    out.print()
    out.print(headed(record["spec"], f" on {name}: {data_line(record)}"))
    if bits is None:
        out.print("bits per weight: not known, a server has the weights")
    else:
        out.print(
            f"{bits['linear']:g} bits per weight of the linear layers "
            f"({bits['linear_with_scales']:.3f} with scales), "
            f"{bits['all_parameters']:.2f} over all parameters"
        )
    for line in quantization_lines(record):
        out.print(line)
    for warning in record["data"]["warnings"]:
        out.print(noted(warning))
    estimates = _estimates(record["metrics"])
    out.print(metric_table("", {shown: estimates[shown] for shown in headlines(record)}))
    for line in explain(record):
        out.print(line)
    for line in (
        f"\nrun folder: {run.path}",
        f"which inputs changed, with their texts: quantdrift show {run.path}",
        f"all metrics: quantdrift metrics {run.path}",
    ):
        out.print(line, soft_wrap=True)


def headed(head: str, rest: str) -> Text:
    """One line that begins with what it is about.

    Args:
        head: a name.
        rest: of the line, with the space or sign that comes first.
    """
    return Text.assemble((clean(head), "bold"), one_line(rest))


def noted(text: str) -> Text:
    """Something to know, on one line."""
    return Text.assemble(("note:", "yellow"), " ", clean(text))


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
    for name, estimate, reason, more in _rows(estimates):
        metric = parse_metric(name)
        family = metric.family
        if section and family.section != section:
            table.add_section()
        section = family.section
        # members of a family stand beside each other: one explanation for all of them
        summary = family.summary if family.name != told else ""
        told = family.name
        if reason is not None:
            names = f"{name} and {more} more" if more else name
            table.add_row(names, "-", "", "", Text(reason, "dim"))
            continue
        table.add_row(
            name, show(metric, estimate), show_interval(metric, estimate), f"{estimate.n:,}", Text(summary, "dim")
        )
    return table


def _rows(estimates: Mapping[str, Estimate]) -> Iterator[tuple[str, Estimate, str | None, int]]:
    """A row each; what follows and is undefined for the same reason is counted in the first."""

    def reason(item: tuple[str, Estimate]) -> str | None:
        return None if has_value(item[1]) else str(item[1].to_json()["reason"])

    for why, group in groupby(estimates.items(), key=reason):
        items = list(group)
        for name, estimate in items if why is None else items[:1]:
            yield name, estimate, why, len(items) - 1
