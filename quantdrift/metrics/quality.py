"""Against relevance labels: what each arm scores. Names and definitions are trec_eval's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence import Evidence
from quantdrift.metrics.base import Family
from quantdrift.metrics.labels import arm_grades, ideal_dcg, judged, relevant_count

__all__ = ["FAMILIES"]

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


FAMILIES = (
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
        summary="mean relevance grade of the top-1 item (0 if it is not judged), over the inputs "
        "with a judgement",
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
