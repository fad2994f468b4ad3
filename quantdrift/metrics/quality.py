"""Against relevance labels: what each arm scores, and what was lost on the way."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence import Evidence
from quantdrift.metrics.base import Arm, Family

__all__ = ["FAMILIES"]

_NO_RELEVANT = "no input has a relevant item"


def _grades(evidence: Evidence, arm: Arm, cutoff: int) -> NDArray[np.float64]:
    """Grades of one arm's first ranks, float64 [n_inputs, cutoff]; 0 where not relevant."""
    top = evidence.reference_top if arm == "reference" else evidence.candidate_top
    items = top.items[:, :cutoff]
    grades = np.zeros(items.shape)
    judgements = evidence.judgements
    if judgements is None:
        return grades
    for row in range(evidence.n_inputs):
        labels = judgements.of(row)
        if labels:
            grades[row] = [max(labels.get(item, 0), 0) for item in items[row].tolist()]
    return grades


def _relevant_grades(evidence: Evidence) -> list[NDArray[np.float64]]:
    """Per input the positive grades of everything judged, greatest first."""
    judgements = evidence.judgements
    if judgements is None:
        return [np.empty(0)] * evidence.n_inputs
    parts = np.split(judgements.grades, judgements.offsets[1:-1])
    return [np.sort(part[part > 0])[::-1].astype(np.float64) for part in parts]


def _ndcg(evidence: Evidence, cutoff: int, arm: Arm) -> NDArray[np.float64]:
    """DCG@k / ideal DCG@k with linear gains and log2 discounts, as trec_eval has it."""
    grades = _grades(evidence, arm, cutoff)
    discounts = 1 / np.log2(np.arange(2, cutoff + 2))
    dcg = grades @ discounts[: grades.shape[1]]
    ideal = np.array(
        [part[:cutoff] @ discounts[: len(part[:cutoff])] for part in _relevant_grades(evidence)]
    )
    return _ratio(dcg, ideal)


def _recall(evidence: Evidence, cutoff: int, arm: Arm) -> NDArray[np.float64]:
    found = (_grades(evidence, arm, cutoff) > 0).sum(axis=1).astype(np.float64)
    return _ratio(found, np.array([len(part) for part in _relevant_grades(evidence)], dtype=float))


def _mrr(evidence: Evidence, cutoff: int, arm: Arm) -> NDArray[np.float64]:
    relevant = _grades(evidence, arm, cutoff) > 0
    first = 1 / (1 + relevant.argmax(axis=1))
    some = np.array([len(part) > 0 for part in _relevant_grades(evidence)])
    return np.where(some, np.where(relevant.any(axis=1), first, 0.0), np.nan)


def _ratio(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1), np.nan)


def _gold_lost(evidence: Evidence, cutoff: int, arm: Arm) -> NDArray[np.float64]:
    """1.0 where a relevant item of the reference top-k is not in the candidate top-k, else 0.0.

    NaN where no relevant item was in the reference top-k.
    """
    gold = _grades(evidence, "reference", cutoff) > 0
    reference = evidence.reference_top.items[:, :cutoff]
    candidate = evidence.candidate_top.items[:, :cutoff]
    kept = (reference[:, :, None] == candidate[:, None, :]).any(axis=2)
    lost = (gold & ~kept).any(axis=1).astype(np.float64)
    return np.where(gold.any(axis=1), lost, np.nan)


FAMILIES = (
    Family(
        name="gold_lost",
        summary="of the inputs with a relevant item in the reference top-k, the share where one of "
        "those items is no longer in the candidate top-k",
        direction="lower",
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=_gold_lost,
        undefined_when="no input has a relevant item in the reference top-k",
        needs_labels=True,
        cutoffs=(1, 5, 10),
    ),
    Family(
        name="ndcg",
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
    ),
    Family(
        name="recall",
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
        name="mrr",
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
)
