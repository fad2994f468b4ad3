"""What happened at the top of the list. Source: paper, section 5.2 and appendix, top-k table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.evidence import Evidence
from quantdrift.metrics.base import Family

__all__ = ["FAMILIES"]

_NO_FLIP = "no input flipped"


def _flip(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    return np.where(evidence.n_items > 0, perturbation.flips(evidence).astype(np.float64), np.nan)


def _set_kept(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    kept = perturbation.top_set_kept(evidence, cutoff).astype(np.float64)
    return np.where(evidence.n_items > 0, kept, np.nan)


def _new_top_rank(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    flipped = _flip(evidence, cutoff, arm) == 1
    return np.where(flipped, perturbation.new_top_rank(evidence), np.nan)


def _runner_up(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    rank = _new_top_rank(evidence, cutoff, arm)
    return np.where(np.isnan(rank), np.nan, (rank == 2).astype(np.float64))  # noqa: PLR2004 -- rank 2


def _noise_floor(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    if evidence.noise is None:
        return np.full(evidence.n_inputs, np.nan)
    return np.where(evidence.n_items > 0, evidence.noise.flips.astype(np.float64), np.nan)


def _tied(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    tied = perturbation.tied_top(evidence).astype(np.float64)
    return np.where(evidence.n_items > 1, tied, np.nan)


FAMILIES = (
    Family(
        name="flip",
        section="top of the list",
        summary="share of inputs whose top-1 item differs between reference and candidate",
        direction="lower",
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=_flip,
        undefined_when="no input has an item",
        cutoffs=(1,),
        other_cutoffs=False,
        headline=True,
    ),
    Family(
        name="noise_floor",
        section="top of the list",
        summary="flip rate of the reference against itself under another batch size and order",
        direction="lower",
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=_noise_floor,
        undefined_when="the noise floor was not measured",
        headline=True,
        of_reference=True,
    ),
    Family(
        name="tied",
        section="top of the list",
        summary="share of inputs whose reference ranks 1 and 2 have exactly the same score",
        direction="none",
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=_tied,
        ranks=2,
        undefined_when="no input has two items to compare",
        of_reference=True,
    ),
    Family(
        name="set_kept",
        section="top of the list",
        summary="share of inputs whose top-k holds exactly the same items, in any order",
        direction="higher",
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=_set_kept,
        undefined_when="no input has an item",
        cutoffs=(1, 2, 3, 5),
    ),
    Family(
        name="flip_to_runner_up",
        section="top of the list",
        summary="of the flips, the share where the reference's runner-up became first",
        direction="none",
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=_runner_up,
        ranks=2,
        undefined_when=_NO_FLIP,
    ),
    Family(
        name="new_top_rank",
        section="top of the list",
        summary="median rank, in the reference, of the item that a flip put first",
        direction="lower",
        low=2,
        high=float("inf"),
        unit="rank",
        uncertainty="order statistics",
        per_input=_new_top_rank,
        undefined_when=_NO_FLIP,
        infinite_when="it lies below the stored ranks; run again with a larger --k",
        censored=lambda evidence: evidence.depth + 1,
    ),
)
