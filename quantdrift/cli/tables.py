"""Results as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from quantdrift.metrics import parse_metric
from quantdrift.runs import Run
from quantdrift.statistics import Estimate

__all__ = ["console", "explain", "metric_table", "print_run"]


def console() -> Console:
    """Standard output; wide enough for the tables where there is no terminal."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=110)


def print_run(run: Run) -> None:
    """Print what a run found, and where it lies."""
    record = run.record
    data, bits = record["data"], record["bits_per_weight"]
    out = console()
    out.print(
        f"\n[bold]{record['spec']}[/bold] on {data['name']}: {data['n_queries']:,} queries, "
        f"{data['n_documents']:,} documents",
        highlight=False,
    )
    out.print(
        f"{bits['linear']:g} bits per weight of the linear layers "
        f"({bits['linear_with_scales']:.3f} with scales), "
        f"{bits['all_parameters']:.2f} over all parameters",
        highlight=False,
    )
    unreached = record["model"]["layers_never_reached"]
    if unreached:
        out.print(
            f"never reached, so without effect: {', '.join(unreached[:4])}"
            + (f" and {len(unreached) - 4} more" if len(unreached) > 4 else ""),  # noqa: PLR2004
            highlight=False,
        )
    for warning in data["warnings"]:
        out.print(f"[yellow]note:[/yellow] {warning}", highlight=False)
    out.print(metric_table("", _estimates(record["metrics"])))
    for line in explain(record["metrics"]):
        out.print(line, highlight=False)
    out.print(f"\nrun folder: {run.path}", highlight=False, soft_wrap=True)


def _estimates(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Estimate]:
    names = ("value", "low", "high", "n", "reason")
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
    table.add_column("metric", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("95 % interval", justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("what it says")
    told = ""
    for name, estimate in estimates.items():
        family = parse_metric(name).family
        # members of a family stand beside each other: one explanation for all of them
        summary = family.summary if family.name != told else ""
        told = family.name
        form = _percent if family.unit == "rate" else _number
        entry = estimate.to_json()
        if entry["value"] is None:
            table.add_row(name, "-", "", "", f"[dim]{entry['reason']}[/dim]")
            continue
        interval = ""
        if entry["low"] is not None or entry["high"] is not None:
            low = "" if entry["low"] is None else form(entry["low"])
            high = "∞" if entry["high"] is None else form(entry["high"])
            interval = f"{low} to {high}"
        table.add_row(
            name, form(entry["value"]), interval, f"{estimate.n:,}", f"[dim]{summary}[/dim]"
        )
    return table


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) >= 1 else f"{value:.4f}"


def explain(metrics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The finding in plain sentences, from a record's metrics."""
    lines = []
    flip, floor = metrics["flip@1"], metrics.get("noise_floor", {"value": None})
    if flip["value"] is not None:
        changed = round(flip["value"] * flip["n"])
        lines.append(
            f"{changed:,} of {flip['n']:,} inputs ({_percent(flip['value'])}) have another first "
            "answer than at full precision"
            + (
                f"; noise alone changes {_percent(floor['value'])}."
                if floor["value"] is not None
                else "."
            )
        )
    before, after = metrics.get("reference.ndcg@10"), metrics.get("ndcg@10")
    lost = metrics.get("gold_lost@1")
    if before and after and before["value"] and after["value"] is not None:
        change = 100 * (after["value"] / before["value"] - 1)
        text = f"The mean nDCG@10 moves by {change:+.1f} %"
        if lost and lost["value"] is not None:
            text += (
                f", while {_percent(lost['value'])} of the inputs whose first answer was relevant "
                "lose it"
            )
        lines.append(text + ".")
    risk = metrics.get("at_risk")
    if risk and risk["value"] is not None:
        lines.append(
            f"{_percent(1 - risk['value'])} of the inputs had a lead too large for this "
            "quantization to overturn (separation ratio of 1 or more)."
        )
    return lines
