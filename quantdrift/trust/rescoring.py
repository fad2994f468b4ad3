"""Retrieval's analogue of routing: the candidate's first k items in the order of the reference.

A query whose gap is small is encoded at full precision, and the k documents that the candidate
found are compared with it again by full-precision embeddings. What the candidate did not find among
its first k cannot come back: the share of changed first answers whose true first item is there is
the ceiling.

All of it is computed from stored evidence, which holds the reference's scores of the candidate's
first items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.conformal import confidence_in
from quantdrift.errors import QuantDriftError
from quantdrift.evidence import Evidence, Top
from quantdrift.metrics import MetricError, parse_metric
from quantdrift.perturbation import flips
from quantdrift.trust.router import percentile_threshold

# --- reordering -----------------------------------------------------------------------------------

DEPTHS = (5, 10, 50)
"""How many first items are rescored, where nothing else is said."""


def reorder(
    items: NDArray[np.int64], scores: NDArray[Any], k: int, *, places: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The first k items of each row by these scores, best first; the others stay where they are.

    Ties break by place, lowest first. What has no item (-1) stays last.

    Args:
        items: int64 [n, width], positions; -1 where there are fewer.
        scores: [n, width], larger is better; not looked at where there is no item or behind k.
        k: at least 1.
        places: int64 [n, width], what ties break by; the items' positions if not given.

    Returns:
        (items, scores) in the new order, as new arrays.
    """
    first = slice(0, k)
    head = np.where(items[:, first] >= 0, scores[:, first], -np.inf)
    by = (items if places is None else places)[:, first]
    by = np.where(items[:, first] >= 0, by, np.iinfo(np.int64).max)
    order = np.lexsort((by, -head), axis=1)
    moved, told = items.copy(), scores.copy()
    moved[:, first] = np.take_along_axis(items[:, first], order, axis=1)
    told[:, first] = np.take_along_axis(scores[:, first], order, axis=1)
    return moved, told


def rescored_ranking(evidence: Evidence, rows: NDArray[np.bool_], k: int) -> NDArray[np.int64]:
    """The candidate's ranking after the first k items of some inputs were rescored.

    Ties in the reference's scores break by its stored ranking, then by the candidate's.

    Args:
        evidence: of one run.
        rows: bool [n_inputs], which inputs.
        k: how many items, at least 1 and at most the depth (or all of them).

    Returns:
        int64 [n_inputs, depth], indices into `Evidence.item_ids`.

    Raises:
        QuantDriftError: fewer than k ranks are stored of a longer ranking.
    """
    if k < 1 or (k > evidence.depth and evidence.cut_short):
        raise QuantDriftError(f"expected k from 1 to the {evidence.depth} ranks that the run stores; got {k}")
    top = evidence.candidate_top
    places = _reference_ranks(evidence.reference_top.items[rows], top.items[rows])
    moved, _ = reorder(top.items[rows], top.reference_scores[rows], k, places=places)
    items = top.items.copy()
    items[rows] = moved
    return items


