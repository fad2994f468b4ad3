"""The binomial distribution: tails and quantiles.

X counts the events among n independent inputs of which each has one with probability `share`. The
tails are regularized incomplete beta functions. `scipy.stats` has all of this, but takes half a
second to import; and `scipy.special.bdtr` loses digits as n grows (1e-10 at n = 100,000).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["at_least", "at_most", "lower_quantile", "upper_quantile"]

Counts = int | NDArray[Any]
Probabilities = NDArray[np.float64]


def at_most(count: Counts, n: Counts, share: float) -> Probabilities:
    """P(X <= count) = 1 - I_share(count + 1, n - count).

    Args:
        count: integers, any shape; below 0 and above n are allowed.
        n: inputs, at least 1, of a shape that goes with it.
        share: probability of the event, from 0 to 1.

    Returns:
        float64, from 0 to 1, of the common shape.
    """
    from scipy.special import betaincc  # noqa: PLC0415 -- scipy takes long to import

    inside = betaincc(np.maximum(count, 0) + 1.0, np.maximum(np.subtract(n, count), 1.0), share)
    return np.where(np.less(count, 0), 0.0, np.where(np.greater_equal(count, n), 1.0, inside))


def at_least(count: Counts, n: Counts, share: float) -> Probabilities:
    """P(X >= count) = I_share(count, n - count + 1).

    Args:
        count: integers, any shape; below 0 and above n are allowed.
        n: inputs, at least 1, of a shape that goes with it.
        share: probability of the event, from 0 to 1.

    Returns:
        float64, from 0 to 1, of the common shape; to full precision where it is tiny.
    """
    from scipy.special import betainc  # noqa: PLC0415 -- scipy takes long to import

    inside = betainc(np.maximum(count, 1.0), np.maximum(np.subtract(n, count), 0) + 1.0, share)
    return np.where(np.less_equal(count, 0), 1.0, np.where(np.greater(count, n), 0.0, inside))


def lower_quantile(level: float, n: int, share: float) -> int:
    """The least k with P(X <= k) >= level.

    Args:
        level: between 0 and 1.
        n: inputs, at least 1.
        share: probability of the event, from 0 to 1.

    Returns:
        From 0 to n.
    """
    return bisect_left(range(n), True, key=lambda k: bool(at_most(k, n, share) >= level))


def upper_quantile(level: float, n: int, share: float) -> int:
    """The least k with P(X > k) <= level.

    Args:
        level: between 0 and 1.
        n: inputs, at least 1.
        share: probability of the event, from 0 to 1.

    Returns:
        From 0 to n.
    """
    return bisect_left(range(n), True, key=lambda k: bool(at_least(k + 1, n, share) <= level))
