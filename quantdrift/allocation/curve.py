"""What rounding will change, for any widths of the layers, without rounding anything; no torch.

To first order a layer's rounding moves a gap by a signed contribution (`sensitivity.gaps.contributions`), and
contributions of layers add up. An input flips when the sum takes a gap below zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.solver import solve
from quantdrift.base.errors import DataError
from quantdrift.statistics.estimates import Estimate, mean_estimate, quantile_estimate, rate_estimate

_DRAWS = 512
"""Random factors per layer: an input's chance is off by 0.02 at most, a rate by far less."""
_BLOCK = 64
"""Inputs whose draws are held at once."""
_STEP = 0.25
_TIME_LIMIT = 2.0
"""Seconds for one knapsack of the curve; what it has by then is close to the best."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gaps:
    """The gaps of calibration inputs, and what every layer at every width does to them.

    Attributes:
        gaps: float64 [n_inputs, n_contenders], of the reference, at least 0; nan where there is no contender.
        contributions: float64 [n_inputs, n_contenders, n_layers, n_widths], signed shifts.
        n_weights: int64 [n_layers].
        widths: bits per weight of the last axis, ascending.
    """

    gaps: NDArray[np.float64]
    contributions: NDArray[np.float64]
    n_weights: NDArray[np.int64]
    widths: tuple[int, ...]

    def part(self, rows: NDArray[np.int64]) -> Gaps:
        """The gaps of some of the inputs."""
        return replace(self, gaps=self.gaps[rows], contributions=self.contributions[rows])

    def bits_per_weight(self, widths: Sequence[int]) -> float:
        """The average of the layers' widths over their weights."""
        return float(self.n_weights @ np.asarray(widths)) / int(self.n_weights.sum())

    def of_layers(self, widths: Sequence[int]) -> NDArray[np.float64]:
        """The shift that each layer makes at its width, [n_inputs, n_contenders, n_layers]."""
        columns = [self.widths.index(width) for width in widths]
        return np.asarray(self.contributions[:, :, np.arange(len(columns)), columns])

    def shifts(self, widths: Sequence[int]) -> NDArray[np.float64]:
        """The shift of every gap, c = sum over layers; nan where there is no contender."""
        total: NDArray[np.float64] = self.of_layers(widths).sum(axis=-1)
        return np.where(np.isnan(self.gaps), np.nan, total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The expected effect of rounding to nearest, one point of the curve.

    Attributes:
        bits_per_weight: over the linear layers, codes alone.
        flips: rate of inputs with another top-1, with the signs that rounding has here.
        chance: the same if sign and size of every layer's shift were left to chance (`flip_chances`), which varies
            less with the inputs that happen to be drawn.
        shift: median over inputs of |shift| of the gap to the runner-up, in units of the score.
        budget: bits per weight there were.
        allocated: whether the criterion gap spends them; else all layers have one width.
        on_front: whether no other point is as low both in bits and in the chance of a flip, and lower in one of them.
    """

    bits_per_weight: float
    flips: Estimate
    chance: Estimate
    shift: Estimate
    budget: float = math.nan
    allocated: bool = False
    on_front: bool = False


def flipped(gaps: NDArray[np.float64], shifts: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell which inputs get another top-1, bool [n_inputs]: min over contenders of gap + shift < 0.

    A document beyond the contenders that are watched is not seen, so the rate is too low by those inputs which flip
    to one of these alone.
    """
    return np.asarray((gaps + shifts < 0).any(axis=1))  # nan is not below 0


def flip_chances(gaps: NDArray[np.float64], parts: NDArray[np.float64], *, seed: int = 0) -> NDArray[np.float64]:
    """The chance that each input flips if every layer's shift is random, of the same mean square.

    P(min over contenders of gap_j + sum over layers of z_l c_jl < 0), z_l independent standard normals. The shift of
    a gap is then normal with the sum of c_jl^2 as its variance, and since z_l is the same for all contenders of an
    input, their shifts are correlated as the layers make them: the product of the single chances would count what the
    first document loses several times. With one contender this is Phi(-gap / sqrt(sum of c_l^2)); several have no
    closed form, so 512 seeded draws are counted.
    """
    draws = np.random.default_rng(seed).standard_normal((parts.shape[2], _DRAWS))
    finite = np.where(np.isnan(gaps), np.inf, gaps)
    given = np.where(np.isnan(gaps)[..., None], 0.0, parts)
    chances = np.empty(len(gaps))
    for at in range(0, len(gaps), _BLOCK):
        rows = slice(at, at + _BLOCK)
        crossed = finite[rows, :, None] + given[rows] @ draws < 0
        chances[rows] = crossed.any(axis=1).mean(axis=-1)
    return chances


def predict(parts: Sequence[tuple[Gaps, Sequence[int]]]) -> Point:
    """Predict what rounding the layers will change, over parts of the inputs that have widths of their own."""
    moved = [part.shifts(widths) for part, widths in parts]
    flips = np.concatenate([flipped(part.gaps, shifts) for (part, _), shifts in zip(parts, moved, strict=True)])
    chances = np.concatenate([flip_chances(part.gaps, part.of_layers(widths)) for part, widths in parts])
    first = np.abs(np.concatenate([shifts[:, 0] for shifts in moved]))
    return Point(
        bits_per_weight=sum(part.bits_per_weight(widths) for part, widths in parts) / len(parts),
        flips=rate_estimate(flips.astype(np.float64)),
        chance=mean_estimate(chances),
        shift=quantile_estimate(first[~np.isnan(first)]),
    )


def mean_square_losses(shifts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The losses of the criterion gap: mean square of each layer's shift at each width, less that at the widest."""
    squares = np.nanmean(shifts**2, axis=(0, 1))
    # a wider width that happens to lie worse could hold the narrower one's codes
    falling: NDArray[np.float64] = np.minimum.accumulate(squares, axis=1)
    return falling - falling[:, -1:]


def budgets(widths: tuple[int, ...]) -> list[float]:
    """The budgets of allocated points, in quarters of a bit between the outermost widths.

    >>> budgets((3, 4))
    [3.25, 3.5, 3.75]
    """
    n = round((widths[-1] - widths[0]) / _STEP)
    return [widths[0] + _STEP * number for number in range(1, n)]


def predicted_curve(measured: Gaps, tell: Callable[[int], None] = lambda _steps: None) -> list[Point]:
    """Predict every uniform width and every budget in quarters of a bit, with the Pareto front.

    Widths that are chosen on an input suit that input: a budget is predicted on either half of the inputs with the
    widths chosen on the other half.
    """
    measured = measured.part(np.flatnonzero((~np.isnan(measured.gaps)).any(axis=1)))  # rates are over these
    if len(measured.gaps) < 2:  # noqa: PLR2004 -- one for each half
        raise DataError(
            "expected two calibration queries at least, so that widths are predicted on others than they are chosen "
            f"on; got {len(measured.gaps)}. Give eight queries or more: one in four is measured on"
        )
    even, odd = (measured.part(np.arange(half, len(measured.gaps), 2)) for half in (0, 1))
    uniform = [(float(width), False) for width in measured.widths]
    points = []
    for budget, allocated in sorted(uniform + [(budget, True) for budget in budgets(measured.widths)]):
        if allocated:
            point = predict([(even, _chosen(odd, budget)), (odd, _chosen(even, budget))])
        else:
            point = predict([(measured, [int(budget)] * len(measured.n_weights))])
        points.append(replace(point, budget=budget, allocated=allocated))
        tell(1)
    # the chance tells points apart that the count over few inputs does not
    places = [(point.bits_per_weight, point.chance.value or 0.0) for point in points]
    return [
        replace(point, on_front=not any(b <= bits and f <= flips and (b, f) != (bits, flips) for b, f in places))
        for point, (bits, flips) in zip(points, places, strict=True)
    ]


def _chosen(measured: Gaps, budget: float) -> list[int]:
    losses = mean_square_losses(measured.contributions)
    solution = solve(losses, measured.n_weights, widths=measured.widths, budget=budget, time_limit=_TIME_LIMIT)
    return [int(width) for width in solution.widths]
