"""The law over many runs: the larger the median separation ratio, the fewer answers change.

Unlike reachability this is an observation. It is worth as much as the runs it is computed from, so
a line is judged on runs it never saw (`r_squared`), and beside its rivals (`held_out`).

Source: paper, section 5.2 (the contender set is the mechanism).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.errors import TheoryError
from quantdrift.evidence import Evidence
from quantdrift.statistics import Estimate, undefined

__all__ = [
    "LEAST_RUNS",
    "PREDICTORS",
    "LawPoint",
    "Line",
    "Predictor",
    "fit_line",
    "law_point",
    "r_squared",
    "spearman",
]

Floats = NDArray[np.float64]

Predictor = Literal["separation", "gap", "epsilon", "n_items"]
"""What a change rate is explained by; the first is the law's, the others are its rivals."""

PREDICTORS: tuple[Predictor, ...] = get_args(Predictor)

LEAST_RUNS = 3  # two points always correlate perfectly
_LEAST_FOR_LINE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LawPoint:
    """One run as a point: medians over its inputs, and its change rate.

    Attributes:
        label: names the run; unique among the points that are compared.
        separation: median separation ratio, at least 0; +inf for an exact copy.
        gap: median gap of the reference, in score units, at least 0.
        epsilon: median epsilon, in score units, at least 0.
        n_items: median number of items scored, at least 1.
        change_rate: share of inputs whose top-1 changed, in [0, 1].
    """

    label: str
    separation: float
    gap: float
    epsilon: float
    n_items: float
    change_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A least-squares line: change rate = intercept + slope * log10(predictor).

    Attributes:
        predictor: what it reads.
        slope: change of the rate per factor of ten.
        intercept: rate at a predictor of 1.
        pearson: correlation of rate and log10(predictor) on the points fitted, in [-1, 1]; 0 if
            all rates are equal.
        n: number of points fitted.
    """

    predictor: Predictor
    slope: float
    intercept: float
    pearson: float
    n: int

    def predict(self, points: Sequence[LawPoint]) -> Floats:
        """The rate the line gives each point, float64 [n_points].

        It is a straight line: far out it leaves [0, 1], and it is not clipped. Infinite or NaN
        where the predictor has no finite logarithm.
        """
        return self.intercept + self.slope * _logarithms(points, self.predictor)


def law_point(evidence: Evidence, *, label: str) -> LawPoint:
    """One run as a point of the law.

    Args:
        evidence: of the run.
        label: names it.

    Raises:
        TheoryError: no input has two items, so that there is no gap.

    Source: paper, section 5.2.
    """
    separation, gap = perturbation.separation_ratio(evidence), perturbation.gap(evidence)
    defined, scored = ~np.isnan(separation), evidence.n_items > 0
    if not defined.any():
        raise TheoryError(f"{label}: a point needs an input with two items to compare; got none")
    return LawPoint(
        label=label,
        separation=float(np.median(separation[defined])),
        gap=float(np.median(gap[defined])),
        epsilon=float(np.median(perturbation.epsilon(evidence)[scored])),
        n_items=float(np.median(evidence.n_items[scored])),
        change_rate=float(perturbation.flips(evidence)[scored].mean()),
    )


def spearman(points: Sequence[LawPoint], predictor: Predictor = "separation") -> Estimate:
    """Rank correlation of a predictor with the change rate over runs.

    Pearson correlation of the ranks, ties sharing their mean rank. Infinite predictors count as
    the greatest. Runs that share a model or a corpus are not independent, so there is no p-value.

    Args:
        points: the runs.
        predictor: which of their quantities.

    Returns:
        From -1 to 1; the law says close to -1 for the separation. Undefined for fewer than three
        runs, and if either side is the same in all of them.

    Source: paper, section 5.2.
    """
    from scipy import stats  # noqa: PLC0415 -- takes long to import

    values, rates = _values(points, predictor), _rates(points)
    if len(points) < LEAST_RUNS:
        return undefined(f"a rank correlation needs {LEAST_RUNS} runs; got {len(points)}")
    for what, side in ((predictor, values), ("change rate", rates)):
        if (side == side[0]).all():
            return undefined(f"the {what} is the same in all runs")
    spearman: Any = stats.spearmanr  # the stubs for older numpy want a shape of known length
    result = spearman(values, rates)
    return Estimate(value=float(result.statistic), n=len(points))


def fit_line(points: Sequence[LawPoint], predictor: Predictor = "separation") -> Line:
    """The least-squares line of the change rate on log10 of a predictor.

    Args:
        points: the runs. One whose predictor is 0 or infinite has no logarithm and is left out.
        predictor: which of their quantities.

    Raises:
        TheoryError: fewer than two runs with different finite logarithms are left.

    Source: paper, section 5.2.

    >>> rates = {0.01: 0.5, 0.1: 0.3, 1: 0.1}
    >>> line = fit_line([LawPoint(label=str(x), separation=x, gap=1, epsilon=1, n_items=9,
    ...                           change_rate=y) for x, y in rates.items()])
    >>> round(line.slope, 6), round(line.intercept, 6), round(line.pearson, 6)
    (-0.2, 0.1, -1.0)
    """
    logarithms, rates = _usable(points, predictor)
    if len(np.unique(logarithms)) < _LEAST_FOR_LINE:
        raise TheoryError(
            f"a line on log10({predictor}) needs two runs with different finite values; "
            f"got {len(np.unique(logarithms))} among {len(points)} runs"
        )
    x, y = logarithms - logarithms.mean(), rates - rates.mean()
    slope = float(x @ y / (x @ x))
    spread = float(np.sqrt((x @ x) * (y @ y)))
    return Line(
        predictor=predictor,
        slope=slope,
        intercept=float(rates.mean() - slope * logarithms.mean()),
        pearson=float(x @ y) / spread if spread > 0 else 0.0,
        n=len(rates),
    )


def r_squared(line: Line, points: Sequence[LawPoint]) -> Estimate:
    """Share of the variance of the change rate that a line explains on these runs.

    1 - sum (rate - predicted)^2 / sum (rate - mean rate of these runs)^2. Nothing is fitted again.

    Args:
        line: fitted on other runs.
        points: the runs to judge it on; those without a finite logarithm are left out.

    Returns:
        At most 1 (exact); 0 is no better than the mean of these runs; can be negative. Undefined
        for fewer than two runs, and if all their rates are the same.

    Source: paper, section 5.2.
    """
    logarithms, rates = _usable(points, line.predictor)
    if len(rates) < _LEAST_FOR_LINE:
        return undefined(f"R2 needs two runs with a finite logarithm; got {len(rates)}")
    residuals = rates - (line.intercept + line.slope * logarithms)
    around_mean = rates - rates.mean()
    total = float(around_mean @ around_mean)
    if (rates == rates[0]).all():
        return undefined("the change rate is the same in all runs")
    return Estimate(value=1 - float(residuals @ residuals) / total, n=len(rates))


def _values(points: Sequence[LawPoint], predictor: Predictor) -> Floats:
    return np.array([getattr(point, predictor) for point in points], dtype=np.float64)


def _rates(points: Sequence[LawPoint]) -> Floats:
    return np.array([point.change_rate for point in points], dtype=np.float64)


def _logarithms(points: Sequence[LawPoint], predictor: Predictor) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log10(_values(points, predictor)))


def _usable(points: Sequence[LawPoint], predictor: Predictor) -> tuple[Floats, Floats]:
    logarithms = _logarithms(points, predictor)
    finite = np.isfinite(logarithms)
    return logarithms[finite], _rates(points)[finite]
