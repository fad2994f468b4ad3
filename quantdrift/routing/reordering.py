"""The first k items of a ranking in the order of other scores, and what of a run is among them.

Evidence does not hold where items stand in the corpus, so ties in the reference's scores break by
its own stored ranking, which broke them by position. Items that tie and are behind the ranks stored
of the reference keep the candidate's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import QuantDriftError
from quantdrift.evidence import Evidence

__all__ = ["DEPTHS", "reorder", "rescored_ranking", "share_of", "stored_depths", "within"]

DEPTHS = (5, 10, 50)
"""How many first items are rescored, where nothing else is said."""


def reorder(
    items: NDArray[np.int64],
    scores: NDArray[Any],
    k: int,
    *,
    places: NDArray[np.int64] | None = None,
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
        raise QuantDriftError(
            f"expected k from 1 to the {evidence.depth} ranks that the run stores; got {k}"
        )
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
