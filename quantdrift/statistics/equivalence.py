"""Is the second system no worse than the first, by some margin or more?

Not seeing a difference shows neither. These tests turn the question around: the hypothesis is that
the second system *is* worse by the margin or more, and a small p-value speaks against that.

Both kinds of test rest on a normal approximation, which fails where hardly any input differs: three
inputs without a difference have no variance, and no variance would "prove" anything. There a bound
without any assumption takes over. If the mean is worse by m or more, and one input can be worse by
at most the span of the metric, then at least m / span of all inputs are worse; so seeing k worse
ones of n is at most as likely as for a binomial variable of that share. That p-value is the least
alpha at which the Clopper-Pearson upper bound of the share, times the span, lies below the margin.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any, Literal

from numpy.typing import NDArray

from quantdrift.errors import QuantDriftError
from quantdrift.statistics.binomial import at_most
from quantdrift.statistics.bounded_mean import FEW, mean_below
from quantdrift.statistics.paired import differences, discordant
from quantdrift.statistics.tango import tango_z

__all__ = [
    "Better",
    "mean_no_worse",
    "rate_no_worse",
]

Better = Literal["lower", "higher"]
"""Which way is better; worse is the other way."""

Values = NDArray[Any]


def rate_no_worse(a: Values, b: Values, *, margin: float, better: Better) -> float:
    """One-sided p-value of "the second rate is worse by the margin or more".

    Tango's score test; and where fewer than 10 inputs differ, or all that differ are worse, the
    larger of its p-value and that of the bound above. (In the latter case, a sparse binomial one,
    the score test alone rejects a true hypothesis in up to 6.8 % of cases at alpha = 5 %.)

    Args:
        a: bool, or 0 and 1, [n_inputs].
        b: likewise, the same inputs.
        margin: smallest difference that matters, in units of the rate (0.02: 2 percentage points).
        better: which way is better.

    Returns:
        From 0 to 1; below alpha, the second is shown to be worse by less than the margin.

    Raises:
        QuantDriftError: values are not 0 and 1, or the margin is not between 0 and 1.
    """
    _check(margin, span=1)
    only_a, only_b, n = discordant(a, b)
    worse, improved = (only_b, only_a) if better == "lower" else (only_a, only_b)
    p_value = NormalDist().cdf(tango_z(worse, improved, n, margin))
    if worse + improved < FEW or not improved:
        return max(p_value, float(at_most(worse, n, margin)))
    return p_value


def mean_no_worse(
    a: Values, b: Values, *, margin: float, better: Better, span: float
) -> float | None:
    """One-sided p-value of "the second mean is worse by the margin or more".

    A paired t-test on the differences and a few more, as bad as can be (`bounded_mean.mean_below`).
    These stand for the rare large losses which a sample need not show. How many it takes depends on
    the level: with one, the test rejects a true hypothesis in up to 7 % of cases at 5 %, but in
    2.7 % at 5 % / 8, which Holm's method asks for (many small gains, few large losses). So
    ceil(-ln(alpha) / 2) are added. Where fewer than 10 inputs differ, the bound above takes the
    place of the t-test.

    Args:
        a: float [n_inputs], finite.
        b: likewise, the same inputs.
        margin: smallest difference that matters, in the unit of the values.
        better: which way is better.
        span: greatest possible difference of two values; infinite if there is none, and then there
            is neither a bound nor a worst difference to add.

    Returns:
        From 0 to 1; None if nothing bounds a difference, and too few inputs differ, or all alike.

    Raises:
        QuantDriftError: not one finite value per input and system, or the margin is not between 0
            and the span.
    """
    _check(margin, span=span)
    harm = differences(a, b) if better == "lower" else differences(b, a)
    return mean_below(harm, margin, worst=span)


def _check(margin: float, *, span: float) -> None:
    if not 0 < margin < span:
        raise QuantDriftError(
            f"a margin lies above 0 and below the greatest difference there can be ({span:g}); "
            f"got {margin:g}. For 2 percentage points of a rate give 0.02"
        )
