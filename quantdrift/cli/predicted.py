"""A prediction as a table."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from quantdrift.allocation.curve import Point
from quantdrift.cli.tables import console, headed, noted
from quantdrift.statistics import Estimate

if TYPE_CHECKING:  # it would load torch
    from quantdrift.engine.sensitivity.jobs import Predicted

_LARGE = 3
"""At this many bits and below, the change of the weights is too large for first order."""
_FEW, _WANTED = 32, 128
"""Calibration queries: below the first, a rate is known to some twenty points."""

NOTES = (
    "other first answer: share of queries predicted to change, for rounding to nearest (in "
    "brackets 95 % intervals); 'by gap': widths chosen on the other half of the queries.",
    "random signs: the same, if layers moved the gaps in random directions; a rough guide for other quantizers.",
    "*: a best choice, as no other line has both fewer bits and fewer flips (random signs). Only "
    "the documents ranked first are watched; flips to others are missed.",
)


def print_prediction(
    found: Predicted, *, model: str, data: str, shown_data: str, group_size: int | None, widths: tuple[int, ...]
) -> None:
    """Print the curve, and what it does not see.

    Args:
        found: the curve.
        model: as the user named it.
        data: name of the data.
        shown_data: options of `quantdrift run` that name it.
        group_size: input weights that share a scale.
        widths: that were offered.
    """
    out = console(wide=True)

    def say(text: str = "") -> None:
        out.print(text, soft_wrap=True)

    def warn(text: str) -> None:
        out.print(noted(text), soft_wrap=True)

    by = "per output channel" if group_size is None else f"in groups of {group_size}"
    told = (
        f" rounded to nearest {by}: predicted on {len(found.input_ids)} queries of {data}, "
        f"{found.n_contenders} documents behind each first one; nothing was quantized"
    )
    out.print()
    out.print(headed(model, told), soft_wrap=True)
    few = len(found.input_ids) < _FEW
    if few:
        warn(
            f"{len(found.input_ids)} queries are too few for a rate, so only its 95 % interval is "
            f"shown; a quarter of the queries is used, so {4 * _WANTED} queries would give the "
            f"{_WANTED} that are wanted"
        )
    out.print(_curve(found.points, few=few))
    say(
        f"median gap to the runner-up {found.median_gap:.4f}; {found.n_layers} linear layers, bits "
        "of codes alone" + ("" if group_size is None else f" (scales add {16 / group_size:.3f} per weight)")
    )
    for line in NOTES:
        out.print(line, style="dim", soft_wrap=True)
    if found.points[0].budget <= _LARGE:
        warn(
            f"at {_LARGE} bits and below the change is too large for a first-order estimate: "
            "rates can be off by ten points, either way"
        )
    fitting = [point for point in found.points if point.on_front and point.allocated]
    if fitting:
        nearest = min(fitting, key=lambda point: abs(point.budget - 3.5))
        scheme = f"W{nearest.budget:g}{_granularity(group_size)}+gap+widths={','.join(map(str, widths))}"
        spec = shlex.quote(f"{model}@{scheme}")
        say(f"\nmeasure a point: quantdrift run {spec} {shown_data}")


def _curve(points: Sequence[Point], *, few: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("widths")
    for name in ("bits", "other first answer", "random signs", "median shift"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for point in points:
        found = point.prediction
        table.add_row(
            f"at most {point.budget:g}, by gap" if point.allocated else f"W{point.budget:g}",
            f"{found.bits_per_weight:.2f}",
            _percent(found.flips, few=few),
            _percent(found.chance, few=few),
            _number(found.shift),
            "*" if point.on_front else "",
        )
    return table


def _percent(estimate: Estimate, *, few: bool = False) -> str:
    if estimate.value is None:
        return "-"
    text = f"{100 * estimate.value:.1f} %"
    if estimate.low is None or estimate.high is None:
        return text
    if few:
        return f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f} %"
    return f"{text} ({100 * estimate.low:.1f} to {100 * estimate.high:.1f})"


def _number(estimate: Estimate) -> str:
    return "-" if estimate.value is None else f"{estimate.value:.3g}"


def _granularity(group_size: int | None) -> str:
    if group_size is None:
        return "-channel"
    return "" if group_size == 128 else f"-g{group_size}"  # noqa: PLR2004 -- the default
