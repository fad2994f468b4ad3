"""The difference of two medians, or other quantiles, of the same inputs: an interval, no test.

No test, because a shift of the median that no input shows (values may change places) and a change
of every input that the median does not show are both possible; the interval is what there is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.statistics.estimates import Estimate, undefined
from quantdrift.statistics.resampling import percentile_interval, resampled

__all__ = ["paired_quantile_difference", "quantile"]

Values = NDArray[Any]


def quantile(values: Values, q: float, axis: int = -1) -> Any:
    """A quantile by the definition of `quantile_estimate`: the mean of the two next to it."""
    # np.quantile has a method for it, but interpolates to NaN next to an infinite value
    n = np.shape(values)[axis]
    place = round(n * q, 9)
    ordered = np.moveaxis(np.sort(values, axis=axis), axis, -1)
    below, above = ordered[..., math.ceil(place) - 1], ordered[..., min(math.floor(place), n - 1)]
    return np.where(below == above, below, (below + above) / 2)


def paired_quantile_difference(a: Values, b: Values, *, q: float = 0.5, seed: int = 0) -> Estimate:
    """quantile(b) - quantile(a) with a seeded paired bootstrap interval; the median by default.

    Values may be infinite. If a quantile is, the difference is undefined; if it becomes so in some
    resamples, the difference has no interval.

    Args:
        a: float [n_inputs], not NaN.
        b: likewise, the same inputs.
        q: which quantile, above 0 and below 1.
        seed: of the resampling.
    """
    before, after = quantile(a, q), quantile(b, q)
    infinite = [name for name, value in (("A", before), ("B", after)) if math.isinf(value)]
    if infinite:
        return undefined(f"infinite for {' and '.join(infinite)}: the difference cannot be told")
    value, n = float(after - before), len(a)
    if n == 1 or (np.asarray(a) == b).all():
        return Estimate(value=value, low=value, high=value, n=n)
    first, second, mirrored = _oriented_pairs(np.asarray(a), np.asarray(b))

    def step(places: NDArray[np.int64]) -> Any:
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            return quantile(second[places], q) - quantile(first[places], q)

    steps = resampled(step, n, seed=seed)
    if not np.isfinite(steps).all():
        return Estimate(value=value, n=n)
    low, high = percentile_interval(steps)
    if mirrored:
        low, high = -high, -low
    return Estimate(value=value, low=low, high=high, n=n)


def _oriented_pairs(a: Values, b: Values) -> tuple[Values, Values, bool]:
    as_is, exchanged = sorted(zip(a, b, strict=True)), sorted(zip(b, a, strict=True))
    mirrored = exchanged > as_is
    first, second = np.array(exchanged if mirrored else as_is, dtype=np.float64).T
    return first, second, mirrored
