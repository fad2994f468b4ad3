"""The curve of bits per weight against predicted flips, uniform and allocated; no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.criteria.mean_square import mean_square_losses
from quantdrift.allocation.predict import Gaps, Prediction, flip_chances, flipped, predict, summary
from quantdrift.allocation.solving.solver import solve
from quantdrift.errors import DataError

__all__ = ["Point", "budgets", "predicted_curve"]

_STEP = 0.25
_TIME_LIMIT = 2.0
"""Seconds for one knapsack of the curve; what it has by then is close to the best."""
_HALVES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of the curve.

    Attributes:
        budget: bits per weight there were.
        allocated: whether the criterion gap spends them; else all layers have one width.
        prediction: what is expected.
        on_front: whether no other point is as low both in bits and in the chance of a flip, and
            lower in one of them.
    """

    budget: float
    allocated: bool
    prediction: Prediction
    on_front: bool = False


def budgets(widths: tuple[int, ...]) -> list[float]:
    """The budgets of allocated points, in quarters of a bit between the outermost widths.

    >>> budgets((3, 4))
    [3.25, 3.5, 3.75]
    """
    n = round((widths[-1] - widths[0]) / _STEP)
    return [widths[0] + _STEP * number for number in range(1, n)]


def predicted_curve(
    measured: Gaps, tell: Callable[[int], None] = lambda _steps: None
) -> list[Point]:
    """Predict every uniform width and every budget in quarters of a bit, with the Pareto front.

    Widths that are chosen on an input suit that input: a budget is predicted on either half of the
    inputs with the widths chosen on the other half.

    Args:
        measured: gaps and contributions.
        tell: is called with 1 after each point.

    Returns:
        Points by rising budget, a uniform one before an allocated one.

    Raises:
        DataError: there are not two inputs with a contender.
    """
    measured = measured.part(np.flatnonzero(measured.counted))
    if len(measured.gaps) < _HALVES:
        raise DataError(
            "expected two calibration queries at least, so that widths are predicted on others "
            f"than they are chosen on; got {len(measured.gaps)}. Give eight queries or more: one "
            "in four is measured on"
        )
    n_layers = len(measured.n_weights)
    points = []
    for width in measured.widths:
        found = predict(measured, [width] * n_layers)
        points.append(Point(budget=float(width), allocated=False, prediction=found))
        tell(1)
    for budget in budgets(measured.widths):
        found = _allocated(measured, budget)
        points.append(Point(budget=budget, allocated=True, prediction=found))
        tell(1)
    points.sort(key=lambda point: (point.budget, point.allocated))
    return _front(points)


def _allocated(measured: Gaps, budget: float) -> Prediction:
    """A budget, each half of the inputs with the widths that were chosen on the other."""
    n = len(measured.gaps)
    flips, chances, shifts = np.zeros(n, np.bool_), np.zeros(n), np.zeros(n)
    bits = []
    for half in range(_HALVES):
        rows = np.arange(half, n, _HALVES)
        others = np.setdiff1d(np.arange(n), rows)
        widths = _widths(measured.part(others), budget).tolist()
        part = measured.part(rows)
        moved = part.shifts(widths)
        flips[rows] = flipped(part.gaps, moved)
        chances[rows] = flip_chances(part.gaps, part.of_layers(widths))
        shifts[rows] = moved[:, 0]
        bits.append(measured.bits_per_weight(widths))
    return summary(flips, chances, shifts, bits_per_weight=sum(bits) / len(bits))


def _widths(measured: Gaps, budget: float) -> NDArray[np.int64]:
    return solve(
        mean_square_losses(measured.contributions),
        measured.n_weights,
        widths=measured.widths,
        budget=budget,
        time_limit=_TIME_LIMIT,
    ).widths


def _front(points: list[Point]) -> list[Point]:
    """Mark the points that no other is better than."""

    def place(point: Point) -> tuple[float, float]:
        # the chance tells points apart that the count over few inputs does not
        return point.prediction.bits_per_weight, point.prediction.chance.value or 0.0

    def beaten(point: Point) -> bool:
        bits, flips = place(point)
        return any(
            b <= bits and f <= flips and (b, f) != (bits, flips) for b, f in map(place, points)
        )

    return [replace(point, on_front=not beaten(point)) for point in points]
