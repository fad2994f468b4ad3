"""Estimates with intervals: Wilson for rates, order statistics for medians, bootstrap for means.

scipy does the statistics; what is ours is to say when a value is undefined, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Estimate", "mean_estimate", "median_estimate", "rate_estimate", "undefined"]

CONFIDENCE = 0.95
RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value, its 95 % interval, and the number of inputs behind it.

    Attributes:
        value: the estimate, or None if it is undefined; can be +inf.
        low: lower end of the interval, or None if there is none.
        high: upper end.
        n: number of inputs for which the quantity is defined.
        reason: why value is None.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object: value, low, high and n; or value null and the reason.

        JSON has no infinity, so an infinite value is null too, with a reason that says so.
        """
        if self.value is None:
            return {"value": None, "reason": self.reason}
        if not np.isfinite(self.value):
            sign = "+" if self.value > 0 else "-"
            return {"value": None, "reason": f"{sign}infinity: {self.reason or 'no finite value'}"}
        return {
            "value": self.value,
            "low": _finite(self.low),
            "high": _finite(self.high),
            "n": self.n,
        }


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


def undefined(reason: str) -> Estimate:
    """An estimate that has no value, and why."""
    return Estimate(value=None, reason=reason)


def rate_estimate(outcomes: NDArray[np.float64]) -> Estimate:
    """The share of ones, with the Wilson score interval.

    Args:
        outcomes: float64 of 0.0 and 1.0, at least one.
    """
    from scipy.stats import binomtest  # noqa: PLC0415 -- scipy.stats takes long to import

    n, hits = len(outcomes), int(outcomes.sum())
    interval = binomtest(hits, n).proportion_ci(CONFIDENCE, method="wilson")
    return Estimate(value=hits / n, low=float(interval.low), high=float(interval.high), n=n)


def median_estimate(values: NDArray[np.float64]) -> Estimate:
    """The median, with the distribution-free interval between two order statistics.

    It makes no assumption on the distribution and copes with infinite values. Fewer than six values
    give no 95 % interval.

    Args:
        values: float64, at least one, no NaN.
    """
    from scipy.stats import quantile_test  # noqa: PLC0415 -- scipy.stats takes long to import

    ordered = np.sort(values)
    middle = (ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2])
    value = float(middle[0] if middle[0] == middle[1] else (middle[0] + middle[1]) / 2)
    interval: Any = quantile_test(values, p=0.5).confidence_interval(CONFIDENCE)
    low, high = (None if np.isnan(end) else float(end) for end in interval)
    return Estimate(value=value, low=low, high=high, n=len(values))


def mean_estimate(values: NDArray[np.float64], *, seed: int = 0) -> Estimate:
    """The mean, with a seeded percentile bootstrap interval.

    Args:
        values: float64, at least one, finite.
        seed: of the resampling.
    """
    from scipy.stats import bootstrap  # noqa: PLC0415 -- scipy.stats takes long to import

    value = float(values.mean())
    if len(values) == 1 or np.ptp(values) == 0:
        return Estimate(value=value, low=value, high=value, n=len(values))
    interval = bootstrap(
        (values,),
        np.mean,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        batch=100,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Estimate(value=value, low=float(interval.low), high=float(interval.high), n=len(values))


Estimator = Callable[[NDArray[np.float64]], Estimate]
