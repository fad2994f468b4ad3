"""Retrieval's analogue of routing: the candidate's first k items in the order of the reference.

A query whose gap is small is encoded at full precision, and the k documents that the candidate found are compared
with it again by full-precision embeddings. What the candidate did not find among its first k cannot come back: the
share of changed first answers whose true first item is there is the ceiling.

All of it is computed from stored evidence, which holds the reference's scores of the candidate's first items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.conformal import confidence_in
from quantdrift.errors import QuantDriftError
from quantdrift.evidence import Evidence
from quantdrift.metrics import MetricError, parse_metric
from quantdrift.perturbation import flips
from quantdrift.trust.router import percentile_threshold, recovery_threshold

DEPTHS = (5, 10, 50)
"""How many first items are rescored, where nothing else is said."""
K = 10
"""How many are rescored at the operating point, if as many ranks are stored."""
RESCORE_PERCENTILES = (10.0, 25.0, 50.0, 100.0)
QUALITY = ("ndcg@10", "accuracy")
"""The first of these that the stored ranks and the labels allow."""


def reorder(
    items: NDArray[np.int64], scores: NDArray[Any], k: int, *, places: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The first k items of each row by these scores, best first; the others stay where they are.

    Ties break by place, lowest first. What has no item (-1) stays last.
    """
    found = items[:, :k] >= 0
    head = np.where(found, scores[:, :k], -np.inf)
    by = np.where(found, (items if places is None else places)[:, :k], np.iinfo(np.int64).max)
    order = np.lexsort((by, -head), axis=1)
    moved, told = items.copy(), scores.copy()
    moved[:, :k] = np.take_along_axis(items[:, :k], order, axis=1)
    told[:, :k] = np.take_along_axis(scores[:, :k], order, axis=1)
    return moved, told


def rescored_ranking(evidence: Evidence, k: int) -> NDArray[np.int64]:
    """The candidate's ranking after the first k items of all inputs were rescored, int64 [n_inputs, depth].

    Ties in the reference's scores break by its stored ranking, then by the candidate's.
    """
    if k < 1 or (k > evidence.depth and evidence.cut_short):
        raise QuantDriftError(f"expected k from 1 to the {evidence.depth} ranks that the run stores; got {k}")
    top, ranked = evidence.candidate_top, evidence.reference_top.items
    places = np.empty_like(top.items[:, :k])
    for column in range(places.shape[1]):
        here = ranked == top.items[:, column, None]
        places[:, column] = np.where(here.any(axis=1), here.argmax(axis=1), ranked.shape[1] + column)
    return reorder(top.items, top.reference_scores, k, places=places)[0]


def within(evidence: Evidence, k: int) -> NDArray[np.bool_]:
    """Whether the reference's first item is among the candidate's first k, bool [n_inputs]."""
    first = evidence.reference_top.items[:, :1]
    return np.asarray((evidence.candidate_top.items[:, :k] == first).any(axis=1))


