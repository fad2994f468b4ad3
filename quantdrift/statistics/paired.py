"""Two systems on the same inputs: is there a difference, and how large is it?

Every function takes one value per input and system, in the same order, and compares second minus first. None assumes
normal values; inputs are treated as independent draws.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import QuantDriftError
from quantdrift.statistics import estimates
from quantdrift.statistics.estimates import CONFIDENCE, Estimate, undefined

Values = NDArray[Any]

# --- Tango's score test and interval for the difference of two paired rates -----------------------

_EXACT = 1e-14
"""Accuracy of the ends of the interval."""


def tango_z(only_second: int, only_first: int, n: int, difference: float) -> float:
    """The score statistic, which falls as the difference rises.

    Args:
        only_second: inputs on which only the second system has the event.
        only_first: inputs on which only the first has it.
        n: all inputs.
        difference: second rate minus first rate under the hypothesis, from -1 to 1.

    Returns:
        Standard normal under the hypothesis for large n. Without variance it is 0 if hypothesis and data agree, and
        infinite if they do not.
    """
    if difference < 0:  # so that both directions mirror each other exactly
        return -tango_z(only_first, only_second, n, -difference)
    excess = only_second - only_first - n * difference
    variance = n * tango_variance(only_second, only_first, n, difference)
    if variance <= 0:
        return math.copysign(math.inf, excess) if excess else 0.0
    return excess / math.sqrt(variance)


def tango_variance(only_second: float, only_first: float, n: float, difference: float) -> float:
    """Variance of one input's difference under the hypothesis."""
    a = 2 * n
    b = (2 * n - only_second + only_first) * difference - only_second - only_first
    c = -only_first * difference * (1 - difference)
    root = math.sqrt(max(0.0, b * b - 4 * a * c))
    # the larger root of a q^2 + b q + c, by the form that subtracts no nearly equal numbers
    q = (root - b) / (2 * a) if b <= 0 else -2 * c / (b + root)
    return 2 * q + difference * (1 - difference)


