"""Gap and perturbation: how far the top-1 was from changing. Source: paper, section 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.evidence import Evidence
from quantdrift.metrics.base import Direction, Family, PerInput, Unit, WhenCut

__all__ = ["FAMILIES"]

_ONE_ITEM = "no input has two items to compare"
_NONE = "no input has an item"
_EXACT = "the typical input did not change at all (epsilon 0)"


def _plain(quantity: Callable[[Evidence], NDArray[np.float64]]) -> PerInput:
    def per_input(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
        return quantity(evidence)

    return per_input


def _stable(evidence: Evidence) -> NDArray[np.float64]:
    return 1 - perturbation.at_risk(evidence)


def _contenders(evidence: Evidence) -> NDArray[np.float64]:
    count = perturbation.contender_count(evidence).astype(np.float64)
    count[perturbation.contenders_cut_short(evidence)] = np.inf
    return np.where(evidence.n_items > 1, count, np.nan)


def _cut_separation(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    return perturbation.cut_separation(evidence, cutoff)


def _typical(
    name: str,
    summary: str,
    quantity: Callable[[Evidence], NDArray[np.float64]],
    *,
    direction: Direction,
    unit: Unit = "score",
    undefined_when: str = _ONE_ITEM,
    headline: bool = False,
    of_reference: bool = False,
    ranks: int = 2,
    when_cut: WhenCut = "the same",
) -> Family:
    """A quantity of every input, reported as its median."""
    return Family(
        name=name,
        section="gap and perturbation",
        summary=summary,
        direction=direction,
        low=0,
        high=float("inf"),
        unit=unit,
        uncertainty="order statistics",
        per_input=_plain(quantity),
        undefined_when=undefined_when,
        infinite_when=_EXACT,
        headline=headline,
        of_reference=of_reference,
        ranks=ranks,
        when_cut=when_cut,
    )


def _share(
    name: str,
    summary: str,
    quantity: Any,
    direction: Direction,
    *,
    headline: bool,
    when_cut: WhenCut,
) -> Family:
    return Family(
        name=name,
        section="gap and perturbation",
        summary=summary,
        direction=direction,
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=_plain(quantity),
        undefined_when=_ONE_ITEM,
        headline=headline,
        ranks=2,
        when_cut=when_cut,
    )


FAMILIES = (
    _typical(
        "separation",
        "median separation ratio, gap / (2 epsilon); at 1 or more the top-1 cannot change",
        perturbation.separation_ratio,
        direction="higher",
        unit="ratio",
        headline=True,
        when_cut="at most",
    ),
    Family(
        name="separation_quantile",
        section="gap and perturbation",
        summary="the separation ratio that so many percent of the inputs do not exceed",
        direction="higher",
        low=0,
        high=float("inf"),
        unit="ratio",
        uncertainty="order statistics",
        per_input=_plain(perturbation.separation_ratio),
        undefined_when=_ONE_ITEM,
        infinite_when=_EXACT,
        cutoffs=(10, 25, 75, 90),
        cutoff_is="percentile",
        ranks=2,
        when_cut="at most",
    ),
    Family(
        name="cut_separation",
        section="gap and perturbation",
        summary="median of (score of rank k - score of rank k+1) / (2 epsilon); at 1 or more the "
        "top-k set cannot change",
        direction="higher",
        low=0,
        high=float("inf"),
        unit="ratio",
        uncertainty="order statistics",
        per_input=_cut_separation,
        undefined_when="no input has more than k items",
        infinite_when=_EXACT,
        cutoffs=(1, 2, 3, 5),
        ranks_beyond=1,
        when_cut="at most",
    ),
    _share(
        "at_risk",
        "share of inputs with a contender: separation ratio below 1",
        perturbation.at_risk,
        "lower",
        headline=True,
        when_cut="at least",
    ),
    _share(
        "stable",
        "share of inputs with an empty contender set: their top-1 cannot change",
        _stable,
        "higher",
        headline=False,
        when_cut="at most",
    ),
    Family(
        name="contenders",
        section="gap and perturbation",
        summary="median number of contenders: items less than 2 epsilon behind the top-1",
        direction="lower",
        low=0,
        high=float("inf"),
        unit="items",
        uncertainty="order statistics",
        per_input=_plain(_contenders),
        undefined_when=_ONE_ITEM,
        infinite_when="more contenders than stored ranks; run again with a larger --k",
        censored=lambda evidence: evidence.depth - 1,
        when_cut="at least",
    ),
    _typical(
        "epsilon",
        "median of the largest absolute score change over all items",
        perturbation.epsilon,
        direction="lower",
        undefined_when=_NONE,
        ranks=1,
        when_cut="at least",
    ),
    _typical(
        "gap",
        "median score difference between ranks 1 and 2 of the reference",
        perturbation.gap,
        direction="higher",
        of_reference=True,
    ),
    _typical(
        "candidate_gap",
        "median score difference between ranks 1 and 2 of the candidate: what one can see",
        perturbation.candidate_gap,
        direction="higher",
    ),
    _typical(
        "S",
        "median of S, the delta of the candidate's top-1 minus the least delta of any item",
        perturbation.perturbation_s,
        direction="lower",
        undefined_when=_NONE,
        ranks=1,
        when_cut="at least",
    ),
)
