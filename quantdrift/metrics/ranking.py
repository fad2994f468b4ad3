"""What needs no relevance labels: the top of the list, gap and perturbation, the whole ranking.

Source: paper, sections 3 and 5.2, and the appendix's table of top-k sets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.evidence import Evidence
from quantdrift.metrics.base import define

Floats = NDArray[np.float64]

_NO_ITEM = "no input has an item"
_ONE_ITEM = "no input has two items to compare"
_NO_FLIP = "no input flipped"

top_of_list = partial(define, section="top of the list")
whole_ranking = partial(define, section="whole ranking", kind="mean", unit="similarity", cutoffs=(10,))
gap_and_perturbation = partial(
    define, section="gap and perturbation", infinite_when="the typical input did not change at all (epsilon 0)"
)


@top_of_list(
    "flip",
    "share of inputs whose top-1 item differs between reference and candidate",
    direction="lower",
    undefined_when=_NO_ITEM,
    cutoffs=(1,),
    other_cutoffs=False,
    headline=True,
)
def _flip(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
    return np.where(evidence.n_items > 0, perturbation.flips(evidence).astype(np.float64), np.nan)


@top_of_list(
    "noise_floor",
    "flip rate of the reference against itself under another batch size and order",
    direction="lower",
    undefined_when="the noise floor was not measured",
    headline=True,
    of_reference=True,
)
def _noise_floor(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
    if evidence.noise is None:
        return np.full(evidence.n_inputs, np.nan)
    return np.where(evidence.n_items > 0, evidence.noise.flips.astype(np.float64), np.nan)


@top_of_list(
    "tied",
    "share of inputs whose reference ranks 1 and 2 have exactly the same score",
    direction="none",
    undefined_when=_ONE_ITEM,
    ranks=2,
    of_reference=True,
)
def _tied(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
    return np.where(evidence.n_items > 1, perturbation.tied_top(evidence).astype(np.float64), np.nan)


@top_of_list(
    "set_kept",
    "share of inputs whose top-k holds exactly the same items, in any order",
    direction="higher",
    undefined_when=_NO_ITEM,
    cutoffs=(1, 2, 3, 5),
)
def _set_kept(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
    return np.where(evidence.n_items > 0, perturbation.top_set_kept(evidence, cutoff).astype(np.float64), np.nan)


@top_of_list(
    "flip_to_runner_up",
    "of the flips, the share where the reference's runner-up became first",
    direction="none",
    undefined_when=_NO_FLIP,
    ranks=2,
)
def _runner_up(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
    rank = _new_top_rank(evidence, cutoff, arm)
    return np.where(np.isnan(rank), np.nan, (rank == 2).astype(np.float64))  # noqa: PLR2004 -- rank 2


@top_of_list(
    "new_top_rank",
    "median rank, in the reference, of the item that a flip put first",
    kind="median",
    low=2,
    unit="rank",
    direction="lower",
    undefined_when=_NO_FLIP,
    infinite_when="it lies below the stored ranks; run again with a larger --k",
    censored=lambda evidence: evidence.depth + 1,
)
def _new_top_rank(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
    return np.where(_flip(evidence, cutoff, arm) == 1, perturbation.new_top_rank(evidence), np.nan)


def _typical(
    name: str, summary: str, quantity: Callable[[Evidence], Floats], *, undefined_when: str = _ONE_ITEM, **fields: Any
) -> None:
    """A quantity of every input: reported as its median, unless `kind` says otherwise."""
    fields = {"kind": "median", "ranks": 2, **fields}
    gap_and_perturbation(name, summary, undefined_when=undefined_when, **fields)(
        lambda evidence, cutoff, arm: quantity(evidence)
    )


_typical(
    "separation",
    "median separation ratio, gap / (2 epsilon); at 1 or more the top-1 cannot change",
    perturbation.separation_ratio,
    direction="higher",
    unit="ratio",
    headline=True,
    when_cut="at most",
)
_typical(
    "separation_quantile",
    "the separation ratio that so many percent of the inputs do not exceed",
    perturbation.separation_ratio,
    direction="higher",
    unit="ratio",
    cutoffs=(10, 25, 75, 90),
    cutoff_is="percentile",
    when_cut="at most",
)


@gap_and_perturbation(
    "cut_separation",
    "median of (score of rank k - score of rank k+1) / (2 epsilon); at 1 or more the top-k set cannot change",
    kind="median",
    direction="higher",
    unit="ratio",
    undefined_when="no input has more than k items",
    cutoffs=(1, 2, 3, 5),
    ranks_beyond=1,
    when_cut="at most",
)
def _cut_separation(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
    return perturbation.cut_separation(evidence, cutoff)


_typical(
    "at_risk",
    "share of inputs with a contender: separation ratio below 1",
    perturbation.at_risk,
    kind="rate",
    direction="lower",
    headline=True,
    infinite_when="no finite value",
    when_cut="at least",
)
_typical(
    "stable",
    "share of inputs with an empty contender set: their top-1 cannot change",
    lambda evidence: 1 - perturbation.at_risk(evidence),
    kind="rate",
    direction="higher",
    infinite_when="no finite value",
    when_cut="at most",
)


@gap_and_perturbation(
    "contenders",
    "median number of contenders: items less than 2 epsilon behind the top-1",
    kind="median",
    direction="lower",
    unit="items",
    undefined_when=_ONE_ITEM,
    infinite_when="more contenders than stored ranks; run again with a larger --k",
    censored=lambda evidence: evidence.depth - 1,
    when_cut="at least",
)
def _contenders(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
    count = perturbation.contender_count(evidence).astype(np.float64)
    count[perturbation.contenders_cut_short(evidence)] = np.inf
    return np.where(evidence.n_items > 1, count, np.nan)


_typical(
    "epsilon",
    "median of the largest absolute score change over all items",
    perturbation.epsilon,
    direction="lower",
    undefined_when=_NO_ITEM,
    ranks=1,
    when_cut="at least",
)
_typical(
    "gap",
    "median score difference between ranks 1 and 2 of the reference",
    perturbation.gap,
    direction="higher",
    of_reference=True,
)
_typical(
    "candidate_gap",
    "median score difference between ranks 1 and 2 of the candidate: what one can see",
    perturbation.candidate_gap,
    direction="higher",
)
_typical(
    "S",
    "median of S, the delta of the candidate's top-1 minus the least delta of any item",
    perturbation.perturbation_s,
    direction="lower",
    undefined_when=_NO_ITEM,
    ranks=1,
    when_cut="at least",
)

PERSISTENCE = 0.9
"""p of rank-biased overlap: the chance that a reader goes on to the next rank."""

_BLOCK = 4_000_000  # comparisons at a time; bounds the memory


@whole_ranking(
    "rbo",
    f"mean rank-biased overlap of the two top-k, extrapolated, p = {PERSISTENCE}: 1 if they are the same, "
    "0 if they share nothing",
    direction="higher",
    undefined_when="no input has an item",
    headline=True,
)
def _rbo(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
    """Extrapolated rank-biased overlap of two lists of the same length k.

    X_k / k p^k + (1 - p) / p sum_d X_d / d p^d, where X_d counts the items that both have in the first d ranks.
    Source: Webber, Moffat and Zobel (2010), equation 30 for lists of one length.
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


@whole_ranking(
    "tau_b",
    "mean Kendall's tau-b between the two arms' scores of the reference's top-k items",
    direction="higher",
    low=-1,
    undefined_when="no input has two items that score differently in both arms",
    when_cut="undefined",
    ties="equal scores count as ties (tau-b); position decides nothing",
)
def _tau_b(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
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


def _tau_b_of_rows(before: NDArray[np.float32], after: NDArray[np.float32]) -> Floats:
    """Tau-b of every row of two arms' scores [n, k], NaN where a row has no item.

    (C - D) / sqrt(U V): of the pairs of items, C are in one order in both arms and D in reversed, U score differently
    in the one arm and V in the other. An item is compared with the one that stands so many ranks below, for each
    number of ranks, in all rows at once.
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
