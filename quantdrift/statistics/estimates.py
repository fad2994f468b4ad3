"""Estimates with intervals: Wilson for rates, order statistics for medians, bootstrap for means.

scipy does the statistics; what is ours is to say when a value is undefined, and why.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CONFIDENCE",
    "RESAMPLES",
    "Estimate",
    "mean_estimate",
    "quantile_estimate",
    "rate_estimate",
    "relative_change_estimate",
    "undefined",
]

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
        bound: of a quantity that is only known to be at least ("lower") or at most ("upper") so
            much for every input: which of the two the value is.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    reason: str | None = None
    bound: Literal["lower", "upper"] | None = None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object: value, low, high, n and bound; or value null and the reason.

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
            **({} if self.bound is None else {"bound": self.bound}),
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


def quantile_estimate(values: NDArray[np.float64], q: float = 0.5) -> Estimate:
    """A quantile, with the distribution-free interval between two order statistics.

    It makes no assumption on the distribution and copes with infinite values. The value is the
    mean of the two order statistics next to the quantile (the usual median for q = 0.5). With too
    few values for the quantile (six for a median) an end of the interval is None.

    Args:
        values: float64, at least one, no NaN.
        q: which quantile, above 0 and below 1.
    """
    from scipy.stats import quantile_test  # noqa: PLC0415 -- scipy.stats takes long to import

    ordered, place = np.sort(values), round(len(values) * q, 9)
    # the last value below the quantile and the first above it; they are one unless it falls between
    below, above = ordered[math.ceil(place) - 1], ordered[min(math.floor(place), len(values) - 1)]
    value = float(below if below == above else (below + above) / 2)
    interval: Any = quantile_test(values, p=q).confidence_interval(CONFIDENCE)
    low, high = (None if np.isnan(end) else float(end) for end in interval)
    return Estimate(value=value, low=low, high=high, n=len(values))


def mean_estimate(values: NDArray[np.float64], *, seed: int = 0) -> Estimate:
    """The mean, with a seeded percentile bootstrap interval.

    The interval depends on the values and the seed, not on the order of the values. For the mean of
    per-input differences this is the paired bootstrap.

    Args:
        values: float64, at least one, finite.
        seed: of the resampling.
    """
    value = float(values.mean())
    if len(values) == 1 or np.ptp(values) == 0:
        return Estimate(value=value, low=value, high=value, n=len(values))
    low, high = _bootstrap((np.sort(values),), np.mean, seed)
    return Estimate(value=value, low=low, high=high, n=len(values))


def relative_change_estimate(
    candidate: NDArray[np.float64], reference: NDArray[np.float64], *, seed: int = 0
) -> Estimate:
    """Mean of one arm over that of the other, minus 1, with a seeded paired bootstrap interval.

    mean(candidate) / mean(reference) - 1. Inputs are resampled, both their values together.

    Args:
        candidate: float64 [n_inputs], at least one, finite.
        reference: likewise, the same inputs.
        seed: of the resampling.

    Returns:
        At least -1 for values that are not negative; undefined if the reference's mean is 0.
    """
    before = float(reference.mean())
    if before == 0:
        return undefined("the reference's mean is 0")
    value = float(candidate.mean()) / before - 1
    if len(candidate) == 1 or (candidate == reference).all():
        return Estimate(value=value, low=value, high=value, n=len(candidate))
    order = np.lexsort((candidate, reference))

    def change(after: Any, before: Any, axis: int = -1) -> Any:
        means = np.mean(before, axis=axis)
        # a sample in which the reference has nothing has no relative change, and no interval then
        return np.mean(after, axis=axis) / np.where(means == 0, np.nan, means) - 1

    low, high = _bootstrap((candidate[order], reference[order]), change, seed)
    return Estimate(value=value, low=low, high=high, n=len(candidate))


def _bootstrap(
    samples: tuple[NDArray[np.float64], ...], statistic: Callable[..., Any], seed: int
) -> tuple[float | None, float | None]:
    from scipy.stats import (  # noqa: PLC0415 -- scipy.stats takes long to import
        DegenerateDataWarning,
        bootstrap,
    )

    with warnings.catch_warnings():
        # that there is no interval is said by returning none
        warnings.simplefilter("ignore", DegenerateDataWarning)
        interval = bootstrap(
            samples,
            statistic,
            confidence_level=CONFIDENCE,
            n_resamples=RESAMPLES,
            batch=100,
            method="percentile",
            paired=True,
            rng=np.random.default_rng(seed),
        ).confidence_interval
    low, high = float(interval.low), float(interval.high)
    return None if np.isnan(low) else low, None if np.isnan(high) else high
