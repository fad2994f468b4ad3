"""What happened at the top of the list."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.evidence import Evidence
from quantdrift.metrics.base import Arm, Family

__all__ = ["FAMILIES"]


def _flip(evidence: Evidence, cutoff: int, arm: Arm) -> NDArray[np.float64]:
    return np.where(evidence.n_items > 0, perturbation.flips(evidence).astype(np.float64), np.nan)


def _noise_floor(evidence: Evidence, cutoff: int, arm: Arm) -> NDArray[np.float64]:
    if evidence.noise is None:
        return np.full(evidence.n_inputs, np.nan)
    return np.where(evidence.n_items > 0, evidence.noise.flips.astype(np.float64), np.nan)


def _tied(evidence: Evidence, cutoff: int, arm: Arm) -> NDArray[np.float64]:
    tied = perturbation.tied_top(evidence).astype(np.float64)
    return np.where(evidence.n_items > 1, tied, np.nan)


FAMILIES = (
    Family(
        name="flip",
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
    ),
    Family(
        name="noise_floor",
        summary="flip rate of the reference against itself under another batch size and order",
        direction="lower",
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=_noise_floor,
        undefined_when="the noise floor was not measured",
    ),
    Family(
        name="tied",
        summary="share of inputs whose reference ranks 1 and 2 have exactly the same score",
        direction="none",
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=_tied,
        undefined_when="no input has two items to compare",
    ),
)
