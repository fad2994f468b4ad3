"""Estimates with intervals: Wilson for rates, order statistics for medians, bootstrap for means.

An undefined value has a reason.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.records import Real, Whole

# --- The binomial distribution: tails and quantiles -----------------------------------------------

Counts = int | NDArray[Any]
Probabilities = NDArray[np.float64]


def at_most(count: Counts, n: Counts, share: float) -> Probabilities:
    """P(X <= count) = 1 - I_share(count + 1, n - count)."""
    from scipy.special import betaincc  # noqa: PLC0415 -- scipy takes long to import

    inside = betaincc(np.maximum(count, 0) + 1.0, np.maximum(np.subtract(n, count), 1.0), share)
    return np.where(np.less(count, 0), 0.0, np.where(np.greater_equal(count, n), 1.0, inside))


def at_least(count: Counts, n: Counts, share: float) -> Probabilities:
    """P(X >= count) = I_share(count, n - count + 1)."""
    from scipy.special import betainc  # noqa: PLC0415 -- scipy takes long to import

    inside = betainc(np.maximum(count, 1.0), np.maximum(np.subtract(n, count), 0) + 1.0, share)
    return np.where(np.less_equal(count, 0), 1.0, np.where(np.greater(count, n), 0.0, inside))


def lower_quantile(level: float, n: int, share: float) -> int:
    """The least k with P(X <= k) >= level."""
    return bisect_left(range(n), True, key=lambda k: bool(at_most(k, n, share) >= level))


def upper_quantile(level: float, n: int, share: float) -> int:
    """The least k with P(X > k) <= level."""
    return bisect_left(range(n), True, key=lambda k: bool(at_least(k + 1, n, share) <= level))


# --- The bootstrap: resamples of the inputs, and the percentile interval of what they give --------

CONFIDENCE = 0.95
RESAMPLES = 2000

_AT_ONCE = 2**20
"""Inputs drawn at once, 8 MiB of indices. The draws do not depend on it."""


def resampled(
    statistic: Callable[[NDArray[np.int64]], NDArray[np.float64]], n: int, *, seed: int
) -> NDArray[np.float64]:
    """A statistic of resamples; each draws n inputs with replacement."""
    rng = np.random.default_rng(seed)
    rows = max(1, _AT_ONCE // n)
    parts = []
    for done in range(0, RESAMPLES, rows):
        parts.append(statistic(rng.integers(0, n, (min(rows, RESAMPLES - done), n))))
    return np.concatenate(parts)


def percentile_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """The 95 % interval of resampled values, with as many below it as above; NaN if one of the values is NaN."""
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


# --- quantiles ------------------------------------------------------------------------------------


def quantile(values: NDArray[Any], q: float) -> Any:
    """A quantile along the last axis: the mean of the two order statistics next to it, which often are the same one."""
    # np.quantile has a method for it, but interpolates to NaN next to an infinite value
    n = np.shape(values)[-1]
    place = round(n * q, 9)
    ordered = np.sort(values)
    below, above = ordered[..., math.ceil(place) - 1], ordered[..., min(math.floor(place), n - 1)]
    return np.where(below == above, below, (below + above) / 2)


# --- estimates ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value, its 95 % interval, and the number of inputs behind it.

    Attributes:
        value: the estimate, or None if it is undefined; can be +inf.
        low: lower end of the interval, or None if there is none.
        high: upper end.
        n: number of inputs for which the quantity is defined.
        reason: why value is None.
        bound: "lower" or "upper" if only such a bound of the quantity is known for every input; the value is then one.
    """

    value: Real | None
    low: Real | None = None
    high: Real | None = None
    n: Whole = 0
    reason: str | None = None
    bound: Literal["lower", "upper"] | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object: value, low, high, n and bound; or value null and the reason.

        JSON has no infinity, so an infinite value is null too, with a reason that names it.
        """
        if self.value is None:
            return {"value": None, "reason": self.reason}
        if not np.isfinite(self.value):
            sign = "+" if self.value > 0 else "-"
            return {"value": None, "reason": f"{sign}infinity: {self.reason or 'no finite value'}"}
        return {
            "value": self.value,
            "low": finite(self.low),
            "high": finite(self.high),
            "n": self.n,
            **({} if self.bound is None else {"bound": self.bound}),
        }


def as_json(value: Any) -> Any:
    """A result as JSON values, by `to_json` if it has one; dataclasses become objects, infinity and NaN null."""
    if is_dataclass(value):
        return {field.name: _as_part(getattr(value, field.name)) for field in fields(value)}
    return _as_part(value)


def _as_part(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Mapping):
        return {name: _as_part(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_as_part(part) for part in value]
    if is_dataclass(value):
        return as_json(value)
    return None if isinstance(value, float) and not np.isfinite(value) else value


def finite(value: Any) -> float | None:
    """A number for JSON: None for NaN and infinity."""
    return float(value) if value is not None and math.isfinite(value) else None


def undefined(reason: str) -> Estimate:
    """An estimate without a value, and the reason."""
    return Estimate(value=None, reason=reason)


def rate_estimate(outcomes: NDArray[np.float64]) -> Estimate:
    """The share of ones, with the Wilson score interval.

    Args:
        outcomes: float64 of 0.0 and 1.0, at least one.
    """
    return share_estimate(int(outcomes.sum()), len(outcomes))


def share_estimate(hits: int, n: int) -> Estimate:
    """The share of `hits` of n inputs, at least one, with the Wilson score interval.

    With the share p and the normal quantile z, (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n):
    the shares that the score test does not reject.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, Journal of the
    American Statistical Association 22 (1927), 209-212.
    """
    share, z = hits / n, NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    width = 2 * (n + z * z)
    center = (2 * hits + z * z) / width
    half = z / width * math.sqrt(4 * hits * (1 - share) + z * z)
    # without rounding the formula gives these ends exactly
    low, high = 0.0 if hits == 0 else center - half, 1.0 if hits == n else center + half
    return Estimate(value=share, low=low, high=high, n=n)


def quantile_estimate(values: NDArray[np.float64], q: float = 0.5) -> Estimate:
    """A quantile, with the distribution-free interval between two order statistics.

    It makes no assumption on the distribution and allows infinite values. The value is the mean of the two order
    statistics next to the quantile (the usual median for q = 0.5). The number of values below the quantile is binomial
    with share q; its quantiles are the ranks of the interval's ends. With too few values (six for a median) an end is
    None.

    Args:
        values: float64, at least one, no NaN.
        q: the quantile, above 0 and below 1.

    Source: W. R. Thompson, On confidence ranges for the median and other expectation distributions for populations of
    unknown distribution form, The Annals of Mathematical Statistics 7 (1936), 122-128.
    """
    n, tail, ordered = len(values), (1 - CONFIDENCE) / 2, np.sort(values)
    first, last = lower_quantile(tail, n, q) - 1, upper_quantile(tail, n, q)
    low = None if first < 0 else float(ordered[first])
    high = None if last >= n else float(ordered[last])
    return Estimate(value=float(quantile(values, q)), low=low, high=high, n=n)


def mean_estimate(values: NDArray[np.float64], *, seed: int = 0) -> Estimate:
    """The mean, with a seeded percentile bootstrap interval.

    The interval depends on the values and the seed, not on the order of the values. For the mean of per-input
    differences this is the paired bootstrap.

    Args:
        values: float64, at least one, finite.
        seed: of the resampling.
    """
    return mean_estimates([values], seed=seed)[0]


def mean_estimates(columns: Sequence[NDArray[np.float64]], *, seed: int = 0) -> list[Estimate]:
    """`mean_estimate` of several sets of values; sets of equal length share the draws, which take most of the time."""
    estimates: dict[int, Estimate] = {}
    alike: dict[int, list[int]] = {}
    for place, values in enumerate(columns):
        if len(values) == 1 or np.ptp(values) == 0:
            value = float(values.mean())
            estimates[place] = Estimate(value=value, low=value, high=value, n=len(values))
        else:
            alike.setdefault(len(values), []).append(place)
    for n, places in alike.items():
        means = _resampled_means([np.sort(columns[place]) for place in places], seed)
        for place, drawn in zip(places, means, strict=True):
            low, high = percentile_interval(drawn)
            estimates[place] = Estimate(value=float(columns[place].mean()), low=low, high=high, n=n)
    return [estimates[place] for place in range(len(columns))]


def _resampled_means(columns: Sequence[NDArray[np.float64]], seed: int) -> NDArray[np.float64]:
    """Means of resamples of columns [n], float64 [n_columns, RESAMPLES]."""
    n = len(columns[0])

    def means(places: NDArray[np.int64]) -> NDArray[np.float64]:
        # the counts of drawn inputs suffice; one product per column, so that no column depends on the others
        rows = np.arange(len(places))[:, None] * n
        times = np.bincount((places + rows).ravel(), minlength=places.size).reshape(places.shape).astype(np.float64)
        return np.stack([times @ column for column in columns], axis=1) / n

    return resampled(means, n, seed=seed).T


def relative_change_estimate(
    candidate: NDArray[np.float64], reference: NDArray[np.float64], *, seed: int = 0
) -> Estimate:
    """Mean of one arm over that of the other, minus 1, with a seeded paired bootstrap interval.

    mean(candidate) / mean(reference) - 1. Inputs are resampled, both their values together.

    Args:
        candidate: float64 [n_inputs], at least one, finite.
        reference: likewise, the same inputs.
        seed: of the resampling.

    Returns:
        At least -1 for values that are not negative; undefined if the reference's mean is 0.
    """
    before = float(reference.mean())
    if before == 0:
        return undefined("the reference's mean is 0")
    value = float(candidate.mean()) / before - 1
    if len(candidate) == 1 or (candidate == reference).all():
        return Estimate(value=value, low=value, high=value, n=len(candidate))
    order = np.lexsort((candidate, reference))
    after, ahead = candidate[order], reference[order]

    def change(places: NDArray[np.int64]) -> Any:
        means = ahead[places].mean(axis=-1)
        # a resample with a reference mean of 0 has no relative change, and then there is no interval
        return after[places].mean(axis=-1) / np.where(means == 0, np.nan, means) - 1

    low, high = percentile_interval(resampled(change, len(candidate), seed=seed))
    return Estimate(value=value, low=finite(low), high=finite(high), n=len(candidate))


# --- Is a mean below a limit? A t-test that is robust to rare large values ------------------------

_PER_WORST = 2.0
_MOST_ADDED = 30  # the alpha is then exp(-60)

FEW = 10
"""With fewer differing inputs than this, no normal approximation is used."""


def mean_below(values: NDArray[np.float64], limit: float, *, worst: float) -> float | None:
    """One-sided p-value of "the mean is the limit or more".

    A t-test on the values and a few added ones of the worst possible size, ceil(-ln(alpha) / 2) at a level alpha
    (`worst_added`). With that many no case was found in which a true hypothesis is rejected more often than alpha, from
    5 % to 0.1 %; for large n they have no weight. The p-value is the least alpha at which the test rejects.

    With fewer than 10 nonzero values, it is the probability that as few values are above zero. If the mean is the
    limit, at least the share limit / worst of all inputs is, and their number is binomial.
    """
    if np.count_nonzero(values) < FEW:
        if math.isinf(worst):
            return None
        return float(at_most(int((values > 0).sum()), len(values), limit / worst))
    if math.isinf(worst):
        return None if np.ptp(values) == 0 else _t_test(values, limit)
    if (values == worst).all():  # every value is the worst possible: no variance, so no t
        return 1.0
    ordered, least = np.sort(values), 0.0
    for added in range(1, _MOST_ADDED + 1):
        p_value = _t_test(np.concatenate([ordered, np.full(added, worst)]), limit)
        least = math.exp(-_PER_WORST * added)  # up to this alpha, this many are added
        if p_value >= least:
            return min(p_value, math.exp(-_PER_WORST * (added - 1)))
    return least


def worst_added(alpha: float) -> int:
    """The number of worst values that `mean_below` adds at a level: ceil(-ln(alpha) / 2).

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
