"""What makes the answers of a run meaningless, so that no verdict rests on them."""

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence.record import Evidence
from quantdrift.metrics.relevance import arm_grades, relevant_count

_ROUNDING = 1e-5
"""Relative difference of two scores that rounding explains."""
_ALIKE = 10
"""Inputs from which on equal answers to all of them are a sign."""
_MANY = 100
"""Ranked items from which on the first ten count, not the first alone."""
_Z = 1.645
"""Standard deviations above chance that chance exceeds in one of 20 runs."""


def forbidding(evidence: Evidence) -> dict[str, str]:
    """Return what forbids a verdict on a run, a code to a sentence without its stop; empty where nothing does.

    - `reference_constant`, `candidate_constant`: an arm gives all items of an input one score, or all inputs the same
      scores, as zero or equal embeddings do;
    - `reference_near_chance`: the reference does not find relevant items more often than random picks do.
    """
    if evidence.deltas == "none":  # free answers, which have no scores
        return {}
    arms = {
        "reference": (evidence.reference_top.items, evidence.reference_top.reference_scores),
        "candidate": (evidence.candidate_top.items, evidence.candidate_top.candidate_scores),
    }
    said = {f"{arm}_constant": _constant(arm, *top) for arm, top in arms.items()}
    said["reference_near_chance"] = _near_chance(evidence)
    return {code: sentence for code, sentence in said.items() if sentence}


def _constant(arm: str, items: NDArray[np.int64], scores: NDArray[np.float32]) -> str:
    """Say that an arm does not tell items, or inputs, apart; empty where it does."""
    there = items >= 0
    if not there.any():
        return ""
    values = np.where(there, scores, 0).astype(np.float64)
    rounding = _ROUNDING * np.abs(values).max()
    spread = np.where(there, values, -np.inf).max(axis=1) - np.where(there, values, np.inf).min(axis=1)
    several = there.sum(axis=1) > 1
    if several.any() and (spread[several] <= rounding).all():
        return f"the {arm} gives all items of an input the same score, so that which comes first means nothing"
    same = (items == items[0]).all() and (np.ptp(values, axis=0) <= rounding).all()
    return f"the {arm} answers all {len(items):,} inputs alike" if same and len(items) >= _ALIKE else ""


def _near_chance(evidence: Evidence) -> str:
    """Say that the reference finds no more than random picks; empty where it does, or where that cannot be told.

    What random picks find of an input's R relevant items among its first k of N has the mean k R / N and the variance
    of the hypergeometric distribution.
    """
    n_relevant = np.minimum(relevant_count(evidence), evidence.n_items)
    rows = (n_relevant > 0) & (n_relevant < evidence.n_items)
    if not evidence.exact or not rows.any():
        return ""
    first = np.where(evidence.n_items >= _MANY, min(10, evidence.depth), 1)
    ranks = np.arange(min(10, evidence.depth))
    hits = (arm_grades(evidence, "reference", 10) > 0) & (ranks < first[:, None])
    k, n, share = first[rows], evidence.n_items[rows], n_relevant[rows] / evidence.n_items[rows]
    expected = float((k * share).sum())
    spread = float(np.sqrt((k * share * (1 - share) * (n - k) / (n - 1)).sum()))
    found = int(hits[rows].sum())
    if found > expected + _Z * spread:
        return ""
    return (
        f"the reference finds {found:,} relevant items among the first {int(k.max())} of {rows.sum():,} inputs, and "
        f"random picks would find {expected:.3g}: what right answers are lost cannot be told"
    )
