"""Is a share of events, or a mean, shown to be below a limit, or above it?

Each function returns two one-sided p-values, of "at least the limit" and of "at most the limit".
A small one of the first shows the value to be below the limit, one of the second, above it. With
few inputs, neither is small.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import QuantDriftError
from quantdrift.statistics.binomial import at_least, at_most
from quantdrift.statistics.bounded_mean import mean_below

__all__ = ["mean_limit_shown", "rate_limit_shown"]

_ROUNDING = 1e-9
"""A value out of its range by no more than that is taken for the end of the range."""

Values = NDArray[Any]


def rate_limit_shown(values: Values, limit: float) -> tuple[float, float]:
    """One-sided p-values of a share of events against a limit: the exact binomial test.

    P(X <= x) and P(X >= x) with x events seen, X binomial of all inputs, the limit its share.
    The first is the least alpha at which the Clopper-Pearson upper bound lies below the limit, and
    the second that at which the lower bound lies above it.

    Args:
        values: bool, or 0 and 1, [n_inputs]; 1 where the event is.
        limit: from 0 to 1.

    Returns:
        (below, above), each from 0 to 1: below alpha, the share is shown to be below the limit, or
        above it. They come to 1 or more; the chance of exactly x events counts in both.

    Raises:
        QuantDriftError: no value, one that is neither 0 nor 1, or a limit that is no share.

    Source: C. J. Clopper and E. S. Pearson, The use of confidence or fiducial limits illustrated in
    the case of the binomial, Biometrika 26 (1934), 404-413.
    """
    outcomes = _checked(values, limit, low=0, high=1)
    if not np.isin(outcomes, (0, 1)).all():
        raise QuantDriftError("a rate needs values of 0 and 1; for others test the mean")
    events, n = int(outcomes.sum()), len(outcomes)
    return float(at_most(events, n, limit)), float(at_least(events, n, limit))


def mean_limit_shown(
    values: Values, limit: float, *, low: float, high: float
) -> tuple[float, float]:
    """One-sided p-values of the mean of bounded values against a limit.

    A t-test on the values and a few more, as bad for what is to be shown as can be: `high` ones for
    "below", `low` ones for "above", ceil(-ln(alpha) / 2) of them (`bounded_mean.mean_below`). Where
    fewer than 10 values are other than the best possible (`low` for "below", `high` for "above"), a
    bound takes over: as few are, P(X <= k), X binomial of all inputs with the share that a mean at
    the limit needs at least, (limit - low) / (high - low) or (high - limit) / (high - low). It is
    that of `mean_no_worse` against a system that always has the best possible value, by a margin of
    the distance from there to the limit.

    Without a worst value there is none to add, and the t-test is the plain one, which a sample
    without any of the rare large values deceives. Without a best or a worst one there is no bound.

    Args:
        values: float [n_inputs], finite, from low to high.
        limit: from low to high.
        low: the least that a value can be; -inf if there is no such.
        high: the largest; inf if there is no such.

    Returns:
        (below, above), each from 0 to 1: below alpha, the mean is shown to be below the limit, or
        above it. NaN where the bound would take over and there is none; without a best value, where
        fewer than 10 values are other than the most common one.

    Raises:
        QuantDriftError: no value, one that is not finite or out of its range, or such a limit.
    """
    outcomes = _checked(values, limit, low=low, high=high)
    below = _below(outcomes, limit, best=low, worst=high)
    # the same with the scale turned round
    above = _below(-outcomes, -limit, best=-high, worst=-low)
    return below, above


def _below(values: NDArray[np.float64], limit: float, *, best: float, worst: float) -> float:
    if limit == best:  # no mean is below it
        return 1.0
    if limit == worst:  # every mean is, except that of values that are all the worst
        return float((values == worst).all())
    p_value = mean_below(values, limit, usual=best, worst=worst)
    return math.nan if p_value is None else p_value


def _checked(values: Values, limit: float, *, low: float, high: float) -> NDArray[np.float64]:
    outcomes = np.asarray(values, dtype=np.float64)
    if outcomes.ndim != 1 or not len(outcomes):
        raise QuantDriftError(
            f"a limit needs one value per input, at least one; got shape {outcomes.shape}"
        )
    if not np.isfinite(outcomes).all():
        raise QuantDriftError("a limit needs finite values; leave out the inputs without one")
    inside = np.clip(outcomes, low, high)
    if not np.allclose(inside, outcomes, rtol=_ROUNDING, atol=_ROUNDING):
        raise QuantDriftError(
            f"values from {low:g} to {high:g} are expected; got {outcomes.min():g} to "
            f"{outcomes.max():g}"
        )
    if not (low <= limit <= high and math.isfinite(limit)):
        raise QuantDriftError(
            f"a limit lies from {low:g} to {high:g}, where the values do; got {limit:g}. For 5 % "
            "of a rate give 0.05"
        )
    return inside
