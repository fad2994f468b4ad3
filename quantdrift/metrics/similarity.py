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
    from scipy.stats import kendalltau  # noqa: PLC0415 -- scipy.stats takes long to import

    top = evidence.reference_top
    result = np.full(evidence.n_inputs, np.nan)
    for row, items in enumerate(top.items[:, :cutoff]):
        kept = np.flatnonzero(items >= 0)
        before, after = top.reference_scores[row, kept], top.candidate_scores[row, kept]
        if len(kept) > 1 and np.ptp(before) > 0 and np.ptp(after) > 0:
            result[row] = kendalltau(before, after).statistic
    return result


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