def _reference_ranks(ranked: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where items [n, width] stand in rankings [n, depth]; behind them, in order, if nowhere."""
    width, depth = items.shape[1], ranked.shape[1]
    behind = np.broadcast_to(depth + np.arange(width), items.shape)
    if not ranked.size or not items.size:
        return behind
    # one number for each (row, item), so that a single search serves all rows
    base = np.arange(len(items))[:, None] * (max(ranked.max(), items.max()) + 2)
    known = (base + ranked + 1).ravel()
    order = known.argsort(kind="stable")
    wanted = base + items + 1
    at = np.searchsorted(known[order], wanted).clip(max=len(known) - 1)
    here = order[at]
    return np.where(known[here] == wanted, here % depth, behind)


def within(evidence: Evidence, k: int) -> NDArray[np.bool_]:
    """Whether the reference's first item is among the candidate's first k, bool [n_inputs]."""
    first = evidence.reference_top.items[:, :1]
    return np.asarray((evidence.candidate_top.items[:, :k] == first).any(axis=1))


def stored_depths(evidence: Evidence, depths: Sequence[int] = DEPTHS) -> list[int]:
    """Those depths that a run stores enough ranks for.

    Raises:
        QuantDriftError: there is none.
    """
    stored = [k for k in depths if k <= evidence.depth or not evidence.cut_short]
    if not stored:
        raise QuantDriftError(
            f"expected a depth of at most the {evidence.depth} ranks that the run stores; got "
            f"{', '.join(map(str, depths))}"
        )
    return stored


def share_of(back: NDArray[np.bool_], changed: NDArray[np.bool_]) -> float | None:
    """Share of the changed first answers; None if none changed."""
    return float(back[changed].mean()) if changed.any() else None


# --- rescoring ------------------------------------------------------------------------------------

RESCORE_PERCENTILES = (10.0, 25.0, 50.0, 100.0)
QUALITY = ("ndcg@10", "accuracy")
"""The first of these that the stored ranks and the labels allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescoring:
    """What rescoring does to a run at one threshold and depth.

    Attributes:
        percentile: of the candidate gap; queries below it are rescored.
        k: how many of the candidate's first items are rescored.
        encoded: share of the queries that are encoded at full precision, 0 to 1.
        documents: documents compared at full precision, per query of the run (no document is
            encoded).
        restored: share of the changed first answers that become the reference's again; None if
            none changed.
        ceiling: the same if every query were rescored: share whose reference's first item is among
            the k.
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
    """What rescoring gives back, at several thresholds and depths.

    The threshold is the percentile on the run itself. Depths beyond the stored ranks are left out.

    Args:
        evidence: of one run.
        percentiles: of the candidate gap, from 0 to 100.
        depths: values of k.

    Returns:
        One for each percentile and depth, in that order.

    Raises:
        QuantDriftError: no such percentile, or no depth is stored.
    """
    stored = stored_depths(evidence, depths)
    confidence, everything = confidence_in(evidence, "gap"), np.ones(evidence.n_inputs, dtype=bool)
    metric, before, whole, reason = _quality(evidence)
    found = []
    changed = flips(evidence)
    ceilings = {k: share_of(within(evidence, k), changed) for k in stored}
    whole_ranking = {k: rescored_ranking(evidence, everything, k) for k in stored}
    first = evidence.reference_top.items[:, 0]
    counts = {k: np.minimum(evidence.n_items, k) for k in stored}
    for percentile in percentiles:
        rows = confidence < percentile_threshold(confidence, percentile)
        for k in stored:
            items = np.where(rows[:, None], whole_ranking[k], evidence.candidate_top.items)
            change = None
            if metric is not None:
                after = _mean(metric, _ranked(evidence, items))
                change = after - before
            found.append(
                Rescoring(
                    percentile=percentile,
                    k=k,
                    encoded=float(rows.mean()),
                    documents=float((rows * counts[k]).mean()),
                    restored=share_of(items[:, 0] == first, changed),
                    ceiling=ceilings[k],
                    metric=metric,
                    change=change,
                    loss=None if metric is None else whole - before,
                    reason=reason,
                )
            )
    return tuple(found)


def _ranked(evidence: Evidence, items: NDArray[np.int64]) -> Evidence:
    """Evidence to judge a ranking by: the scores in it no longer belong to the items."""
    top = evidence.candidate_top
    return replace(
        evidence,
        candidate_top=Top(
            items=items,
            reference_scores=np.full_like(top.reference_scores, np.nan),
            candidate_scores=np.full_like(top.candidate_scores, np.nan),
        ),
    )


def _quality(evidence: Evidence) -> tuple[str | None, float, float, str | None]:
    """Metric, the candidate's mean, the reference's mean; or why there is none."""
    reason = "no input has a relevant item"
    for name in QUALITY:
        try:
            before, whole = _mean(name, evidence), _mean(f"reference.{name}", evidence)
        except MetricError as error:  # deeper than what is stored
            reason = str(error)
            continue
        if np.isfinite(before):
            return name, before, whole, None
    return None, np.nan, np.nan, reason


def _mean(name: str, evidence: Evidence) -> float:
    values = parse_metric(name).per_input(evidence)
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else np.nan
