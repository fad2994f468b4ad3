"""Metrics with relevance labels: each arm's quality (as in trec_eval), and relevant items lost and gained."""

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Evidence, once
from quantdrift.metrics.base import PerInput, define

Floats = NDArray[np.float64]

_NO_RELEVANT = "no input has a relevant item"
_NO_JUDGEMENT = "no input has a judgement"


@once
def arm_grades(evidence: Evidence, arm: Any, cutoff: int) -> Floats:
    """Grades of one arm's first ranks, float64 [n_inputs, min(cutoff, depth)]; 0 if not judged or not relevant."""
    top = evidence.reference_top if arm == "reference" else evidence.candidate_top
    items = top.items[:, :cutoff]
    judgements = evidence.judgements
    if judgements is None or not len(judgements.items):
        return np.zeros(items.shape)
    keys, grades = _looked_up(evidence)
    wanted = np.arange(evidence.n_inputs)[:, None] * len(evidence.item_ids) + items
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where((items >= 0) & (keys[places] == wanted), grades[places], 0.0)


@once
def _looked_up(evidence: Evidence) -> tuple[NDArray[np.int64], Floats]:
    """An increasing number for each judged (input, item), for binary search, and the grades."""
    judgements = evidence.judgements
    assert judgements is not None  # callers check this
    keys = _rows(evidence) * len(evidence.item_ids) + judgements.items
    order = np.argsort(keys, kind="stable")
    return keys[order], np.maximum(judgements.grades[order], 0).astype(np.float64)


def judged(evidence: Evidence) -> NDArray[np.bool_]:
    """The inputs with at least one judgement, bool [n_inputs]."""
    if evidence.judgements is None:
        return np.zeros(evidence.n_inputs, dtype=bool)
    return np.diff(evidence.judgements.offsets) > 0


@once
def relevant_count(evidence: Evidence) -> Floats:
    """Count the items that are judged relevant (grade above 0), float64 [n_inputs]."""
    if evidence.judgements is None:
        return np.zeros(evidence.n_inputs)
    relevant = evidence.judgements.grades > 0
    return np.bincount(_rows(evidence)[relevant], None, evidence.n_inputs).astype(np.float64)


def ideal_dcg(evidence: Evidence, discounts: Floats) -> Floats:
    """DCG of the best possible ranking of all judged items, float64 [n_inputs]."""
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
    assert evidence.judgements is not None  # callers check this
    return np.repeat(np.arange(evidence.n_inputs), np.diff(evidence.judgements.offsets))


of_labels = partial(define, section="relevance", needs_labels=True)
gain = partial(of_labels, kind="mean", direction="higher", undefined_when=_NO_RELEVANT, arms=True)


@gain("ndcg", cutoffs=(10,))
def _ndcg(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
    """Mean normalized discounted cumulative gain (linear gains, as trec_eval).

    DCG@k / ideal DCG@k with log2 discounts.
    """
    grades = arm_grades(evidence, arm, cutoff)
    discounts = 1 / np.log2(np.arange(2, cutoff + 2))
    return _ratio(grades @ discounts[: grades.shape[1]], ideal_dcg(evidence, discounts))


@gain("recall", cutoffs=(1, 10))
def _recall(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
    """Mean share of the relevant items that are in the top-k."""
    hits = (arm_grades(evidence, arm, cutoff) > 0).sum(axis=1).astype(np.float64)
    return _ratio(hits, relevant_count(evidence))


@gain("accuracy", kind="rate")
def _accuracy(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
    """Share of inputs whose top-1 is right: the labelled class, or a relevant item."""
    # of generated answers only those given are judged, and both can be wrong
    marked = judged(evidence) if evidence.unranked else relevant_count(evidence) > 0
    return np.where(marked, arm_grades(evidence, arm, 1)[:, 0] > 0, np.nan)


@gain("mrr", cutoffs=(10,))
def _mrr(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
    """Mean reciprocal rank of the first relevant item in the top-k, 0 if there is none."""
    relevant = arm_grades(evidence, arm, cutoff) > 0
    first = np.where(relevant.any(axis=1), 1 / (1 + relevant.argmax(axis=1)), 0.0)
    return np.where(relevant_count(evidence) > 0, first, np.nan)


@gain("served_relevance", high=math.inf, unit="grade", undefined_when=_NO_JUDGEMENT)
def _served_relevance(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
    """Mean relevance grade of the top-1 item (0 if it is not judged), over the inputs with a judgement."""
    return np.where(judged(evidence), arm_grades(evidence, arm, 1)[:, 0], np.nan)


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1), np.nan)


def _missing(evidence: Evidence, cutoff: int, arm: Any, other: Any) -> Floats:
    """1.0 if a relevant item of one arm's top-k is not in the other's, else 0.0; NaN if the arm has none."""
    tops = {"reference": evidence.reference_top, "candidate": evidence.candidate_top}
    gold = arm_grades(evidence, arm, cutoff) > 0
    here, there = tops[arm].items[:, :cutoff], tops[other].items[:, :cutoff]
    kept = (here[:, :, None] == there[:, None, :]).any(axis=2)
    return np.where(gold.any(axis=1), (gold & ~kept).any(axis=1), np.nan)


of_gold = partial(of_labels, cutoffs=(1, 5, 10))


@of_gold("gold_lost", direction="lower", undefined_when="no input has a right answer in the reference top-k")
def _gold_lost(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
    """Of the inputs with a right answer in the reference top-k, the share where one of them left the top-k."""
    return _missing(evidence, cutoff, "reference", "candidate")


@of_gold("gold_gained", direction="higher", undefined_when="no input has a right answer in the candidate top-k")
def _gold_gained(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
    """Of the inputs with a right answer in the candidate top-k, the share where one of them was not in it before."""
    return _missing(evidence, cutoff, "candidate", "reference")


def _top_became(before: bool, after: bool, *, of_flips: bool) -> PerInput:
    """1.0 for flips from a top-1 of relevance `before` to one of relevance `after`, among flips or all inputs."""

    def per_input(evidence: Evidence, cutoff: int, arm: Any) -> Floats:
        flipped = perturbation.flips(evidence)
        old, new = (arm_grades(evidence, which, 1)[:, 0] > 0 for which in ("reference", "candidate"))
        counted = judged(evidence) & flipped if of_flips else judged(evidence)
        return np.where(counted, flipped & (old == before) & (new == after), np.nan)

    return per_input


_OF_FLIPS = (True, "of the flips, the share", "no input with a judgement flipped")
_OF_JUDGED = (False, "share of the inputs with a judgement", _NO_JUDGEMENT)
for _name, (_of_flips, _of, _why), _before, _after, _better, _what in (
    ("flip_to_irrelevant", _OF_FLIPS, True, False, "lower", "that replace a right first answer by one that is not"),
    ("flip_among_relevant", _OF_FLIPS, True, True, "none", "from one right first answer to another"),
    ("flip_to_relevant", _OF_FLIPS, False, True, "higher", "that bring a right first answer where there was none"),
    ("flip_among_unjudged", _OF_FLIPS, False, False, "none", "between two items of which neither is judged relevant"),
    ("harm", _OF_JUDGED, True, False, "lower", "whose right first answer is replaced by one that is not"),
    ("benefit", _OF_JUDGED, False, True, "higher", "that get a right first answer where there was none"),
):
    _became = _top_became(_before, _after, of_flips=_of_flips)
    of_labels(_name, f"{_of} {_what}", direction=_better, undefined_when=_why)(_became)
