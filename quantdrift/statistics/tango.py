"""Tango's score test and interval for the difference of two paired rates.

With x inputs on which only the second of two systems has the event, y on which only the first has
it, and n inputs in all, the score statistic of a difference d of the rates is

    z(d) = (x - y - n d) / sqrt(n (2 q + d (1 - d)))

where q is the most likely probability of "only the first" if the difference is d.

Source: T. Tango, Equivalence test and confidence interval for the difference in proportions for the
paired-sample design, Statistics in Medicine 17 (1998), 891-908. At d = 0 the square of z is
McNemar's statistic (without continuity correction).
"""

from __future__ import annotations

import math
from statistics import NormalDist

__all__ = ["tango_interval", "tango_variance", "tango_z"]

_EXACT = 1e-14
"""Ends of the interval are found to within this."""


def tango_z(only_second: int, only_first: int, n: int, difference: float) -> float:
    """The score statistic; falls as the difference rises.

    Args:
        only_second: inputs on which only the second system has the event.
        only_first: inputs on which only the first has it.
        n: all inputs.
        difference: second rate minus first rate under the hypothesis, from -1 to 1.

    Returns:
        Standard normal under the hypothesis, for large n; 0 where hypothesis and data leave no
        doubt and agree, infinite where they leave none and disagree.
    """
    if difference < 0:  # one case is enough, and both directions mirror each other to the last bit
        return -tango_z(only_first, only_second, n, -difference)
    excess = only_second - only_first - n * difference
    variance = n * tango_variance(only_second, only_first, n, difference)
    if variance <= 0:
        return math.copysign(math.inf, excess) if excess else 0.0
    return excess / math.sqrt(variance)


def tango_variance(only_second: float, only_first: float, n: float, difference: float) -> float:
    """Variance of one input's difference under the hypothesis.

    Args:
        only_second: inputs on which only the second system has the event.
        only_first: inputs on which only the first has it.
        n: all inputs.
        difference: second rate minus first rate under the hypothesis, from 0 to 1.
    """
    a = 2 * n
    b = (2 * n - only_second + only_first) * difference - only_second - only_first
    c = -only_first * difference * (1 - difference)
    root = math.sqrt(max(0.0, b * b - 4 * a * c))
    # the larger root of a q^2 + b q + c, by the form that subtracts no nearly equal numbers
    q = (root - b) / (2 * a) if b <= 0 else -2 * c / (b + root)
    return 2 * q + difference * (1 - difference)


def tango_interval(
    only_second: int, only_first: int, n: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """The differences that the two-sided score test does not reject.

    Args:
        only_second: inputs on which only the second system has the event.
        only_first: inputs on which only the first has it.
        n: all inputs, at least one.
        confidence: of the interval, between 0 and 1.

    Returns:
        Lower and upper end, from -1 to 1. Also without any discordant input the interval has a
        width: (-w, w) with w = z^2 / (n + z^2), as Wilson's interval of none of n.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    low = -_upper(only_first, only_second, n, z)
    return low, _upper(only_second, only_first, n, z)


def _upper(only_second: int, only_first: int, n: int, z: float) -> float:
    """Where the statistic falls to -z."""
    if only_second == n:
        return 1.0
    # these two have no variance at the estimate, where the search would begin; they have formulas
    if only_second == only_first == 0:
        return z * z / (n + z * z)
    if only_first == n:
        return (z * z - n) / (n + z * z)

    def beyond(difference: float) -> float:
        excess = only_second - only_first - n * difference
        if difference >= 0:
            variance = tango_variance(only_second, only_first, n, difference)
        else:
            variance = tango_variance(only_first, only_second, n, -difference)
        return excess + z * math.sqrt(max(0.0, n * variance))

    low, high = (only_second - only_first) / n, 1.0
    while high - low > _EXACT:
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) > 0 else (low, middle)
    return (low + high) / 2
