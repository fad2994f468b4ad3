"""The bootstrap: resamples of the inputs, and the percentile interval of what they give.

Draws and rule are those of `scipy.stats.bootstrap` (percentile method, paired, in batches), so that
the same seed gives the same interval; but there is nothing to import, and a bound on the memory.

Source: B. Efron and R. J. Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["CONFIDENCE", "RESAMPLES", "percentile_interval", "resampled"]

CONFIDENCE = 0.95
RESAMPLES = 2000

_AT_ONCE = 2**20
"""Inputs drawn at a time: 8 MiB of places. The draws do not depend on it."""


def resampled(
    statistic: Callable[[NDArray[np.int64]], NDArray[np.float64]], n: int, *, seed: int
) -> NDArray[np.float64]:
    """A statistic of resamples, each of n inputs that are drawn with replacement.

    Args:
        statistic: from places of inputs, int64 [n_some_resamples, n], to one float64 for each row.
        n: how many inputs there are, at least one.
        seed: of the draws.

    Returns:
        float64 [2000].
    """
    rng = np.random.default_rng(seed)
    rows = max(1, _AT_ONCE // n)
    found = []
    for done in range(0, RESAMPLES, rows):
        found.append(statistic(rng.integers(0, n, (min(rows, RESAMPLES - done), n))))
    return np.concatenate(found)


def percentile_interval(
    values: NDArray[np.float64], *, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """The quantiles of resampled values that leave as much on either side.

    For p = (1 - confidence) / 2 and 1 - p, the value at place p (n - 1) of the sorted ones, on a
    straight line between two neighbors.

    Args:
        values: float64, at least one, of a statistic of resamples.
        confidence: between 0 and 1.

    Returns:
        Lower and upper end; both NaN if one of the values is.
    """
    tail = (1 - confidence) / 2
    ordered = np.sort(values)  # NaN comes last
    if math.isnan(ordered[-1]):
        return math.nan, math.nan
    low, high = (_at(ordered, share) for share in (tail, 1 - tail))
    return low, high


def _at(ordered: NDArray[np.float64], share: float) -> float:
    place = share * len(ordered) + (1 - share)  # counted from 1
    before, beyond = int(place), place % 1
    after = min(before + 1, len(ordered))
    return float((1 - beyond) * ordered[before - 1] + beyond * ordered[after - 1])
