"""The least confidence that is accepted, from calibration inputs.

Both rules bound P(accepted and top-1 changed) for an input that is exchangeable with the n
calibration inputs. At level alpha either accepts nothing unless n >= ceil(1 / alpha) - 1.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from quantdrift.stability.errors import StabilityError
from quantdrift.stability.nonconformity import Observed, Statistic, bounds_gap

__all__ = [
    "accepts",
    "conformal_rank",
    "generic_threshold",
    "least_inputs",
    "nothing_accepted",
    "split_conformal_threshold",
    "threshold_of",
]


def conformal_rank(n: int, alpha: float) -> int:
    """ceil((n + 1) (1 - alpha)), in exact arithmetic: 100 * 0.99 must not become 100.

    Args:
        n: number of values, at least 0.
        alpha: level, above 0 and below 1; read as the decimal number it is written as.

    Returns:
        From 1 to n + 1.

    Raises:
        StabilityError: alpha is out of its range.
    """
    return math.ceil((n + 1) * (1 - _exact(alpha)))


def least_inputs(alpha: float) -> int:
    """How many calibration inputs a level takes before anything is accepted: ceil(1 / alpha) - 1.

    Raises:
        StabilityError: alpha is out of its range.

    >>> [least_inputs(alpha) for alpha in (0.1, 0.05, 0.01)]
    [9, 19, 99]
    """
    return math.ceil(1 / _exact(alpha)) - 1


def nothing_accepted(n: int, alpha: float) -> str | None:
    """Why a level accepts nothing with n calibration inputs; None if there are enough."""
    least = least_inputs(alpha)
    if n >= least:
        return None
    have = "there is" if n == 1 else "there are"
    return (
        f"nothing can be accepted at level {alpha:g} from so few inputs: that takes {least:,} "
        f"calibration inputs, and {have} {n:,}"
    )


def split_conformal_threshold(values: NDArray[np.float64], alpha: float) -> float:
    """The ceil((n + 1)(1 - alpha))-th smallest value; accept where the candidate gap reaches it.

    A flip implies gap < value (see `nonconformity`), so an accepted flip has a value above the
    threshold, and among n + 1 exchangeable inputs at most a share alpha can have that.

    Args:
        values: float64 [n], nonconformity of the calibration inputs, no NaN.
        alpha: level, above 0 and below 1.

    Returns:
        In score units, at least 0; +inf where that rank exceeds n, and nothing is accepted.

    Raises:
        StabilityError: alpha is out of its range.

    Source: paper, section 3 (which says "largest"; only the smallest can be meant).

    >>> split_conformal_threshold(np.array([4.0, 1.0, 3.0, 2.0]), 0.5)
    3.0
    """
    rank = conformal_rank(len(values), alpha)
    if rank > len(values):
        return math.inf
    return float(np.partition(values, rank - 1)[rank - 1])


def generic_threshold(
    confidence: NDArray[np.float64], flipped: NDArray[np.bool_], alpha: float
) -> float:
    """The confidence quantile of flipped calibration inputs; accept what is surer than it.

    The r-th smallest confidence among the flipped ones, r = min(ceil((n_flipped + 1)(1 - alpha)),
    n_flipped); -inf (accept everything) where none flipped.

    It is valid for any confidence: let m of the n + 1 exchangeable inputs flip, the new one among
    them, so that n_flipped = m - 1. It is accepted only if it ranks above r of the m, which m - r
    of them do at most. So P(accepted and flipped) <= (m - r) / (n + 1), which is at most
    alpha m / (n + 1) for the first r and 1 / (n + 1) for the second; both are at most alpha if
    n + 1 >= 1 / alpha.

    Args:
        confidence: float64 [n], larger is surer, no NaN.
        flipped: bool [n].
        alpha: level, above 0 and below 1.

    Returns:
        In units of the confidence; +inf where there are too few inputs, and nothing is accepted.

    Raises:
        StabilityError: alpha is out of its range.

    Source: paper, appendix, "Comparison with confidence scores".

    >>> generic_threshold(np.arange(9.0), np.arange(9) % 2 == 0, 0.5)  # flipped: 0, 2, 4, 6, 8
    4.0
    """
    if len(confidence) < least_inputs(alpha):
        return math.inf
    wrong = confidence[flipped]
    if not len(wrong):
        return -math.inf
    rank = min(conformal_rank(len(wrong), alpha), len(wrong))
    return float(np.partition(wrong, rank - 1)[rank - 1])


def threshold_of(observed: Observed, alpha: float) -> float:
    """The threshold that these calibration inputs give, all of which have a confidence."""
    if observed.values is not None:
        return split_conformal_threshold(observed.values, alpha)
    return generic_threshold(observed.confidence, observed.flipped, alpha)


def accepts(
    confidence: NDArray[np.float64], threshold: float, statistic: Statistic
) -> NDArray[np.bool_]:
    """At or above the threshold where it bounds the gap; above it for a generic confidence.

    What is NaN or infinite comes of no finite scores and is never accepted; without that a check
    which accepts nothing, by a threshold of +inf, would accept an infinite confidence.
    """
    reached = confidence >= threshold if bounds_gap(statistic) else confidence > threshold
    return np.asarray(reached & np.isfinite(confidence))


def _exact(alpha: float) -> Fraction:
    if not 0 < alpha < 1:
        raise StabilityError(
            f"expected a level above 0 and below 1, say 0.1: the share of inputs that may be "
            f"accepted though their top-1 changed; got {alpha:g}"
        )
    return Fraction(repr(float(alpha)))
