"""Gap, epsilon, separation ratio, contenders and S, per input, from evidence.

Differences of float32 scores are exact in float64; only delta was rounded to float32, once, before its extremes were
taken. Source: paper, section 3.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence.record import Evidence, once

Floats = NDArray[np.float64]


def epsilon(evidence: Evidence) -> Floats:
    """Largest absolute change of any item's score, max_i |delta_i|.

    Returns:
        float64 [n_inputs], in score units, at least 0; NaN if no item was scored.
    """
    low = np.abs(evidence.delta_min.astype(np.float64))
    largest = np.maximum(low, np.abs(evidence.delta_max.astype(np.float64)))
    return np.where(evidence.n_items > 0, largest, np.nan)


def gap(evidence: Evidence) -> Floats:
    """Reference score of rank 1 minus that of rank 2.

    Returns:
        float64 [n_inputs], at least 0; NaN if there is only one item.
    """
    return _first_gap(evidence.reference_top.reference_scores)


def candidate_gap(evidence: Evidence) -> Floats:
    """Candidate score of its rank 1 minus that of its rank 2, the only gap that a deployment can see.

    Returns:
        float64 [n_inputs], at least 0; NaN if there is only one item.
    """
    return _first_gap(evidence.candidate_top.candidate_scores)


def _first_gap(scores: NDArray[np.float32]) -> Floats:
    if scores.shape[1] < 2:  # noqa: PLR2004 -- a gap needs two ranks
        return np.full(len(scores), np.nan)
    top = scores[:, :2].astype(np.float64)
    return np.asarray(top[:, 0] - top[:, 1])


def separation_ratio(evidence: Evidence) -> Floats:
    """gap / (2 epsilon): at least 1 means that the top-1 cannot change.

    Returns:
        float64 [n_inputs], at least 0; +inf if epsilon is 0 (an exact copy is stable, ties included); NaN if there is
        only one item. For truncated lists it is an upper bound, so +inf if a list ends before rank 2.
    """
    return _in_units_of_2_epsilon(gap(evidence), evidence)


def _in_units_of_2_epsilon(gaps: Floats, evidence: Evidence) -> Floats:
    epsilons = epsilon(evidence)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = gaps / (2 * epsilons)
    ratio = np.where(epsilons == 0, np.where(np.isnan(gaps), np.nan, np.inf), ratio)
    if evidence.deltas == "listed":
        # leaving out an input would invalidate the bound on the median of all inputs
        return np.where(np.isnan(ratio), np.inf, ratio)
    return ratio


def cut_separation(evidence: Evidence, k: int) -> Floats:
    """(score of rank k - score of rank k + 1) / (2 epsilon), in the reference.

    At least 1 means that the top-k cannot change as a set. For k = 1 this is the separation ratio.

    Args:
        evidence: with at least k + 1 stored ranks, unless there are fewer items.
        k: the rank after which the list is cut, at least 1.

    Returns:
        float64 [n_inputs], at least 0; +inf if epsilon is 0; NaN if there are at most k items (+inf if that may be
        because the list was truncated).

    Source: paper, Lemma 1 and the appendix's table of top-k sets.
    """
    scores = evidence.reference_top.reference_scores.astype(np.float64)
    if scores.shape[1] <= k:
        return np.full(len(scores), np.nan)
    return _in_units_of_2_epsilon(scores[:, k - 1] - scores[:, k], evidence)


def at_risk(evidence: Evidence) -> Floats:
    """Whether the contender set is not empty (separation ratio below 1), as 1.0 or 0.0.

    Returns:
        float64 [n_inputs]; NaN if there is only one item (0.0 if that may be because the list was truncated).
    """
    ratio = separation_ratio(evidence)
    return np.where(np.isnan(ratio), np.nan, (ratio < 1).astype(np.float64))


@once
def contender_count(evidence: Evidence) -> NDArray[np.int64]:
    """Count the stored ranks k >= 2 with gap_k < 2 epsilon.

    Returns:
        int64 [n_inputs], from 0 to depth - 1 (a count that reaches depth - 1 is a lower bound).
    """
    scores = evidence.reference_top.reference_scores.astype(np.float64)
    gaps = scores[:, :1] - scores[:, 1:]
    return np.asarray((gaps < 2 * epsilon(evidence)[:, None]).sum(axis=1), dtype=np.int64)


def contenders_cut_short(evidence: Evidence) -> NDArray[np.bool_]:
    """Whether the stored list ends among contenders, so that their count is only a lower bound."""
    full = contender_count(evidence) == evidence.depth - 1
    more = evidence.n_items > evidence.depth
    return np.asarray(full & (more | (evidence.deltas == "listed")))


def perturbation_s(evidence: Evidence) -> Floats:
    """S = max_j (delta[candidate's top-1] - delta[j]), the statistic of the stability check.

    Returns:
        float64 [n_inputs], in score units, from 0 to 2 epsilon; NaN if no item was scored. A flip implies that the
        candidate gap is at most S (Corollary 1; equal only in a tie). It is 0 if a truncated list of the reference
        does not have the candidate's top-1.
    """
    top = evidence.candidate_top
    # delta was rounded to float32 before its extremes were taken; without the same here, S could leave [0, 2 epsilon]
    delta = (top.candidate_scores[:, 0] - top.reference_scores[:, 0]).astype(np.float64)
    s = np.asarray(delta - evidence.delta_min.astype(np.float64))
    if evidence.deltas != "listed":
        return s
    return np.where((evidence.n_items > 0) & np.isnan(s), 0.0, s)


def flips(evidence: Evidence) -> NDArray[np.bool_]:
    """Whether the top-1 item differs between reference and candidate, bool [n_inputs]."""
    return np.asarray(evidence.reference_top.items[:, 0] != evidence.candidate_top.items[:, 0])


def top_set_kept(evidence: Evidence, k: int) -> NDArray[np.bool_]:
    """Whether the first k ranks of both arms hold the same items, in any order, bool [n_inputs].

    With fewer than k items, all of them are in both, and the set is kept.
    """
    arms = (evidence.reference_top.items[:, :k], evidence.candidate_top.items[:, :k])
    return np.asarray((np.sort(arms[0], axis=1) == np.sort(arms[1], axis=1)).all(axis=1))


def new_top_rank(evidence: Evidence) -> Floats:
    """The rank, in the reference, of the candidate's top-1; 1 without a flip.

    Returns:
        float64 [n_inputs], from 1 to depth, or +inf if that item is not among the stored ranks.
    """
    same = evidence.reference_top.items == evidence.candidate_top.items[:, :1]
    return np.where(same.any(axis=1), same.argmax(axis=1) + 1.0, np.inf)


@once
def ties_for_first(
    evidence: Evidence,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Count the stored items that tie exactly for the first place: in the reference, in the candidate, and in both.

    Returns:
        Three int64 [n_inputs], by each arm's own scores, 0 if there are none; and bool [n_inputs], whether a truncated
        list consists of such items alone, so that there may be more.
    """
    reference, candidate = evidence.reference_top, evidence.candidate_top
    arms = ((reference.items, reference.reference_scores), (candidate.items, candidate.candidate_scores))
    more = (evidence.n_items > evidence.depth) | (evidence.deltas == "listed")
    first = [scores == scores[:, :1] for _, scores in arms]
    sizes = [ties.sum(axis=1) for ties in first]
    cut = [
        more & (size > 1) & (ties | (items < 0)).all(axis=1)
        for (items, _), ties, size in zip(arms, first, sizes, strict=True)
    ]
    # an item occurs once in a list, so one that occurs twice is in both
    tied = [np.where(ties, items, -1)[:, ties.any(axis=0)] for (items, _), ties in zip(arms, first, strict=True)]
    both = np.sort(np.hstack(tied), axis=1)
    shared = ((both[:, 1:] == both[:, :-1]) & (both[:, 1:] >= 0)).sum(axis=1)
    return sizes[0], sizes[1], shared, cut[0] | cut[1]


FIGURES: Mapping[str, Callable[[Evidence], NDArray[Any]]] = MappingProxyType(
    {
        "flip": flips,
        "gap": gap,
        "candidate_gap": candidate_gap,
        "epsilon": epsilon,
        "separation": separation_ratio,
        "S": perturbation_s,
    }
)
"""The figures of an input that users look at most, by their names in tables and files."""
