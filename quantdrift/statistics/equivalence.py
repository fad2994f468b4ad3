"""Is the second system no worse than the first, by some margin or more? Are the two equivalent?

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

import math
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import QuantDriftError
from quantdrift.statistics.paired import differences, discordant
from quantdrift.statistics.tango import tango_z

__all__ = [
    "FEW",
    "Better",
    "mean_equivalent",
    "mean_no_worse",
    "rate_equivalent",
    "rate_no_worse",
    "worst_added",
]

Better = Literal["lower", "higher"]
"""Which way is better; worse is the other way."""

_PER_WORST = 2.0
_MOST_ADDED = 30  # at an alpha of exp(-60) nobody asks on

FEW = 10
"""With fewer inputs that differ than this, no normal approximation is used."""

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
        return max(p_value, _bound(worse, n, margin))
    return p_value


def mean_no_worse(
    a: Values, b: Values, *, margin: float, better: Better, span: float
) -> float | None:
    """One-sided p-value of "the second mean is worse by the margin or more".

    A paired t-test on the differences and a few more, as bad as can be. These stand for the rare
    large losses which a sample need not show. How many it takes depends on the level: with one,
    the test rejects a true hypothesis in up to 7 % of cases at 5 %, but in 2.7 % at 5 % / 8, which
    Holm's method asks for (many small gains, few large losses). So ceil(-ln(alpha) / 2) are
    added (`worst_added`), with which no such case was found above its alpha, from 5 % to 0.1 %; for
    large n they have no weight. The p-value is the least alpha at which the test rejects. Where
    fewer than 10 inputs differ, the bound above takes the place of the t-test.

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
    from scipy.stats import ttest_1samp  # noqa: PLC0415 -- scipy.stats takes long to import

    _check(margin, span=span)
    harm = differences(a, b) if better == "lower" else differences(b, a)
    if int((harm != 0).sum()) < FEW:
        return None if math.isinf(span) else _bound(int((harm > 0).sum()), len(harm), margin / span)
    if math.isinf(span):
        return (
            None
            if np.ptp(harm) == 0
            else float(ttest_1samp(harm, margin, alternative="less").pvalue)
        )
    if (harm == span).all():  # every input is as bad as can be: no variance, so no t
        return 1.0
    ordered, least = np.sort(harm), 0.0
    for added in range(1, _MOST_ADDED + 1):
        values = np.concatenate([ordered, np.full(added, span)])
        p_value = float(ttest_1samp(values, margin, alternative="less").pvalue)
        least = math.exp(-_PER_WORST * added)  # from this alpha on, so many are added
        if p_value >= least:
            return min(p_value, math.exp(-_PER_WORST * (added - 1)))
    return least


def worst_added(alpha: float) -> int:
    """How many differences as bad as can be `mean_no_worse` adds at a level: ceil(-ln(alpha) / 2).

    >>> [worst_added(alpha) for alpha in (0.2, 0.05, 0.05 / 8, 0.001)]
    [1, 2, 3, 4]
    """
    return max(1, math.ceil(-math.log(alpha) / _PER_WORST))


def rate_equivalent(a: Values, b: Values, *, margin: float) -> float:
    """p-value of "the rates differ by the margin or more": two one-sided tests, the larger p.

    Args:
        a: bool, or 0 and 1, [n_inputs].
        b: likewise, the same inputs.
        margin: smallest difference that matters, either way.

    Raises:
        QuantDriftError: as `rate_no_worse`.
    """
    return max(
        rate_no_worse(a, b, margin=margin, better="lower"),
        rate_no_worse(a, b, margin=margin, better="higher"),
    )


def mean_equivalent(a: Values, b: Values, *, margin: float, span: float) -> float | None:
    """p-value of "the means differ by the margin or more": two one-sided tests, the larger p.

    Args:
        a: float [n_inputs], finite.
        b: likewise, the same inputs.
        margin: smallest difference that matters, either way.
        span: as for `mean_no_worse`.

    Returns:
        None where `mean_no_worse` has no value.

    Raises:
        QuantDriftError: as `mean_no_worse`.
    """
    one = mean_no_worse(a, b, margin=margin, better="lower", span=span)
    other = mean_no_worse(a, b, margin=margin, better="higher", span=span)
    return None if one is None or other is None else max(one, other)


def _bound(worse: int, n: int, share: float) -> float:
    """How likely as few as these are worse, if at least this share of all inputs is."""
    from scipy.stats import binom  # noqa: PLC0415 -- scipy.stats takes long to import

    return float(binom.cdf(worse, n, share))


def _check(margin: float, *, span: float) -> None:
    if not 0 < margin < span:
        raise QuantDriftError(
            f"a margin lies above 0 and below the greatest difference there can be ({span:g}); "
            f"got {margin:g}. For 2 percentage points of a rate give 0.02"
        )
