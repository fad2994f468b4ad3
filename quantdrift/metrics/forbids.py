"""The faults that make the answers of a run meaningless, so that there is no verdict on them."""

import numpy as np

from quantdrift.evidence.record import Evidence, Top
from quantdrift.metrics.relevance import arm_grades, relevant_count

DRAWN = "stopped_by_answers"
"""The same of a run that stopped when its own answers were enough; the runner tells it."""
_ROUNDING = 1e-5
"""Relative difference of two scores that can be rounding."""
_ALIKE = 10
"""Least number of inputs at which equal answers to all of them are suspicious."""
_MANY = 100
"""Number of items from which on the first ten ranks are counted instead of the first."""
_Z = 1.645
"""Standard deviations above the mean that chance exceeds in one of 20 runs."""


def forbidding(evidence: Evidence) -> dict[str, str]:
    """The faults that forbid a verdict on a run, code to sentence without full stop; empty if there are none.

    - `reference_constant`, `candidate_constant`: an arm gives all items of an input one score, or all inputs the same
      scores, as zero or equal embeddings do;
    - `reference_near_chance`: the reference finds relevant items no more often than random picks.
    """
    if evidence.deltas == "none":  # free answers, which have no scores
        return {}
    said = {f"{arm}_constant": _constant(arm, getattr(evidence, f"{arm}_top")) for arm in ("reference", "candidate")}
    said["reference_near_chance"] = _near_chance(evidence)
    return {code: sentence for code, sentence in said.items() if sentence}


def _constant(arm: str, top: Top) -> str:
    """A sentence if an arm does not distinguish items, or inputs; else empty."""
    items, scores = top.items, getattr(top, f"{arm}_scores")
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
    """A sentence if the reference finds no more than random picks; else, or if that cannot be told, empty.

    The number of an input's R relevant items among k random picks of N has the mean k R / N and the variance of the
    hypergeometric distribution.
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
    firsts = "first answers" if k.max() == 1 else f"first {int(k.max())} answers"
    return (
        f"{found:,} of the reference's {firsts} to {rows.sum():,} inputs {'is' if found == 1 else 'are'} right, and "
        f"random picks would give {expected:.3g}: the loss of right answers cannot be determined"
    )
