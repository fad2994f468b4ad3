"""Relevance labels as arrays: grades of ranked items, what is relevant, ideal rankings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence import Evidence

__all__ = ["arm_grades", "ideal_dcg", "judged", "relevant_count"]

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