def tango_interval(only_second: int, only_first: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """The differences that the two-sided score test does not reject.

    Args:
        only_second: inputs on which only the second system has the event.
        only_first: inputs on which only the first has it.
        n: all inputs, at least one.
        confidence: of the interval, between 0 and 1.

    Returns:
        Lower and upper end, from -1 to 1. Without discordant inputs the interval is (-w, w) with w = z^2 / (n + z^2),
        as Wilson's interval of none of n.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    low = -_upper(only_first, only_second, n, z)
    return low, _upper(only_second, only_first, n, z)


def _upper(only_second: int, only_first: int, n: int, z: float) -> float:
    """Find the difference at which the statistic is -z."""
    if only_second == n:
        return 1.0
    # without variance at the estimate, where the search begins, there are formulas
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


# --- Fisher's randomization test of paired differences, by changes of sign ------------------------

DRAWN = 9_999
"""Number of sign changes to draw if not all of them are tried."""

ALL = 13
"""Most differing inputs at which all sign changes are tried: 2^13 is below 9,999."""

_AT_ONCE = 2**20
"""Signs drawn at once, 8 MiB of numbers. The draws do not depend on it."""

_ROUNDING = 100 * np.finfo(np.float64).eps
"""Sums closer than this, relative to the sum of absolute values, differ only by rounding."""


def difference_tails(a: Values, b: Values, *, seed: int) -> tuple[float, float]:
    """`sign_change_tails` of second minus first; exchanging the systems exchanges the two."""
    step, mirrored = oriented(differences(a, b))
    low, high = sign_change_tails(step[step != 0], seed=seed)  # a difference of 0 has no sign to change
    return (high, low) if mirrored else (low, high)


def sign_change_tails(step: NDArray[np.float64], *, seed: int) -> tuple[float, float]:
    """The probabilities of a sum at most as large, and at least as large, as the observed one.

    c / 2^n if c of all changes of sign have such a sum; or (1 + c) / (1 + 9,999) if c of the drawn ones have.
    """
    n = len(step)
    total, rounding = float(step.sum()), _ROUNDING * float(np.abs(step).sum())
    # the observed signs are among all signs, but not among the drawn ones
    tried = low = high = 0 if n <= ALL else 1
    for kept in [_all_signs(n)] if n <= ALL else _drawn_signs(n, seed):
        sums = 2 * (kept @ step) - total
        tried += len(sums)
        low += int((sums <= total + rounding).sum())
        high += int((sums >= total - rounding).sum())
    return low / tried, high / tried


def _all_signs(n: int) -> NDArray[np.float64]:
    """1 for a sign that is kept and 0 for one that is changed, float64 [2^n, n]."""
    numbers = np.arange(2**n, dtype=np.int64)[:, np.newaxis]
    return np.asarray((numbers >> np.arange(n)) & 1, dtype=np.float64)


def _drawn_signs(n: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """9,999 random rows of this kind, a few at a time; the lowest bit of a random number is a sign."""
    rng = np.random.default_rng(seed)
    rows = max(1, _AT_ONCE // n)
    for done in range(0, DRAWN, rows):
        drawn = rng.integers(0, 2**32, (min(rows, DRAWN - done), n), dtype=np.uint32)
        yield (drawn & 1).astype(np.float64)


# --- tests and differences ------------------------------------------------------------------------


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
    """Second minus first, float64 [n_inputs]."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.ndim != 1 or first.shape != second.shape or not len(first):
        raise QuantDriftError(
            "a paired comparison needs one value per input from either system; got shapes "
            f"{first.shape} and {second.shape}"
        )
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise QuantDriftError("a paired comparison needs finite values; leave out the inputs without one")
    return second - first


def discordant(a: Values, b: Values) -> tuple[int, int, int]:
    """Inputs with the event in the first only, in the second only, and all inputs."""
    step = differences(a, b)
    if not all(np.isin(values, (0, 1)).all() for values in (a, b)):
        raise QuantDriftError("a rate needs values of 0 and 1; for others compare means")
    return int((step < 0).sum()), int((step > 0).sum()), len(step)


def mcnemar_exact(a: Values, b: Values) -> McNemar:
    """Test whether two paired rates differ, with a fair coin for every input on which the systems disagree.

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
    tail = float(estimates.at_most(min(only_a, only_b), only_a + only_b, 0.5)) if only_a + only_b else 1.0
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

    Exchanging the two systems mirrors value and interval. If no input differs, the interval is a point, which says
    nothing about other inputs; `mean_no_worse` is the test for that case.

    Args:
        a: float [n_inputs], finite.
        b: likewise, the same inputs.
        seed: of the resampling.

    Raises:
        QuantDriftError: as `differences`.
    """
    step, mirrored = oriented(differences(a, b))
    estimate = estimates.mean_estimate(step, seed=seed)
    return _mirror(estimate) if mirrored else estimate


def randomization_test(a: Values, b: Values, *, seed: int = 0) -> float:
    """Fisher's randomization test: the two-sided p-value of "the two systems are exchangeable".

    If they are, each difference could as well have the other sign. The p-value is twice the smaller tail of the sum
    (`sign_change_tails`). It is exact with up to 13 differing inputs; else 9,999 changes of sign are drawn, and the
    least p-value is 0.0002.

    Args:
        a: float [n_inputs], finite.
        b: likewise, the same inputs.
        seed: of the draws.

    Returns:
        1 if no input differs.

    Raises:
        QuantDriftError: as `differences`.
    """
    return min(1.0, 2 * min(difference_tails(a, b, seed=seed)))


_FEW_DIFFER = 50
"""Least differing inputs with which the bootstrap of a mean keeps its level by itself."""


def borne_out(change: Estimate, step: NDArray[np.float64]) -> Estimate:
    """A mean change whose interval excludes 0 only if the randomization test agrees.

    A bootstrap interval of few inputs is too narrow: of one it is a point, and of ten it calls exchangeable systems
    different on one side in 6 % of cases. So, if fewer than 50 inputs differ, an interval that excludes 0 without a
    one-sided p-value of 2.5 % by `sign_change_tails`, which is exact at any number, is extended to 0.

    Args:
        change: the mean of `step`, with its 95 % interval.
        step: float64, second minus first of every input.
    """
    moved = step[step != 0]
    low, high = change.low, change.high
    if low is None or high is None or low <= 0 <= high or len(moved) >= _FEW_DIFFER:
        return change
    if min(sign_change_tails(oriented(moved)[0], seed=0)) <= (1 - CONFIDENCE) / 2:
        return change
    return replace(change, low=min(low, 0.0), high=max(high, 0.0))


def oriented(step: NDArray[np.float64]) -> tuple[NDArray[np.float64], bool]:
    """Differences in a canonical order and sign, and whether their signs were changed.

    With these, random draws give the same result for any order of the inputs, and exchanging the systems mirrors it
    exactly.
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


# --- paired quantile ------------------------------------------------------------------------------


def paired_quantile_difference(a: Values, b: Values, *, q: float = 0.5, seed: int = 0) -> Estimate:
    """quantile(b) - quantile(a) with a seeded paired bootstrap interval; the median by default.

    Values may be infinite. If a quantile is infinite, the difference is undefined; if one is in some resamples, the
    difference has no interval.

    Args:
        a: float [n_inputs], not NaN.
        b: likewise, the same inputs.
        q: the quantile, above 0 and below 1.
        seed: of the resampling.
    """
    before, after = estimates.quantile(a, q), estimates.quantile(b, q)
    infinite = [name for name, value in (("A", before), ("B", after)) if math.isinf(value)]
    if infinite:
        return undefined(f"infinite for {' and '.join(infinite)}: the difference is not defined")
    value, n = float(after - before), len(a)
    if n == 1 or (np.asarray(a) == b).all():
        return Estimate(value=value, low=value, high=value, n=n)
    first, second, mirrored = _oriented_pairs(np.asarray(a), np.asarray(b))

    def step(places: NDArray[np.int64]) -> Any:
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            return estimates.quantile(second[places], q) - estimates.quantile(first[places], q)

    steps = estimates.resampled(step, n, seed=seed)
    if not np.isfinite(steps).all():
        return Estimate(value=value, n=n)
    low, high = estimates.percentile_interval(steps)
    if mirrored:
        low, high = -high, -low
    return Estimate(value=value, low=low, high=high, n=n)


def _oriented_pairs(a: Values, b: Values) -> tuple[Values, Values, bool]:
    as_is, exchanged = sorted(zip(a, b, strict=True)), sorted(zip(b, a, strict=True))
    mirrored = exchanged > as_is
    first, second = np.array(exchanged if mirrored else as_is, dtype=np.float64).T
    return first, second, mirrored
