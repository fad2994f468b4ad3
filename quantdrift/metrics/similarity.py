"""How much of the whole ranking is left, per input: rank-biased overlap and Kendall's tau-b."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence import Evidence
from quantdrift.metrics.base import Family

__all__ = ["FAMILIES", "PERSISTENCE"]

PERSISTENCE = 0.9
"""p of rank-biased overlap: the chance that a reader goes on to the next rank."""

_BLOCK = 4_000_000  # comparisons at a time; bounds the memory


def _rbo(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    """Extrapolated rank-biased overlap of two lists of the same length k.

    X_k / k p^k + (1 - p) / p sum_d X_d / d p^d, where X_d counts the items that both have in the
    first d ranks. Source: Webber, Moffat and Zobel (2010), equation 30 for lists of one length.
    """
    reference = evidence.reference_top.items[:, :cutoff]
    candidate = evidence.candidate_top.items[:, :cutoff]
    n_inputs, width = reference.shape
    result = np.full(n_inputs, np.nan)
    rows = max(1, _BLOCK // max(1, width * width))
    for start in range(0, n_inputs, rows):
        part = slice(start, start + rows)
        here, there = reference[part], candidate[part]
        same = (here[:, :, None] == there[:, None, :]) & (here >= 0)[:, :, None]
        found_row, first, second = np.nonzero(same)
        # an item that one has at rank i and the other at rank j is shared from max(i, j) on
        shared = np.zeros((len(here), width))
        np.add.at(shared, (found_row, np.maximum(first, second)), 1.0)
        ranks = np.arange(1, width + 1)
        weight = PERSISTENCE**ranks
        agreement = shared.cumsum(axis=1) / ranks
        length = (here >= 0).sum(axis=1)
        inside = ranks <= length[:, None]
        series = (np.where(inside, agreement, 0) @ weight) * (1 - PERSISTENCE) / PERSISTENCE
        last = np.take_along_axis(agreement, np.maximum(length - 1, 0)[:, None], axis=1)[:, 0]
        result[part] = np.where(length > 0, series + last * PERSISTENCE**length, np.nan)
    return result


def _tau_b(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    """Tau-b of the two arms' scores of the reference's first k items."""
    top = evidence.reference_top
    there = top.items[:, :cutoff] >= 0
    result = np.full(evidence.n_inputs, np.nan)
    rows = max(1, _BLOCK // max(1, there.shape[1]))
    for start in range(0, evidence.n_inputs, rows):
        part = slice(start, start + rows)
        before, after = (
            np.where(there[part], scores[part, :cutoff], np.float32(np.nan))
            for scores in (top.reference_scores, top.candidate_scores)
        )
        result[part] = _tau_b_of_rows(before, after)
    return result


def _tau_b_of_rows(before: NDArray[np.float32], after: NDArray[np.float32]) -> NDArray[np.float64]:
    """Tau-b of every row of two arms' scores [n, k], NaN where a row has no item.

    (C - D) / sqrt(U V): of the pairs of items, C are in one order in both arms and D in reversed,
    U score differently in the one arm and V in the other. An item is compared with the one that
    stands so many ranks below, for each number of ranks, in all rows at once.
    """
    agreement, apart_before, apart_after = np.zeros((3, len(before)), dtype=np.int64)
    for ranks in range(1, before.shape[1]):
        one, other = _order(before, ranks), _order(after, ranks)
        agreement += (one * other).sum(axis=1)  # C - D
        apart_before += np.count_nonzero(one, axis=1)
        apart_after += np.count_nonzero(other, axis=1)
    with np.errstate(invalid="ignore"):  # 0 / 0 where an arm ties all its items
        tau = agreement / np.sqrt(apart_before) / np.sqrt(apart_after)
    return np.asarray(np.clip(tau, -1.0, 1.0))  # roots round


def _order(scores: NDArray[np.float32], ranks: int) -> NDArray[np.int8]:
    """1 where a score is above the one so many ranks below it, -1 where it is under; else 0."""
    above, below = scores[:, :-ranks], scores[:, ranks:]
    return (above > below).astype(np.int8) - (above < below).astype(np.int8)


FAMILIES = (
    Family(
        name="rbo",
        section="whole ranking",
        summary=f"mean rank-biased overlap of the two top-k, extrapolated, p = {PERSISTENCE}: 1 if "
        "they are the same, 0 if they share nothing",
        direction="higher",
        low=0,
        high=1,
        unit="similarity",
        uncertainty="bootstrap",
        per_input=_rbo,
        undefined_when="no input has an item",
        cutoffs=(10,),
        headline=True,
    ),
    Family(
        name="tau_b",
        section="whole ranking",
        summary="mean Kendall's tau-b between the two arms' scores of the reference's top-k items",
        direction="higher",
        low=-1,
        high=1,
        unit="similarity",
        uncertainty="bootstrap",
        per_input=_tau_b,
        undefined_when="no input has two items that score differently in both arms",
        cutoffs=(10,),
        when_cut="undefined",
        ties="equal scores count as ties (tau-b); position decides nothing",
    ),
)
