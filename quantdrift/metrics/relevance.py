"""What happened at the top of the list. Source: paper, section 5.2 and appendix, top-k table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.evidence import Evidence
from quantdrift.metrics.base import Direction, Family, PerInput

# --- ranking --------------------------------------------------------------------------------------

_NO_FLIP = "no input flipped"


def _flip(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    return np.where(evidence.n_items > 0, perturbation.flips(evidence).astype(np.float64), np.nan)


def _set_kept(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    kept = perturbation.top_set_kept(evidence, cutoff).astype(np.float64)
    return np.where(evidence.n_items > 0, kept, np.nan)


def _new_top_rank(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    flipped = _flip(evidence, cutoff, arm) == 1
    return np.where(flipped, perturbation.new_top_rank(evidence), np.nan)


def _runner_up(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    rank = _new_top_rank(evidence, cutoff, arm)
    return np.where(np.isnan(rank), np.nan, (rank == 2).astype(np.float64))  # noqa: PLR2004 -- rank 2


def _noise_floor(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    if evidence.noise is None:
        return np.full(evidence.n_inputs, np.nan)
    return np.where(evidence.n_items > 0, evidence.noise.flips.astype(np.float64), np.nan)


def _tied(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    tied = perturbation.tied_top(evidence).astype(np.float64)
    return np.where(evidence.n_items > 1, tied, np.nan)


FAMILIES = (
    Family(
        name="flip",
        section="top of the list",
        summary="share of inputs whose top-1 item differs between reference and candidate",
        direction="lower",
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=_flip,
        undefined_when="no input has an item",
        cutoffs=(1,),
        other_cutoffs=False,
        headline=True,
    ),
    Family(
        name="noise_floor",
        section="top of the list",
        summary="flip rate of the reference against itself under another batch size and order",
        direction="lower",
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=_noise_floor,
        undefined_when="the noise floor was not measured",
        headline=True,
        of_reference=True,
    ),
    Family(
        name="tied",
        section="top of the list",
        summary="share of inputs whose reference ranks 1 and 2 have exactly the same score",
        direction="none",
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=_tied,
        ranks=2,
        undefined_when="no input has two items to compare",
        of_reference=True,
    ),
    Family(
        name="set_kept",
        section="top of the list",
        summary="share of inputs whose top-k holds exactly the same items, in any order",
        direction="higher",
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=_set_kept,
        undefined_when="no input has an item",
        cutoffs=(1, 2, 3, 5),
    ),
    Family(
        name="flip_to_runner_up",
        section="top of the list",
        summary="of the flips, the share where the reference's runner-up became first",
        direction="none",
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=_runner_up,
        ranks=2,
        undefined_when=_NO_FLIP,
    ),
    Family(
        name="new_top_rank",
        section="top of the list",
        summary="median rank, in the reference, of the item that a flip put first",
        direction="lower",
        low=2,
        high=float("inf"),
        unit="rank",
        uncertainty="order statistics",
        per_input=_new_top_rank,
        undefined_when=_NO_FLIP,
        infinite_when="it lies below the stored ranks; run again with a larger --k",
        censored=lambda evidence: evidence.depth + 1,
    ),
)

# --- Relevance labels as arrays: grades of ranked items, what is relevant, ideal rankings ---------

Floats = NDArray[np.float64]


def arm_grades(evidence: Evidence, arm: Any, cutoff: int) -> Floats:
    """Grades of one arm's first ranks; 0 where not judged or not relevant.

    Args:
        evidence: with or without labels.
        arm: "reference" or "candidate".
        cutoff: how many ranks.

    Returns:
        float64 [n_inputs, min(cutoff, depth)], at least 0.
    """
    top = evidence.reference_top if arm == "reference" else evidence.candidate_top
    items = top.items[:, :cutoff]
    judgements = evidence.judgements
    if judgements is None or not len(judgements.items):
        return np.zeros(items.shape)
    # one number per (input, item), so that one binary search looks all of them up
    n_items = len(evidence.item_ids)
    keys = _rows(evidence) * n_items + judgements.items
    order = np.argsort(keys, kind="stable")
    keys, grades = keys[order], np.maximum(judgements.grades[order], 0).astype(np.float64)
    wanted = np.arange(evidence.n_inputs)[:, None] * n_items + items
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where((items >= 0) & (keys[places] == wanted), grades[places], 0.0)


def judged(evidence: Evidence) -> NDArray[np.bool_]:
    """Which inputs carry at least one judgement, bool [n_inputs]."""
    if evidence.judgements is None:
        return np.zeros(evidence.n_inputs, dtype=bool)
    return np.diff(evidence.judgements.offsets) > 0


def relevant_count(evidence: Evidence) -> Floats:
    """How many items are judged relevant (grade above 0), float64 [n_inputs]."""
    if evidence.judgements is None:
        return np.zeros(evidence.n_inputs)
    relevant = evidence.judgements.grades > 0
    return np.bincount(_rows(evidence)[relevant], None, evidence.n_inputs).astype(np.float64)


def ideal_dcg(evidence: Evidence, discounts: Floats) -> Floats:
    """DCG of the best possible ranking of everything judged, float64 [n_inputs].

    Args:
        evidence: with or without labels.
        discounts: [k], the weight of each rank.
    """
    if evidence.judgements is None:
        return np.zeros(evidence.n_inputs)
    rows, grades = _rows(evidence), np.maximum(evidence.judgements.grades, 0)
    order = np.lexsort((-grades, rows))
    rows, grades = rows[order], grades[order]
    rank = np.arange(len(rows)) - evidence.judgements.offsets[rows]
    inside = rank < len(discounts)
    gains = grades[inside] * discounts[rank[inside]]
    return np.bincount(rows[inside], gains, evidence.n_inputs).astype(np.float64)


def _rows(evidence: Evidence) -> NDArray[np.int64]:
    """The input that each judgement belongs to."""
    assert evidence.judgements is not None  # callers have looked
    return np.repeat(np.arange(evidence.n_inputs), np.diff(evidence.judgements.offsets))


# --- Against relevance labels: what each arm scores. Names and definitions are trec_eval's --------

_NO_RELEVANT = "no input has a relevant item"


def _ndcg(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    """DCG@k / ideal DCG@k with linear gains and log2 discounts, as trec_eval has it."""
    grades = arm_grades(evidence, arm, cutoff)
    discounts = 1 / np.log2(np.arange(2, cutoff + 2))
    return _ratio(grades @ discounts[: grades.shape[1]], ideal_dcg(evidence, discounts))


def _recall(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    found = (arm_grades(evidence, arm, cutoff) > 0).sum(axis=1).astype(np.float64)
    return _ratio(found, relevant_count(evidence))


def _accuracy(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    right = (arm_grades(evidence, arm, 1)[:, 0] > 0).astype(np.float64)
    # of free answers only those given are judged, and both can be wrong
    known = judged(evidence) if evidence.deltas == "none" else relevant_count(evidence) > 0
    return np.where(known, right, np.nan)


def _mrr(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    relevant = arm_grades(evidence, arm, cutoff) > 0
    first = np.where(relevant.any(axis=1), 1 / (1 + relevant.argmax(axis=1)), 0.0)
    return np.where(relevant_count(evidence) > 0, first, np.nan)


def _served_relevance(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    return np.where(judged(evidence), arm_grades(evidence, arm, 1)[:, 0], np.nan)


def _ratio(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1), np.nan)


QUALITY_FAMILIES = (
    Family(
        name="ndcg",
        section="relevance",
        summary="mean normalized discounted cumulative gain (linear gains, as trec_eval)",
        direction="higher",
        low=0,
        high=1,
        unit="gain",
        uncertainty="bootstrap",
        per_input=_ndcg,
        undefined_when=_NO_RELEVANT,
        needs_labels=True,
        cutoffs=(10,),
        arms=True,
        headline=True,
    ),
    Family(
        name="recall",
        section="relevance",
        summary="mean share of the relevant items that are in the top-k",
        direction="higher",
        low=0,
        high=1,
        unit="gain",
        uncertainty="bootstrap",
        per_input=_recall,
        undefined_when=_NO_RELEVANT,
        needs_labels=True,
        cutoffs=(1, 10),
        arms=True,
    ),
    Family(
        name="accuracy",
        section="relevance",
        summary="share of inputs whose top-1 is right: the labelled class, or a relevant item",
        direction="higher",
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=_accuracy,
        undefined_when=_NO_RELEVANT,
        needs_labels=True,
        arms=True,
    ),
    Family(
        name="mrr",
        section="relevance",
        summary="mean reciprocal rank of the first relevant item in the top-k, 0 if there is none",
        direction="higher",
        low=0,
        high=1,
        unit="gain",
        uncertainty="bootstrap",
        per_input=_mrr,
        undefined_when=_NO_RELEVANT,
        needs_labels=True,
        cutoffs=(10,),
        arms=True,
    ),
    Family(
        name="served_relevance",
        section="relevance",
        summary="mean relevance grade of the top-1 item (0 if it is not judged), over the inputs with a judgement",
        direction="higher",
        low=0,
        high=float("inf"),
        unit="grade",
        uncertainty="bootstrap",
        per_input=_served_relevance,
        undefined_when="no input has a judgement",
        needs_labels=True,
        arms=True,
    ),
)

# --- What became of relevant items: lost and gained from the top-k, and by flips of the top-1 -----

Bools = NDArray[np.bool_]


def _missing(evidence: Evidence, cutoff: int, arm: Any, other: Any) -> NDArray[np.float64]:
    """1.0 where a relevant item of one arm's top-k is not in the other's, else 0.0.

    NaN where that arm has no relevant item in its top-k.
    """
    tops = {"reference": evidence.reference_top, "candidate": evidence.candidate_top}
    gold = arm_grades(evidence, arm, cutoff) > 0
    here, there = tops[arm].items[:, :cutoff], tops[other].items[:, :cutoff]
    kept = (here[:, :, None] == there[:, None, :]).any(axis=2)
    return np.where(gold.any(axis=1), (gold & ~kept).any(axis=1).astype(np.float64), np.nan)


def _gold_lost(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    return _missing(evidence, cutoff, "reference", "candidate")


def _gold_gained(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    return _missing(evidence, cutoff, "candidate", "reference")


Outcome = Callable[[Bools, Bools], Bools]
"""From whether the old and the new top-1 are relevant to whether this is the outcome."""


def _lost(before: Bools, after: Bools) -> Bools:
    return before & ~after


def _kept(before: Bools, after: Bools) -> Bools:
    return before & after


def _won(before: Bools, after: Bools) -> Bools:
    return ~before & after


def _neither(before: Bools, after: Bools) -> Bools:
    return ~before & ~after


def _happened(evidence: Evidence, outcome: Outcome) -> tuple[Bools, Bools]:
    """Which inputs flipped, and which of them with this outcome."""
    flipped = perturbation.flips(evidence)
    before, after = (arm_grades(evidence, arm, 1)[:, 0] > 0 for arm in ("reference", "candidate"))
    return flipped, flipped & outcome(before, after)


def _of_flips(outcome: Outcome) -> PerInput:
    def per_input(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
        flipped, happened = _happened(evidence, outcome)
        return np.where(flipped & judged(evidence), happened.astype(np.float64), np.nan)

    return per_input


def _of_inputs(outcome: Outcome) -> PerInput:
    def per_input(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
        _, happened = _happened(evidence, outcome)
        return np.where(judged(evidence), happened.astype(np.float64), np.nan)

    return per_input


def _rate(
    name: str,
    summary: str,
    per_input: PerInput,
    *,
    direction: Direction,
    undefined_when: str,
    cutoffs: tuple[int, ...] = (),
    headline: bool = False,
) -> Family:
    return Family(
        name=name,
        section="relevance",
        summary=summary,
        direction=direction,
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=per_input,
        undefined_when=undefined_when,
        needs_labels=True,
        cutoffs=cutoffs,
        headline=headline,
    )


_GOLD_NO_FLIP = "no input with a judgement flipped"
_NO_JUDGEMENT = "no input has a judgement"

GOLD_FAMILIES = (
    _rate(
        "gold_lost",
        "of the inputs with a relevant item in the reference top-k, the share where one of "
        "those items is no longer in the candidate top-k",
        _gold_lost,
        direction="lower",
        undefined_when="no input has a relevant item in the reference top-k",
        cutoffs=(1, 5, 10),
        headline=True,
    ),
    _rate(
        "gold_gained",
        "of the inputs with a relevant item in the candidate top-k, the share where one of "
        "those items was not in the reference top-k",
        _gold_gained,
        direction="higher",
        undefined_when="no input has a relevant item in the candidate top-k",
        cutoffs=(1, 5, 10),
    ),
    _rate(
        "flip_to_irrelevant",
        "of the flips, the share that replace a relevant top-1 by one that is not",
        _of_flips(_lost),
        direction="lower",
        undefined_when=_GOLD_NO_FLIP,
    ),
    _rate(
        "flip_among_relevant",
        "of the flips, the share from one relevant top-1 to another",
        _of_flips(_kept),
        direction="none",
        undefined_when=_GOLD_NO_FLIP,
    ),
    _rate(
        "flip_to_relevant",
        "of the flips, the share that bring a relevant top-1 where there was none",
        _of_flips(_won),
        direction="higher",
        undefined_when=_GOLD_NO_FLIP,
    ),
    _rate(
        "flip_among_unjudged",
        "of the flips, the share between two items of which neither is judged relevant",
        _of_flips(_neither),
        direction="none",
        undefined_when=_GOLD_NO_FLIP,
    ),
    _rate(
        "harm",
        "share of the inputs with a judgement whose relevant top-1 is replaced by one that is not",
        _of_inputs(_lost),
        direction="lower",
        undefined_when=_NO_JUDGEMENT,
        headline=True,
    ),
    _rate(
        "benefit",
        "share of the inputs with a judgement that get a relevant top-1 where there was none",
        _of_inputs(_won),
        direction="higher",
        undefined_when=_NO_JUDGEMENT,
    ),
)
