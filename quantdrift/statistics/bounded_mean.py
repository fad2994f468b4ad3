"""Is the mean of some values below a limit? A t-test that rare large values do not deceive.

The t-test on paired differences (`mean_no_worse`) rests on a normal approximation, which a sample
without any of the rare large values would deceive. So a few values as large as can be are added to
those seen; and where nearly all are zero, a bound without any assumption takes over.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from quantdrift.statistics.binomial import at_most

__all__ = ["FEW", "mean_below", "worst_added"]

_PER_WORST = 2.0
_MOST_ADDED = 30  # at an alpha of exp(-60) nobody asks on

FEW = 10
"""With fewer inputs that differ than this, no normal approximation is used."""


def mean_below(values: NDArray[np.float64], limit: float, *, worst: float) -> float | None:
    """One-sided p-value of "the mean is the limit or more".

    A t-test on the values and a few more, as large as can be. How many it takes depends on the
    level: with ceil(-ln(alpha) / 2) (`worst_added`) no case was found in which a true hypothesis is
    rejected more often than alpha, from 5 % to 0.1 %; for large n they have no weight. The p-value
    is the least alpha at which the test rejects.

    Where fewer than 10 values are other than zero, it is the chance that as few lie above that. If
    the mean is the limit, at least limit / worst of all inputs do, and their number is a binomial
    variable.

    Args:
        values: float64 [n_inputs], finite, at least one, none above the worst.
        limit: above zero and below the worst.
        worst: the largest that a value can be; inf if there is no such, and then it is the t-test
            alone, and no bound.

    Returns:
        From 0 to 1; None if the bound is asked for and there is none, or all are alike and none is
        added.
    """
    if np.count_nonzero(values) < FEW:
        if math.isinf(worst):
            return None
        return float(at_most(int((values > 0).sum()), len(values), limit / worst))
    if math.isinf(worst):
        return None if np.ptp(values) == 0 else _t_test(values, limit)
    if (values == worst).all():  # every input is as bad as can be: no variance, so no t
        return 1.0
    ordered, least = np.sort(values), 0.0
    for added in range(1, _MOST_ADDED + 1):
        p_value = _t_test(np.concatenate([ordered, np.full(added, worst)]), limit)
        least = math.exp(-_PER_WORST * added)  # from this alpha on, so many are added
        if p_value >= least:
            return min(p_value, math.exp(-_PER_WORST * (added - 1)))
    return least


def worst_added(alpha: float) -> int:
    """How many values as bad as can be `mean_below` adds at a level: ceil(-ln(alpha) / 2).

    >>> [worst_added(alpha) for alpha in (0.2, 0.05, 0.05 / 8, 0.001)]
    [1, 2, 3, 4]
    """
    return max(1, math.ceil(-math.log(alpha) / _PER_WORST))


def _t_test(values: NDArray[np.float64], limit: float) -> float:
    """One-sided p-value of "the mean is the limit or more", of values that are not all alike."""
    from scipy.special import stdtr  # noqa: PLC0415 -- scipy takes long to import

    n = len(values)
    t = (values.mean() - limit) / math.sqrt(values.var(ddof=1) / n)
    return float(stdtr(n - 1, t))
