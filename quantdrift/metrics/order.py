"""How well two arms agree on the order of items that are ranked by one score each.

There a whole task is one ranking (pairs of sentences by their similarity), so nothing is per input and no interval is
given: two comparisons that share an item are not independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantdrift.errors import ScoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderAgreement:
    """Agreement of two arms on one ranking of `n_items`.

    flip: share of the pairs of items with different reference scores whose order is reversed, from 0 to 1.
    kendall_tau, spearman: tau-b and rank correlation of the two arms' scores, from -1 to 1. epsilon, delta_median:
    largest and median abs(delta), in score units. None where there is nothing to compare.
    """

    n_items: int
    flip: float | None
    kendall_tau: float | None
    spearman: float | None
    epsilon: float | None
    delta_median: float | None


def order_agreement(reference: ArrayLike, candidate: ArrayLike) -> OrderAgreement:
    """Compare the orders that two arms' scores give the same items, in O(n log^2 n).

    With N pairs of items, T_r and T_c of them tied in an arm, T_rc in both, and D reversed: flip = D / (N - T_r),
    tau_b = (N - T_r - T_c + T_rc - 2 D) / sqrt((N - T_r) (N - T_c)).
    """
    scores = [np.asarray(part, dtype=np.float64) for part in (reference, candidate)]
    if scores[0].ndim != 1 or scores[0].shape != scores[1].shape:
        raise ScoreError(
            "expected one score per item from either arm, two vectors of one length; got shapes "
            f"{scores[0].shape} and {scores[1].shape}"
        )
    if not all(np.isfinite(part).all() for part in scores):
        raise ScoreError("expected finite scores; at least one is NaN or infinite")
    n = len(scores[0])
    delta = np.abs(scores[1] - scores[0])
    left, right = (np.unique(part, return_inverse=True)[1] for part in scores)
    both = np.unique(left * (n + 1) + right, return_inverse=True)[1]
    tied_left, tied_right, tied_both = (_tied_pairs(part) for part in (left, right, both))
    pairs = n * (n - 1) // 2
    apart_left, apart_right = pairs - tied_left, pairs - tied_right
    discordant = _discordant(left, right)
    tau = None
    if apart_left and apart_right:
        difference = apart_left - tied_right + tied_both - 2 * discordant
        tau = difference / (math.sqrt(apart_left) * math.sqrt(apart_right))
        tau = max(-1.0, min(1.0, tau))
    return OrderAgreement(
        n_items=n,
        flip=discordant / apart_left if apart_left else None,
        kendall_tau=tau,
        spearman=_correlation(_mean_ranks(left), _mean_ranks(right)),
        epsilon=float(delta.max()) if n else None,
        delta_median=float(np.median(delta)) if n else None,
    )


def reversed_pairs(reference: ArrayLike, candidate: ArrayLike) -> int:
    """Pairs of items i, j with reference_i < reference_j and candidate_i > candidate_j.

    >>> reversed_pairs([1.0, 2.0, 3.0], [1.0, 3.0, 2.0])
    1
    """
    left, right = (np.unique(part, return_inverse=True)[1] for part in (reference, candidate))
    return _discordant(left, right)


def _discordant(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    """Reversed pairs of dense ranks.

    Of items in the order of the left ranks (ties by the right ones, so that a tie is no reversal) the inversions of
    the right ranks count. Two ranks differ in a highest bit, and agree in all above it: going through the bits, each
    inversion is found at exactly one of them.
    """
    ranks = right[np.lexsort((right, left))]
    found = 0
    for bit in range(int(ranks.max(initial=0)).bit_length()):
        above = ranks >> (bit + 1)
        order = np.argsort(above, kind="stable")
        ones = (ranks[order] >> bit) & 1
        before = np.cumsum(ones) - ones
        starts = np.searchsorted(above[order], above[order])  # of the group with equal bits above
        found += int((before - before[starts])[ones == 0].sum())
    return found


def _tied_pairs(ranks: NDArray[np.int64]) -> int:
    counts = np.bincount(ranks) if len(ranks) else np.zeros(0, dtype=np.int64)
    return int((counts * (counts - 1) // 2).sum())


def _mean_ranks(ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Ranks from 0, equal ones sharing the mean of the places they take."""
    counts = np.bincount(ranks) if len(ranks) else np.zeros(0, dtype=np.int64)
    last = np.cumsum(counts)
    middle = last - (counts + 1) / 2
    return np.asarray(middle[ranks])


def _correlation(left: NDArray[np.float64], right: NDArray[np.float64]) -> float | None:
    if not len(left):
        return None
    left, right = left - left.mean(), right - right.mean()
    norm = math.sqrt(float(left @ left)) * math.sqrt(float(right @ right))
    return max(-1.0, min(1.0, float(left @ right) / norm)) if norm else None
