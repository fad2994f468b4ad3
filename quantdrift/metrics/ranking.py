"""Metrics that need no relevance labels: the top of the list, gap and perturbation, the whole ranking.

Source: paper, sections 3 and 5.2, and the appendix's table of top-k sets.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Evidence
from quantdrift.metrics.base import MetricError, define

Floats = NDArray[np.float64]

_NO_ITEM = "no input has an item"
_ONE_ITEM = "no input has two items to compare"
_NO_FLIP = "no input flipped"
_NO_SCORE = "no input has an item with a score"
_NO_NOISE = "the noise floor was not measured"

top_of_list = partial(define, section="top of the list")
whole_ranking = partial(define, section="whole ranking", kind="mean", unit="similarity", cutoffs=(10,))
gap_and_perturbation = partial(
    define, section="gap and perturbation", infinite_when="the typical input did not change at all (epsilon 0)"
)
typical = partial(gap_and_perturbation, kind="median", undefined_when=_ONE_ITEM, ranks=2)


@top_of_list("flip", direction="lower", undefined_when=_NO_ITEM, cutoffs=(1,), other_cutoffs=False)
def _flip(evidence: Evidence, *_: Any) -> Floats:
    """Share of inputs whose first answer differs between reference and candidate."""
    return np.where(evidence.n_items > 0, perturbation.flips(evidence), np.nan)


@top_of_list("noise_floor", direction="lower", undefined_when=_NO_NOISE, of_reference=True)
def _noise_floor(evidence: Evidence, *_: Any) -> Floats:
    """Flip rate of the reference against itself under another batch size and order."""
    flips = np.nan if evidence.noise is None else evidence.noise.flips
    return np.where(evidence.n_items > 0, flips, np.nan)


@top_of_list("tied", direction="none", undefined_when=_ONE_ITEM, ranks=2, of_reference=True)
def _tied(evidence: Evidence, *_: Any) -> Floats:
    """Share of inputs whose reference ranks 1 and 2 have exactly the same score."""
    return np.where(evidence.n_items > 1, perturbation.gap(evidence) == 0, np.nan)


over_ties = partial(top_of_list, direction="lower", undefined_when=_NO_SCORE, ranks=2)


@over_ties("flip_least")
def _flip_least(evidence: Evidence, *_: Any) -> Floats:
    """Share of inputs that flip however exact ties are broken: no item can come first in both arms."""
    of_reference, of_candidate, shared, cut = perturbation.ties_for_first(evidence)
    _known(cut & (shared == 0))
    return np.where((of_reference > 0) & (of_candidate > 0), shared == 0, np.nan)


@over_ties("flip_expected", kind="mean", unit="rate")
def _flip_expected(evidence: Evidence, *_: Any) -> Floats:
    """Mean chance of a flip if each arm breaks its exact ties at random.

    1 - |R and C| / (|R| |C|), where R and C are the items that tie for the first place in the reference and in the
    candidate: each arm has an order of its own, and all are equally likely. Source: after "Reliable Evaluation
    Protocol for Low-Precision Retrieval" (ACL 2026, short 33), which gives expectation and range of relevance metrics.
    """
    of_reference, of_candidate, shared, cut = perturbation.ties_for_first(evidence)
    _known(cut)
    pairs = (of_reference * of_candidate).astype(np.float64)
    return np.where(pairs > 0, 1 - shared / np.maximum(pairs, 1), np.nan)


@over_ties("flip_most")
def _flip_most(evidence: Evidence, *_: Any) -> Floats:
    """Share of inputs that flip for some way to break exact ties: not the same single first item in both arms."""
    of_reference, of_candidate, shared, _cut = perturbation.ties_for_first(evidence)
    pairs = of_reference * of_candidate
    return np.where(pairs > 0, (shared == 0) | (pairs > 1), np.nan)


def _known(unknown: NDArray[np.bool_]) -> None:
    """Refuse a figure that the stored ranks do not determine."""
    if unknown.any():
        raise MetricError(
            f"for {int(unknown.sum()):,} of the inputs all stored ranks of an arm tie for the first place, so further "
            "items may tie too; measure again and keep more ranks (k)"
        )


@top_of_list(
    "interchangeable",
    direction="none",
    undefined_when=_NO_FLIP,
    too_few=lambda group, _: _NO_NOISE if all(evidence.noise is None for evidence in group) else None,
)
def _interchangeable(evidence: Evidence, *_: Any) -> Floats:
    """Of the flips, the share whose two first items the reference scores no further apart than twice its own noise."""
    best, other = (
        top.reference_scores[:, 0].astype(np.float64) for top in (evidence.reference_top, evidence.candidate_top)
    )
    reach = np.nan if evidence.noise is None else 2 * evidence.noise.epsilon.astype(np.float64)
    apart = best - other
    return np.where((_flip(evidence) == 1) & ~np.isnan(apart - reach), apart <= reach, np.nan)


@top_of_list("set_kept", direction="higher", undefined_when=_NO_ITEM, cutoffs=(1, 2, 3, 5))
def _set_kept(evidence: Evidence, cutoff: int, *_: Any) -> Floats:
    """Share of inputs whose top-k holds exactly the same items, in any order."""
    return np.where(evidence.n_items > 0, perturbation.top_set_kept(evidence, cutoff), np.nan)


@top_of_list("flip_to_runner_up", direction="none", undefined_when=_NO_FLIP, ranks=2)
def _runner_up(evidence: Evidence, *_: Any) -> Floats:
    """Of the flips, the share where the reference's runner-up became first."""
    rank = _new_top_rank(evidence)
    return np.where(np.isnan(rank), np.nan, rank == 2)  # noqa: PLR2004 -- rank 2