def stored_depths(evidence: Evidence, depths: Sequence[int] = DEPTHS) -> list[int]:
    """Those depths that a run stores enough ranks for."""
    stored = [k for k in depths if k <= evidence.depth or not evidence.cut_short]
    if not stored:
        raise QuantDriftError(
            f"expected a depth of at most the {evidence.depth} ranks that the run stores; got "
            f"{', '.join(map(str, depths))}"
        )
    return stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescoring:
    """What rescoring does to a run at one threshold and depth.

    Attributes:
        percentile: of the candidate gap; queries below it are rescored.
        k: how many of the candidate's first items are rescored.
        encoded: share of the queries that are encoded at full precision, 0 to 1.
        documents: documents compared at full precision, per query of the run (no document is encoded).
        restored: share of the changed first answers that become the reference's again; None if none changed.
        ceiling: the same if every query were rescored: share whose reference's first item is among the k.
        metric: of `change` and `loss`: "ndcg@10" or "accuracy"; None without labels.
        change: mean of the metric after rescoring minus the candidate's.
        loss: the reference's minus the candidate's: what there was to gain.
        reason: why there is no metric.
    """

    percentile: float
    k: int
    encoded: float
    documents: float
    restored: float | None
    ceiling: float | None
    metric: str | None = None
    change: float | None = None
    loss: float | None = None
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def rescore(
    evidence: Evidence, *, percentiles: Sequence[float] = RESCORE_PERCENTILES, depths: Sequence[int] = DEPTHS
) -> tuple[Rescoring, ...]:
    """What rescoring gives back, one entry for each percentile and depth, in that order.

    The threshold is the percentile on the run itself. Depths beyond the stored ranks are left out.
    """
    confidence, changed = confidence_in(evidence, "gap"), flips(evidence)
    top, first = evidence.candidate_top, evidence.reference_top.items[:, 0]
    metric, before, loss, reason = _quality(evidence)
    rankings = {k: rescored_ranking(evidence, k) for k in stored_depths(evidence, depths)}
    found = []
    for percentile in percentiles:
        rows = confidence < percentile_threshold(confidence, percentile)
        for k, ranking in rankings.items():
            items = np.where(rows[:, None], ranking, top.items)
            # the scores do not belong to these items any more
            unknown = np.full_like(top.reference_scores, np.nan)
            moved = replace(top, items=items, reference_scores=unknown, candidate_scores=unknown)
            change = None if metric is None else _mean(metric, replace(evidence, candidate_top=moved)) - before
            found.append(
                Rescoring(
                    percentile=percentile,
                    k=k,
                    encoded=float(rows.mean()),
                    documents=float((rows * np.minimum(evidence.n_items, k)).mean()),
                    restored=_share(items[:, 0] == first, changed),
                    ceiling=_share(within(evidence, k), changed),
                    metric=metric,
                    change=change,
                    loss=loss,
                    reason=reason,
                )
            )
    return tuple(found)


def _quality(evidence: Evidence) -> tuple[str | None, float, float | None, str | None]:
    """Metric, the candidate's mean, what the reference has more; or why there is none."""
    reason = "no input has a relevant item"
    for name in QUALITY:
        try:
            before, whole = _mean(name, evidence), _mean(f"reference.{name}", evidence)
        except MetricError as error:  # deeper than what is stored
            reason = str(error)
            continue
        if np.isfinite(before):
            return name, before, whole - before, None
    return None, np.nan, None, reason


def _mean(name: str, evidence: Evidence) -> float:
    values = parse_metric(name).per_input(evidence)
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else np.nan


def _share(back: NDArray[np.bool_], changed: NDArray[np.bool_]) -> float | None:
    return float(back[changed].mean()) if changed.any() else None


# --- the operating point --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoring:
    """The least that is rescored to give back a share of the changed answers.

    Attributes:
        k: how many of the candidate's first items are rescored.
        threshold: of the candidate gap; queries below it are rescored.
        counts: what the share is of: "restored" answers, or "caught" ones (changed, and rescored) where fewer than
            that share can be restored.
        routed: share of the queries that are rescored, 0 to 1.
        cost: of encoding queries, relative to full precision alone.
        caught: share of the changed answers whose query is rescored.
        restored: share of the changed answers that are the reference's again.
        ceiling: the same if every query were rescored.
    """

    k: int
    threshold: float
    counts: Literal["restored", "caught"]
    routed: float
    cost: float
    caught: float
    restored: float
    ceiling: float

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"score": "gap", **asdict(self)}


def restoring_point(evidence: Evidence, share: float, *, base_cost: float) -> Restoring | None:
    """The smallest threshold whose rescoring restores a share of the changed answers; None if none changed."""
    k = max(depth for depth in stored_depths(evidence) if depth <= K)
    changed, gaps = flips(evidence), confidence_in(evidence, "gap")
    if not changed.any():
        return None
    back = changed & within(evidence, k)
    n_changed, n_back = int(changed.sum()), int(back.sum())
    # rounded, as 0.9 of 10 is 9 and not the next number above
    reachable = n_back > 0 and round(share * n_changed, 9) <= n_back
    wanted = min(1.0, share * n_changed / n_back) if reachable else share
    threshold = recovery_threshold(gaps, back if reachable else changed, wanted)
    rows = gaps < threshold
    return Restoring(
        k=k,
        threshold=threshold,
        counts="restored" if reachable else "caught",
        routed=float(rows.mean()),
        cost=base_cost + float(rows.mean()),
        caught=float(rows[changed].mean()),
        restored=float((rows & back)[changed].mean()),
        ceiling=float(np.mean(back[changed])),
    )
