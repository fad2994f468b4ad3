"""Two systems on the same inputs: is there a difference, and how large is it?

Every function takes one value per input and system, in the same order, and looks at second minus
first. None assumes that values are normal; the inputs are taken as independent draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import QuantDriftError
from quantdrift.statistics.binomial import at_most
from quantdrift.statistics.estimates import (
    CONFIDENCE,
    Estimate,
    mean_estimate,
)
from quantdrift.statistics.sign_changes import sign_change_tails
from quantdrift.statistics.tango import tango_interval

__all__ = [
    "McNemar",
    "differences",
    "discordant",
    "mcnemar_exact",
    "oriented",
    "paired_mean_difference",
    "paired_rate_difference",
    "randomization_test",
]

Values = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class McNemar:
    """The exact McNemar test of two paired rates.

    Attributes:
        only_a: inputs on which only the first system has the event.
        only_b: inputs on which only the second has it.
        n: all inputs.
        p_value: two-sided, of the hypothesis that the two rates are the same.
    """

    only_a: int
    only_b: int
    n: int
    p_value: float


def differences(a: Values, b: Values) -> NDArray[np.float64]:
    """Second minus first, float64 [n_inputs].

    Raises:
        QuantDriftError: not one value per input and system, or one is missing or infinite.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.ndim != 1 or first.shape != second.shape or not len(first):
        raise QuantDriftError(
            "a paired comparison needs one value per input from either system; got shapes "
            f"{first.shape} and {second.shape}"
        )
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise QuantDriftError(
            "a paired comparison needs finite values; leave out the inputs without one"
        )
    return second - first


def discordant(a: Values, b: Values) -> tuple[int, int, int]:
    """Inputs with the event in the first only, in the second only, and all inputs.

    Args:
        a: bool, or 0 and 1, [n_inputs].
        b: likewise, the same inputs.

    Raises:
        QuantDriftError: as `differences`, or a value is neither 0 nor 1.
    """
    step = differences(a, b)
    if not all(np.isin(values, (0, 1)).all() for values in (a, b)):
        raise QuantDriftError("a rate needs values of 0 and 1; for others compare means")
    return int((step < 0).sum()), int((step > 0).sum()), len(step)


def mcnemar_exact(a: Values, b: Values) -> McNemar:
    """Whether two paired rates differ: a fair coin for every input on which the systems disagree.

    min(1, 2 P(X <= k)) with k the fewer of the two kinds of such inputs, X binomial of all of them.

    Args:
        a: bool, or 0 and 1, [n_inputs].
        b: likewise, the same inputs.

    Returns:
        The counts and the two-sided p-value; 1 if the systems agree everywhere.

    Raises:
        QuantDriftError: as `discordant`.
    """
    only_a, only_b, n = discordant(a, b)
    tail = float(at_most(min(only_a, only_b), only_a + only_b, 0.5)) if only_a + only_b else 1.0
    return McNemar(only_a=only_a, only_b=only_b, n=n, p_value=min(1.0, 2 * tail))


def paired_rate_difference(a: Values, b: Values, *, confidence: float = CONFIDENCE) -> Estimate:
    """rate(b) - rate(a) with Tango's score interval, from -1 to 1.

    Args:
        a: bool, or 0 and 1, [n_inputs].
        b: likewise, the same inputs.
        confidence: of the interval.

    Raises:
        QuantDriftError: as `discordant`.
    """
    only_a, only_b, n = discordant(a, b)
    low, high = tango_interval(only_b, only_a, n, confidence=confidence)
    return Estimate(value=(only_b - only_a) / n, low=low, high=high, n=n)


def paired_mean_difference(a: Values, b: Values, *, seed: int = 0) -> Estimate:
    """mean(b) - mean(a) with a seeded percentile bootstrap interval; inputs are resampled.

    Exchanging the two systems mirrors value and interval. Where no input differs the interval is a
    point, which says nothing on other inputs: see `mean_no_worse` for what can be claimed then.

    Args:
        a: float [n_inputs], finite.
        b: likewise, the same inputs.
        seed: of the resampling.

    Raises:
        QuantDriftError: as `differences`.
    """
    step, mirrored = oriented(differences(a, b))
    estimate = mean_estimate(step, seed=seed)
    return _mirror(estimate) if mirrored else estimate


def randomization_test(a: Values, b: Values, *, seed: int = 0) -> float:
    """Fisher's randomization test: the two-sided p-value of "the two systems are exchangeable".

    If they are, each difference could as well have the other sign. Twice the smaller tail of the
    sum (`sign_change_tails`): exact (all changes of sign are tried) with up to 13 inputs that
    differ; else 9,999 are drawn, and the least p-value is 0.0002.

    Args:
        a: float [n_inputs], finite.
        b: likewise, the same inputs.
        seed: of the draws.

    Returns:
        1 if no input differs.

    Raises:
        QuantDriftError: as `differences`.
    """
    step, _ = oriented(differences(a, b))
    step = step[step != 0]  # a difference of 0 has no sign to change
    if not len(step):
        return 1.0
    return min(1.0, 2 * min(sign_change_tails(step, seed=seed)))


def oriented(step: NDArray[np.float64]) -> tuple[NDArray[np.float64], bool]:
    """Differences in an order that depends on nothing but themselves, maybe all with other sign.

    So that random draws give the same for any order of the inputs, and exchanging the systems
    mirrors the result exactly. The flag says whether signs were changed.
    """
    as_is, negated = np.sort(step), np.sort(-step)
    mirrored = bool(tuple(negated) > tuple(as_is))
    return (negated if mirrored else as_is), mirrored


def _mirror(estimate: Estimate) -> Estimate:
    low, high = estimate.low, estimate.high
    return Estimate(
        value=None if estimate.value is None else -estimate.value,
        low=None if high is None else -high,
        high=None if low is None else -low,
        n=estimate.n,
        reason=estimate.reason,
    )