@top_of_list(
    "new_top_rank",
    kind="median",
    low=2,
    unit="rank",
    direction="lower",
    undefined_when=_NO_FLIP,
    infinite_when="it lies below the stored ranks; measure again and keep more (k)",
    censored=lambda evidence: evidence.depth + 1,
)
def _new_top_rank(evidence: Evidence, *_: Any) -> Floats:
    """Median rank, in the reference, of the item that a flip put first."""
    return np.where(_flip(evidence) == 1, perturbation.new_top_rank(evidence), np.nan)


@typical(
    "separation_quantile",
    "the separation ratio that so many percent of the inputs do not exceed",
    direction="higher",
    unit="ratio",
    cutoffs=(10, 25, 75, 90),
    cutoff_is="percentile",
    when_cut="at most",
)
@typical("separation", direction="higher", unit="ratio", when_cut="at most")
def _separation(evidence: Evidence, *_: Any) -> Floats:
    """Median separation ratio, gap / (2 epsilon); at 1 or more the top-1 cannot change."""
    return perturbation.separation_ratio(evidence)


@gap_and_perturbation(
    "cut_separation",
    kind="median",
    direction="higher",
    unit="ratio",
    undefined_when="no input has more than k items",
    cutoffs=(1, 2, 3, 5),
    ranks_beyond=1,
    when_cut="at most",
)
def _cut_separation(evidence: Evidence, cutoff: int, *_: Any) -> Floats:
    """Median of (score of rank k - score of rank k+1) / (2 epsilon); at 1 or more the top-k set cannot change."""
    return perturbation.cut_separation(evidence, cutoff)


@typical("at_risk", kind="rate", direction="lower", when_cut="at least")
def _at_risk(evidence: Evidence, *_: Any) -> Floats:
    """Share of inputs with a contender: separation ratio below 1."""
    return perturbation.at_risk(evidence)


@typical("stable", kind="rate", direction="higher", when_cut="at most")
def _stable(evidence: Evidence, *_: Any) -> Floats:
    """Share of inputs with an empty contender set: their top-1 cannot change."""
    return 1 - perturbation.at_risk(evidence)


@gap_and_perturbation(
    "contenders",
    kind="median",
    direction="lower",
    unit="items",
    undefined_when=_ONE_ITEM,
    infinite_when="more contenders than stored ranks; measure again and keep more (k)",
    censored=lambda evidence: evidence.depth - 1,
    when_cut="at least",
)
def _contenders(evidence: Evidence, *_: Any) -> Floats:
    """Median number of contenders: items less than 2 epsilon behind the top-1."""
    count = perturbation.contender_count(evidence).astype(np.float64)
    count[perturbation.contenders_cut_short(evidence)] = np.inf
    return np.where(evidence.n_items > 1, count, np.nan)


@typical("epsilon", direction="lower", undefined_when=_NO_ITEM, ranks=1, when_cut="at least")
def _epsilon(evidence: Evidence, *_: Any) -> Floats:
    """Median of the largest absolute score change over all items."""
    return perturbation.epsilon(evidence)


@typical("gap", direction="higher", of_reference=True)
def _gap(evidence: Evidence, *_: Any) -> Floats:
    """Median score difference between ranks 1 and 2 of the reference."""
    return perturbation.gap(evidence)


