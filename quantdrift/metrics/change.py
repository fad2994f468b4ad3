"""How well two arms agree on the order of items that are ranked by one score each.

There a whole task is one ranking (pairs of sentences by their similarity), so nothing is per input
and no interval is given: two comparisons that share an item are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantdrift import perturbation
from quantdrift.errors import ScoreError
from quantdrift.evidence import Evidence
from quantdrift.metrics.base import Direction, Family, PerInput, Unit, WhenCut

# --- How well two arms agree on the order of items that are ranked by one score each --------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderAgreement:
    """Agreement of two arms on one ranking.

    Attributes:
        n_items: how many items were ranked.
        flip: share of the pairs of items with different reference scores whose order is reversed in
            the candidate, from 0 to 1; None where no two reference scores differ.
        kendall_tau: tau-b of the two arms' scores, from -1 to 1; None where all scores of an arm
            are equal.
        spearman: rank correlation of the two arms' scores, likewise; ties share their mean rank.
        epsilon: max_i abs(delta_i), in score units, at least 0; None without items.
        delta_median: median_i abs(delta_i), likewise.
    """

    n_items: int
    flip: float | None
    kendall_tau: float | None
    spearman: float | None
    epsilon: float | None
    delta_median: float | None


def order_agreement(reference: ArrayLike, candidate: ArrayLike) -> OrderAgreement:
    """Compare the orders that two arms' scores give the same items, in O(n log^2 n).

    With N pairs of items, T_r and T_c of them tied in an arm, T_rc in both, and D reversed:
    flip = D / (N - T_r), tau_b = (N - T_r - T_c + T_rc - 2 D) / sqrt((N - T_r) (N - T_c)).

    Args:
        reference: float [n_items], what the reference ranks by.
        candidate: float [n_items], what the candidate ranks the same items by.

    Returns:
        Exact counts turned into shares and correlations.

    Raises:
        ScoreError: they are not two vectors of one length, or a score is not finite.
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

    Args:
        reference: float [n_items].
        candidate: float [n_items].

    Returns:
        Their number, from 0 to n (n - 1) / 2.
    """
    left, right = (np.unique(part, return_inverse=True)[1] for part in (reference, candidate))
    return _discordant(left, right)


def _discordant(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    """Reversed pairs of dense ranks.

    Of items in the order of the left ranks (ties by the right ones, so that a tie is no reversal)
    the inversions of the right ranks count. Two ranks differ in a highest bit, and agree in all
    above it: going through the bits, each inversion is found at exactly one of them.
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


# --- How much of the whole ranking is left, per input: rank-biased overlap and Kendall's tau-b ----

PERSISTENCE = 0.9
"""p of rank-biased overlap: the chance that a reader goes on to the next rank."""

_BLOCK = 4_000_000  # comparisons at a time; bounds the memory


