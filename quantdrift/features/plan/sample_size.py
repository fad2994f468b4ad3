"""How many inputs a test needs before it is made, and what the inputs there are can show.

`quantdrift.statistics.verdicts` has the numbers for "no worse by a margin". Here are those for "worse", for a limit,
and the way back: from a number of inputs to the smallest margin. All take the spread of a pilot. What they have in
common, the number of inputs that a test needs beside the number there are, is the resolution of a paired evaluation:
A. Kotawala, Resolution Diagnostics for Paired LLM Evaluation, arXiv 2605.30315 (2026).
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from quantdrift.statistics.estimates import at_least, at_most, lower_quantile, upper_quantile
from quantdrift.statistics.verdicts import POWER, Spread

MOST = 10**9
"""Inputs that nobody has; a test that takes more is taken for one that cannot be made."""
_TAIL = 1e-10
"""Chance of numbers of discordant inputs that are left out of a sum."""


def power_of_mcnemar(n: int, share: float, difference: float, *, alpha: float) -> float:
    """The chance that McNemar's exact one-sided test shows a rate that is worse.

    Of n inputs D ~ B(n, share) are discordant, and of these W ~ B(D, (share + difference) / (2 share)) worse. The sum
    over D of P(D) P(W >= w(D)), with w(D) the fewest worse inputs at which P(B(D, 1/2) >= w) <= alpha.

    Args:
        n: inputs.
        share: of them that are discordant, above 0.
        difference: true difference of the rates, from 0 to the share.
        alpha: one-sided level.

    Source: R. J. Connor, Sample size for testing differences in proportions for the paired-sample design, Biometrics
    43 (1987), 207-211, for the model; the sum is exact.
    """
    first, last = lower_quantile(_TAIL, n, share), upper_quantile(_TAIL, n, share)
    discordant = np.arange(first, last + 1, dtype=np.int64)
    chance = at_most(discordant, n, share) - at_most(discordant - 1, n, share)
    worse = min(1.0, (share + difference) / (2 * share))
    return float((chance * at_least(_critical(discordant, alpha), discordant, worse)).sum())


def _critical(discordant: NDArray[np.int64], alpha: float) -> NDArray[np.int64]:
    """The least w with P(B(d, 1/2) >= w) <= alpha, of every d; d + 1 where there is none."""
    low, high = np.zeros_like(discordant), discordant + 1  # at d + 1 the chance is 0
    while (low < high).any():
        middle = (low + high) // 2
        shown = (middle > discordant) | (at_least(middle, discordant, 0.5) <= alpha)
        low, high = np.where(shown, low, middle + 1), np.where(shown, middle, high)
    return high


def inputs_to_show_worse(spread: Spread, *, difference: float, alpha: float, power: float = POWER, rate: bool) -> int:
    """Inputs with which something is shown to be worse, if it truly is by a difference.

    n = (z(1 - alpha) sqrt(m) + z(power) sqrt(m - difference^2))^2 / difference^2 with the mean square m of an input's
    difference, which for a rate is the discordance rate; it is no less than a true difference makes it. For a rate n
    is then the number at which McNemar's exact test has the power, and for a mean no less than lets a randomization
    test reject at all.

    Args:
        spread: of the differences if there is none in truth.
        difference: the true one, above 0.
        alpha: one-sided level.
        power: probability to show it.
        rate: whether values are 0 and 1.

    Source: R. J. Connor, Biometrics 43 (1987), 207-211.
    """
    z_alpha, z_power = NormalDist().inv_cdf(1 - alpha), NormalDist().inv_cdf(power)
    least = difference if rate else difference * difference
    square = max(spread.mean_square, least)
    rest = math.sqrt(max(0.0, square - difference**2))
    n = max(1, math.ceil(((z_alpha * math.sqrt(square) + z_power * rest) / difference) ** 2))
    if not rate:
        share = max(spread.share, 1 / MOST)
        return max(n, math.ceil(math.log2(1 / alpha) / share))
    return _first(lambda n: power_of_mcnemar(n, min(1.0, square), difference, alpha=alpha) >= power, around=n)


def inputs_for_limit(value: float, sd: float, *, margin: float, power: float = POWER, rate: bool) -> int:
    """Inputs with which an observed value falls on the right side of a limit, if the true one is a margin away.

    Of a rate the exact number: the least n with P(B(n, value - margin) <= n value) >= power and P(B(n, value +
    margin) > n value) >= power; a side beyond 0 or 1 needs none. Of a mean (z(power) sd / margin)^2.

    Args:
        value: the limit.
        sd: standard deviation of one input's value; not looked at for a rate.
        margin: how far from the limit the true value lies.
        power: probability to be on the right side.
        rate: whether values are 0 and 1.
    """
    z = NormalDist().inv_cdf(power)
    if not rate:
        return max(2, math.ceil((z * sd / margin) ** 2))

    def enough(n: int) -> bool:
        most = math.floor(n * value + 1e-9)
        below = value < margin or float(at_most(most, n, value - margin)) >= power
        return below and (value + margin > 1 or float(at_least(most + 1, n, min(1.0, value + margin))) >= power)

    return _first(enough, around=math.ceil((z / margin) ** 2 / 4))


def smallest_margin(inputs: Callable[[float], int], n: int, *, span: float) -> float | None:
    """The smallest margin that takes at most n inputs; None if none below the span does.

    Args:
        inputs: how many a margin takes; falls as the margin rises.
        n: how many there are.
        span: greatest margin; may be infinite.
    """
    high = span
    if math.isinf(span):
        high = 1.0
        while inputs(high) > n and high < MOST:
            high *= 2
    low, high = 0.0, high * (1 - 1e-9)
    if n < 1 or inputs(high) > n:
        return None
    while high - low >= 1e-6 * high and high > 1 / MOST:
        middle = (low + high) / 2
        low, high = (low, middle) if inputs(middle) <= n else (middle, high)
    return high


def _first(enough: Callable[[int], bool], *, around: int) -> int:
    """The number from which on there are enough; a number near the least one, as a chance of whole numbers wobbles."""
    high = max(around, 1)
    while not enough(high) and high < MOST:
        high *= 2
    low = high
    while low > 1 and enough(low):
        low //= 2
    return low + bisect_left(range(low, high), True, key=enough)