@typical("candidate_gap", direction="higher")
def _candidate_gap(evidence: Evidence, *_: Any) -> Floats:
    """Median score difference between ranks 1 and 2 of the candidate: what one can see."""
    return perturbation.candidate_gap(evidence)


@typical("S", direction="lower", undefined_when=_NO_ITEM, ranks=1, when_cut="at least")
def _s(evidence: Evidence, *_: Any) -> Floats:
    """Median of S, the delta of the candidate's top-1 minus the least delta of any item."""
    return perturbation.perturbation_s(evidence)


PERSISTENCE = 0.9
"""p of rank-biased overlap: the probability that a reader goes on to the next rank."""


@whole_ranking("rbo", direction="higher", undefined_when="no input has an item")
def _rbo(evidence: Evidence, cutoff: int, *_: Any) -> Floats:
    """Mean rank-biased overlap of the two top-k, extrapolated, p = 0.9: 1 if the same, 0 if they share nothing.

    X_k / k p^k + (1 - p) / p sum_d X_d / d p^d, where X_d counts the items that both have in the first d ranks.
    Source: Webber, Moffat and Zobel (2010), equation 30 for lists of one length.
    """
    before, after = (top.items[:, :cutoff] for top in (evidence.reference_top, evidence.candidate_top))
    shared, agreement, series = np.zeros((3, len(before)))
    for rank in range(1, before.shape[1] + 1):
        here, there = before[:, rank - 1, None], after[:, rank - 1, None]
        shared += (after[:, :rank] == here).any(axis=1)
        shared += (before[:, : rank - 1] == there).any(axis=1)
        inside = here[:, 0] >= 0
        agreement = np.where(inside, shared / rank, agreement)
        series += np.where(inside, shared / rank, 0) * PERSISTENCE**rank
    length = (before >= 0).sum(axis=1)
    value = series * (1 - PERSISTENCE) / PERSISTENCE + agreement * PERSISTENCE**length
    return np.where(length > 0, value, np.nan)


@whole_ranking("overlap", direction="higher", undefined_when="no input has an item")
def _overlap(evidence: Evidence, cutoff: int, *_: Any) -> Floats:
    """Mean share of the reference's top-k that is in the candidate's top-k.

    For an approximate index (`index.overlap@10`) this is the recall@k of index benchmarks.
    """
    before, after = (top.items[:, :cutoff] for top in (evidence.reference_top, evidence.candidate_top))
    there = before >= 0
    shared = (there & (before[:, :, None] == after[:, None, :]).any(axis=2)).sum(axis=1)
    return np.where(there.any(axis=1), shared / there.sum(axis=1).clip(min=1), np.nan)


@whole_ranking(
    "tau_b",
    direction="higher",
    low=-1,
    undefined_when="no input has two items that score differently in both arms",
    when_cut="undefined",
)
def _tau_b(evidence: Evidence, cutoff: int, *_: Any) -> Floats:
    """Mean Kendall's tau-b between the two arms' scores of the reference's top-k items.

    (C - D) / sqrt(U V): of the pairs of items, C are in the same order in both arms and D in reversed order, U have
    different scores in the one arm and V in the other. For each distance in ranks, all pairs are compared at once.
    """
    top = evidence.reference_top
    there = top.items[:, :cutoff] >= 0
    before, after = (
        np.where(there, scores[:, :cutoff], np.float32(np.nan))
        for scores in (top.reference_scores, top.candidate_scores)
    )
    agreement, apart_before, apart_after = np.zeros((3, len(there)), dtype=np.int64)
    for ranks in range(1, there.shape[1]):
        order_before, order_after = _order(before, ranks), _order(after, ranks)
        agreement += (order_before * order_after).sum(axis=1)  # C - D
        apart_before += np.count_nonzero(order_before, axis=1)
        apart_after += np.count_nonzero(order_after, axis=1)
    with np.errstate(invalid="ignore"):  # 0 / 0 where an arm ties all its items
        tau = agreement / np.sqrt(apart_before) / np.sqrt(apart_after)
    return np.asarray(np.clip(tau, -1.0, 1.0))  # roots round


def _order(scores: NDArray[np.float32], ranks: int) -> NDArray[np.int8]:
    """1 if a score is higher than the one this many ranks below, -1 if it is lower, else 0."""
    above, below = scores[:, :-ranks], scores[:, ranks:]
    return (above > below).astype(np.int8) - (above < below).astype(np.int8)
