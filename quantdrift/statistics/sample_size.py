"""How many inputs it takes to show that a system is no worse, if it is exactly as good.

The numbers are for the tests of `quantdrift.statistics.equivalence`, on which of the two parts of
each test decides: the normal approximation, or, where few inputs differ, the bound.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import QuantDriftError
from quantdrift.statistics.binomial import at_most, lower_quantile
from quantdrift.statistics.bounded_mean import worst_added
from quantdrift.statistics.tango import tango_variance

__all__ = ["POWER", "Spread", "inputs_for_mean", "inputs_for_rate", "shrunken_spread"]

POWER = 0.8

ENOUGH = 15
"""Expected inputs that differ with which 10 or more do in 93 % of samples: the normal
approximation decides then (`bounded_mean.FEW`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How much two systems differ from input to input.

    Attributes:
        share: of the inputs that differ; of a rate, the discordance rate.
        mean_square: of all differences, those of 0 included.
    """

    share: float
    mean_square: float


def shrunken_spread(differences: NDArray[Any], *, span: float) -> Spread | None:
    """The spread of some differences, never estimated from nothing.

    Few inputs without a difference do not show that none differs. So two inputs that differ and two
    that do not are added to those seen: the share is (d + 2) / (n + 4) if d of n differ (the centre
    of the Agresti-Coull interval). An added difference has the mean square of those seen, where one
    of the full span is counted among them.

    Args:
        differences: float [n_inputs].
        span: greatest possible difference; if infinite, none of that size is counted.

    Returns:
        None if there is no difference to learn from, and no span either.
    """
    squares = np.square(differences[differences != 0], dtype=np.float64)
    prior = [span * span] if math.isfinite(span) else []
    if not len(squares) and not prior:
        return None
    total, n = float(np.sort(squares).sum()), len(differences) + 4
    typical = (total + sum(prior)) / (len(squares) + len(prior))
    return Spread(share=(len(squares) + 2) / n, mean_square=(total + 2 * typical) / n)


def inputs_for_rate(
    share: float, *, margin: float, alpha: float = 0.05, power: float = POWER
) -> int:
    """Inputs with which a rate is shown to be no worse, at a true difference of 0.

    n = (z(1 - alpha) sqrt(v) + z(power) sqrt(share))^2 / margin^2, with normal quantiles z and the
    variance v that one difference has under the hypothesis. For a margin much smaller than the
    discordance rate v is that rate, and this is (z(1 - alpha) + z(power))^2 share / margin^2. Where
    fewer than 15 inputs would then differ, as many as the bound needs, or as let 15 differ.

    Args:
        share: the discordance rate.
        margin: smallest difference that matters.
        alpha: one-sided level.
        power: probability to show it.

    Raises:
        QuantDriftError: alpha, power or margin is out of its range.

    Source: J. Nam, Establishing equivalence of two treatments and sample size requirements in
    matched-pairs design, Biometrics 53 (1997), 1422-1430.
    """
    z_alpha, z_power = _quantiles(alpha, power, margin, span=1)
    large = 1e9  # the variance at the expected counts of a sample so large that they are exact
    under = tango_variance(share / 2 * large, share / 2 * large, large, margin)
    n = ((z_alpha * math.sqrt(under) + z_power * math.sqrt(share)) / margin) ** 2
    return _with_few(n, share, worse=margin, alpha=alpha, power=power)


def inputs_for_mean(
    spread: Spread, *, margin: float, span: float, alpha: float = 0.05, power: float = POWER
) -> int:
    """Inputs with which a mean is shown to be no worse, at a true difference of 0.

    With z = z(1 - alpha) + z(power), z^2 mean_square / margin^2 for a plain t-test. The test here
    adds k differences as bad as can be (`bounded_mean.worst_added`), so that n solves

        n margin - k span = z sqrt(n mean_square + k span^2)

    Where fewer than 15 inputs would then differ, as for a rate.

    Args:
        spread: of the differences.
        margin: smallest difference that matters.
        span: greatest possible difference; may be infinite.
        alpha: one-sided level.
        power: probability to show it.

    Raises:
        QuantDriftError: alpha, power or margin is out of its range.
    """
    z = sum(_quantiles(alpha, power, margin, span=span))
    worst, k = (span, worst_added(alpha)) if math.isfinite(span) else (0.0, 1)
    # the quadratic equation that squaring the one above gives
    half = margin * k * worst + z * z * spread.mean_square / 2
    root = math.sqrt(max(0.0, half * half + (margin * worst) ** 2 * k * (z * z - k)))
    n = (half + root) / margin**2
    return _with_few(n, spread.share, worse=margin / span, alpha=alpha, power=power)


def _quantiles(alpha: float, power: float, margin: float, *, span: float) -> tuple[float, float]:
    if not (0 < alpha < power < 1 and 0 < margin < span):
        raise QuantDriftError(
            "a sample size needs 0 < alpha < power < 1 and a margin above 0 and below "
            f"{span:g}; got alpha {alpha:g}, power {power:g}, margin {margin:g}"
        )
    normal = NormalDist()
    return normal.inv_cdf(1 - alpha), normal.inv_cdf(power)


def _with_few(n: float, share: float, *, worse: float, alpha: float, power: float) -> int:
    """At least as many as let 15 inputs differ, or as the bound needs, whichever are fewer.

    Args:
        n: what the normal approximation asks for.
        share: of the inputs that differ, half of them for the worse.
        worse: share of the inputs that are worse under the hypothesis, at least; 0 for no bound.
        alpha: one-sided level.
        power: probability to show it.
    """
    least = max(2, math.ceil(n))
    enough = math.ceil(ENOUGH / share) if share else 10**6
    if least >= enough:
        return least
    if not worse:
        return enough
    first = max(least, math.ceil(math.log(alpha) / math.log1p(-worse)))
    last = max(first, enough)
    while first <= last:
        # as many worse inputs as there are at most with the power asked for
        most = lower_quantile(power, first, share / 2)
        # from `more` on it is one more of them; until then p falls as the number of inputs rises
        more = first + bisect_left(
            range(first, last + 1), True, key=lambda n: bool(at_most(most, n, share / 2) < power)
        )
        shown = first + bisect_left(
            range(first, more), True, key=lambda n: bool(at_most(most, n, worse) <= alpha)
        )
        if shown < more:
            return shown
        first = more
    return max(least, enough)
