"""Retrieval's analogue of routing: the candidate's first k items in the order of the reference.

A query whose gap is small is encoded at full precision, and the k documents that the candidate found are compared
with it again by full-precision embeddings. What the candidate did not find among its first k cannot come back: the
share of top-1 changes whose true first item is there is the ceiling.

All of it is computed from stored evidence, which holds the reference's scores of the candidate's first items.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence.perturbation import flips
from quantdrift.evidence.record import Evidence
from quantdrift.metrics import MetricError, parse_metric
from quantdrift.statistics.conformal import confidence_in
from quantdrift.trust.rescoring import DEPTHS, stored_depths, within
from quantdrift.trust.router import percentile_threshold

QUALITY = "ndcg@10"


def rescored_ranking(evidence: Evidence, k: int) -> NDArray[np.int64]:
    """The candidate's ranking after the first k items of all inputs were rescored, int64 [n_inputs, depth].

    Ties in the reference's scores break by its stored ranking, then by the candidate's.
    """
    top, ranked = evidence.candidate_top, evidence.reference_top.items
    first, ranking = top.items[:, :k], top.items.copy()
    places = np.empty_like(first)
    for column in range(first.shape[1]):
        here = ranked == first[:, column, None]
        places[:, column] = np.where(here.any(axis=1), here.argmax(axis=1), ranked.shape[1] + column)
    # what has no item (-1) stays last
    scores = np.where(first >= 0, top.reference_scores[:, :k], -np.inf)
    order = np.lexsort((np.where(first >= 0, places, np.iinfo(np.int64).max), -scores), axis=1)
    ranking[:, :k] = np.take_along_axis(first, order, axis=1)
    return ranking


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescoring:
    """What rescoring does to a run at one threshold and depth.

    Attributes:
        percentile: of the candidate gap; queries below it are rescored.
        k: how many of the candidate's first items are rescored.
        encoded: share of the queries that are encoded at full precision, 0 to 1.
        documents: documents compared at full precision, per query of the run (no document is encoded).
        restored: share of the top-1 changes that become the reference's again; None if none changed.
        ceiling: the same if every query were rescored: share whose reference's first item is among the k.
        change: mean nDCG@10 after rescoring minus the candidate's; None without labels or ten stored ranks.
        loss: the reference's minus the candidate's: what there was to gain.
    """

    percentile: float
    k: int
    encoded: float
    documents: float
    restored: float | None
    ceiling: float | None
    change: float | None
    loss: float | None


def rescore(
    evidence: Evidence, *, percentiles: Sequence[float], depths: Sequence[int] = DEPTHS
) -> tuple[Rescoring, ...]:
    """What rescoring gives back, one entry for each percentile and depth, in that order.

    The threshold is the percentile on the run itself. Depths beyond the stored ranks are left out.
    """
    confidence, changed = confidence_in(evidence, "gap"), flips(evidence)
    top, first = evidence.candidate_top, evidence.reference_top.items[:, 0]
    before, whole = _mean(QUALITY, evidence), _mean(f"reference.{QUALITY}", evidence)
    rankings = {k: rescored_ranking(evidence, k) for k in stored_depths(evidence, depths)}
    entries = []
    for percentile in percentiles:
        rows = confidence < percentile_threshold(confidence, percentile)
        for k, ranking in rankings.items():
            items = np.where(rows[:, None], ranking, top.items)
            # the scores do not belong to these items any more
            unknown = np.full_like(top.reference_scores, np.nan)
            moved = replace(top, items=items, reference_scores=unknown, candidate_scores=unknown)
            after = _mean(QUALITY, replace(evidence, candidate_top=moved))
            entries.append(
                Rescoring(
                    percentile=percentile,
                    k=k,
                    encoded=float(rows.mean()),
                    documents=float((rows * np.minimum(evidence.n_items, k)).mean()),
                    restored=_share(items[:, 0] == first, changed),
                    ceiling=_share(within(evidence, k), changed),
                    change=None if np.isnan(after) else after - before,
                    loss=None if np.isnan(before) else whole - before,
                )
            )
    return tuple(entries)


def _mean(name: str, evidence: Evidence) -> float:
    """NaN where no input has a value, or the metric looks deeper than what is stored."""
    try:
        values = parse_metric(name).per_input(evidence)
    except MetricError:
        return np.nan
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else np.nan


def _share(back: NDArray[np.bool_], changed: NDArray[np.bool_]) -> float | None:
    return float(back[changed].mean()) if changed.any() else None
