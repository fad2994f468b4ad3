"""Agreement of two arms on one ranking of all items of a task, such as pairs of sentences by similarity.

Nothing is per input, and there is no interval, because two comparisons that share an item are not independent.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from quantdrift.base.errors import ScoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderAgreement:
    """Agreement of two arms on one ranking.

    flip: share of the pairs of items with different reference scores whose order is reversed, from 0 to 1.
    kendall_tau, spearman: tau-b and rank correlation of the two arms' scores, from -1 to 1. epsilon, delta_median:
    largest and median abs(delta), in score units. Each is None if there is nothing to compare.
    """

    flip: float | None
    kendall_tau: float | None
    spearman: float | None
    epsilon: float | None
    delta_median: float | None


def order_agreement(reference: ArrayLike, candidate: ArrayLike) -> OrderAgreement:
    """Compare the orders that two arms' scores give the same items, in O(n log n).

    With N pairs of items, T_r and T_c of them tied in an arm, T_rc in both, and D reversed: flip = D / (N - T_r),
    tau_b = (N - T_r - T_c + T_rc - 2 D) / sqrt((N - T_r) (N - T_c)), from which D is found.
    """
    from scipy.stats import kendalltau, spearmanr  # noqa: PLC0415 -- scipy.stats takes long to import

    before, after = (np.asarray(part, dtype=np.float64) for part in (reference, candidate))
    if before.ndim != 1 or before.shape != after.shape or not (np.isfinite(before).all() and np.isfinite(after).all()):
        raise ScoreError(
            "expected one finite score per item from either arm, two vectors of one length; got shapes "
            f"{before.shape} and {after.shape}"
        )
    delta, pairs = np.abs(after - before), len(before) * (len(before) - 1) // 2
    counts = [np.unique(part, return_counts=True)[1] for part in (before, after, before + 1j * after)]
    tied = [int((count * (count - 1) // 2).sum()) for count in counts]
    apart, apart_other = pairs - tied[0], pairs - tied[1]
    flip, tau, spearman = 0.0 if apart else None, None, None
    if apart and apart_other:
        tests: tuple[Any, ...] = (kendalltau, spearmanr)
        tau, spearman = (float(test(before, after).statistic) for test in tests)
        flip = (apart - tied[1] + tied[2] - round(tau * math.sqrt(apart) * math.sqrt(apart_other))) / 2 / apart
    epsilon, median = (float(delta.max()), float(np.median(delta))) if len(delta) else (None, None)
    return OrderAgreement(flip=flip, kendall_tau=tau, spearman=spearman, epsilon=epsilon, delta_median=median)