def _rbo(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    """Extrapolated rank-biased overlap of two lists of the same length k.

    X_k / k p^k + (1 - p) / p sum_d X_d / d p^d, where X_d counts the items that both have in the
    first d ranks. Source: Webber, Moffat and Zobel (2010), equation 30 for lists of one length.
    """
    reference = evidence.reference_top.items[:, :cutoff]
    candidate = evidence.candidate_top.items[:, :cutoff]
    n_inputs, width = reference.shape
    result = np.full(n_inputs, np.nan)
    rows = max(1, _BLOCK // max(1, width * width))
    for start in range(0, n_inputs, rows):
        part = slice(start, start + rows)
        here, there = reference[part], candidate[part]
        same = (here[:, :, None] == there[:, None, :]) & (here >= 0)[:, :, None]
        found_row, first, second = np.nonzero(same)
        # an item that one has at rank i and the other at rank j is shared from max(i, j) on
        shared = np.zeros((len(here), width))
        np.add.at(shared, (found_row, np.maximum(first, second)), 1.0)
        ranks = np.arange(1, width + 1)
        weight = PERSISTENCE**ranks
        agreement = shared.cumsum(axis=1) / ranks
        length = (here >= 0).sum(axis=1)
        inside = ranks <= length[:, None]
        series = (np.where(inside, agreement, 0) @ weight) * (1 - PERSISTENCE) / PERSISTENCE
        last = np.take_along_axis(agreement, np.maximum(length - 1, 0)[:, None], axis=1)[:, 0]
        result[part] = np.where(length > 0, series + last * PERSISTENCE**length, np.nan)
    return result


def _tau_b(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    """Tau-b of the two arms' scores of the reference's first k items."""
    top = evidence.reference_top
    there = top.items[:, :cutoff] >= 0
    result = np.full(evidence.n_inputs, np.nan)
    rows = max(1, _BLOCK // max(1, there.shape[1]))
    for start in range(0, evidence.n_inputs, rows):
        part = slice(start, start + rows)
        before, after = (
            np.where(there[part], scores[part, :cutoff], np.float32(np.nan))
            for scores in (top.reference_scores, top.candidate_scores)
        )
        result[part] = _tau_b_of_rows(before, after)
    return result


def _tau_b_of_rows(before: NDArray[np.float32], after: NDArray[np.float32]) -> NDArray[np.float64]:
    """Tau-b of every row of two arms' scores [n, k], NaN where a row has no item.

    (C - D) / sqrt(U V): of the pairs of items, C are in one order in both arms and D in reversed,
    U score differently in the one arm and V in the other. An item is compared with the one that
    stands so many ranks below, for each number of ranks, in all rows at once.
    """
    agreement, apart_before, apart_after = np.zeros((3, len(before)), dtype=np.int64)
    for ranks in range(1, before.shape[1]):
        one, other = _order(before, ranks), _order(after, ranks)
        agreement += (one * other).sum(axis=1)  # C - D
        apart_before += np.count_nonzero(one, axis=1)
        apart_after += np.count_nonzero(other, axis=1)
    with np.errstate(invalid="ignore"):  # 0 / 0 where an arm ties all its items
        tau = agreement / np.sqrt(apart_before) / np.sqrt(apart_after)
    return np.asarray(np.clip(tau, -1.0, 1.0))  # roots round


def _order(scores: NDArray[np.float32], ranks: int) -> NDArray[np.int8]:
    """1 where a score is above the one so many ranks below it, -1 where it is under; else 0."""
    above, below = scores[:, :-ranks], scores[:, ranks:]
    return (above > below).astype(np.int8) - (above < below).astype(np.int8)


FAMILIES = (
    Family(
        name="rbo",
        section="whole ranking",
        summary=f"mean rank-biased overlap of the two top-k, extrapolated, p = {PERSISTENCE}: 1 if "
        "they are the same, 0 if they share nothing",
        direction="higher",
        low=0,
        high=1,
        unit="similarity",
        uncertainty="bootstrap",
        per_input=_rbo,
        undefined_when="no input has an item",
        cutoffs=(10,),
        headline=True,
    ),
    Family(
        name="tau_b",
        section="whole ranking",
        summary="mean Kendall's tau-b between the two arms' scores of the reference's top-k items",
        direction="higher",
        low=-1,
        high=1,
        unit="similarity",
        uncertainty="bootstrap",
        per_input=_tau_b,
        undefined_when="no input has two items that score differently in both arms",
        cutoffs=(10,),
        when_cut="undefined",
        ties="equal scores count as ties (tau-b); position decides nothing",
    ),
)

# --- Gap and perturbation: how far the top-1 was from changing. Source: paper, section 3 ----------

_ONE_ITEM = "no input has two items to compare"
_NONE = "no input has an item"
_EXACT = "the typical input did not change at all (epsilon 0)"


def _plain(quantity: Callable[[Evidence], NDArray[np.float64]]) -> PerInput:
    def per_input(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
        return quantity(evidence)

    return per_input


def _stable(evidence: Evidence) -> NDArray[np.float64]:
    return 1 - perturbation.at_risk(evidence)


def _contenders(evidence: Evidence) -> NDArray[np.float64]:
    count = perturbation.contender_count(evidence).astype(np.float64)
    count[perturbation.contenders_cut_short(evidence)] = np.inf
    return np.where(evidence.n_items > 1, count, np.nan)


def _cut_separation(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    return perturbation.cut_separation(evidence, cutoff)


def _typical(
    name: str,
    summary: str,
    quantity: Callable[[Evidence], NDArray[np.float64]],
    *,
    direction: Direction,
    unit: Unit = "score",
    undefined_when: str = _ONE_ITEM,
    headline: bool = False,
    of_reference: bool = False,
    ranks: int = 2,
    when_cut: WhenCut = "the same",
) -> Family:
    """A quantity of every input, reported as its median."""
    return Family(
        name=name,
        section="gap and perturbation",
        summary=summary,
        direction=direction,
        low=0,
        high=float("inf"),
        unit=unit,
        uncertainty="order statistics",
        per_input=_plain(quantity),
        undefined_when=undefined_when,
        infinite_when=_EXACT,
        headline=headline,
        of_reference=of_reference,
        ranks=ranks,
        when_cut=when_cut,
    )


def _share(
    name: str, summary: str, quantity: Any, direction: Direction, *, headline: bool, when_cut: WhenCut
) -> Family:
    return Family(
        name=name,
        section="gap and perturbation",
        summary=summary,
        direction=direction,
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=_plain(quantity),
        undefined_when=_ONE_ITEM,
        headline=headline,
        ranks=2,
        when_cut=when_cut,
    )


SEPARATION_FAMILIES = (
    _typical(
        "separation",
        "median separation ratio, gap / (2 epsilon); at 1 or more the top-1 cannot change",
        perturbation.separation_ratio,
        direction="higher",
        unit="ratio",
        headline=True,
        when_cut="at most",
    ),
    Family(
        name="separation_quantile",
        section="gap and perturbation",
        summary="the separation ratio that so many percent of the inputs do not exceed",
        direction="higher",
        low=0,
        high=float("inf"),
        unit="ratio",
        uncertainty="order statistics",
        per_input=_plain(perturbation.separation_ratio),
        undefined_when=_ONE_ITEM,
        infinite_when=_EXACT,
        cutoffs=(10, 25, 75, 90),
        cutoff_is="percentile",
        ranks=2,
        when_cut="at most",
    ),
    Family(
        name="cut_separation",
        section="gap and perturbation",
        summary="median of (score of rank k - score of rank k+1) / (2 epsilon); at 1 or more the "
        "top-k set cannot change",
        direction="higher",
        low=0,
        high=float("inf"),
        unit="ratio",
        uncertainty="order statistics",
        per_input=_cut_separation,
        undefined_when="no input has more than k items",
        infinite_when=_EXACT,
        cutoffs=(1, 2, 3, 5),
        ranks_beyond=1,
        when_cut="at most",
    ),
    _share(
        "at_risk",
        "share of inputs with a contender: separation ratio below 1",
        perturbation.at_risk,
        "lower",
        headline=True,
        when_cut="at least",
    ),
    _share(
        "stable",
        "share of inputs with an empty contender set: their top-1 cannot change",
        _stable,
        "higher",
        headline=False,
        when_cut="at most",
    ),
    Family(
        name="contenders",
        section="gap and perturbation",
        summary="median number of contenders: items less than 2 epsilon behind the top-1",
        direction="lower",
        low=0,
        high=float("inf"),
        unit="items",
        uncertainty="order statistics",
        per_input=_plain(_contenders),
        undefined_when=_ONE_ITEM,
        infinite_when="more contenders than stored ranks; run again with a larger --k",
        censored=lambda evidence: evidence.depth - 1,
        when_cut="at least",
    ),
    _typical(
        "epsilon",
        "median of the largest absolute score change over all items",
        perturbation.epsilon,
        direction="lower",
        undefined_when=_NONE,
        ranks=1,
        when_cut="at least",
    ),
    _typical(
        "gap",
        "median score difference between ranks 1 and 2 of the reference",
        perturbation.gap,
        direction="higher",
        of_reference=True,
    ),
    _typical(
        "candidate_gap",
        "median score difference between ranks 1 and 2 of the candidate: what one can see",
        perturbation.candidate_gap,
        direction="higher",
    ),
    _typical(
        "S",
        "median of S, the delta of the candidate's top-1 minus the least delta of any item",
        perturbation.perturbation_s,
        direction="lower",
        undefined_when=_NONE,
        ranks=1,
        when_cut="at least",
    ),
)
