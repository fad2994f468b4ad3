"""What happened at the top of the list."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.evidence import Evidence
from quantdrift.metrics.base import Arm, Family

__all__ = ["FAMILIES"]


def _flip(evidence: Evidence, cutoff: int, arm: Arm) -> NDArray[np.float64]:
    return perturbation.flips(evidence).astype(np.float64)


def _noise_floor(evidence: Evidence, cutoff: int, arm: Arm) -> NDArray[np.float64]:
    if evidence.noise is None:
        return np.full(evidence.n_inputs, np.nan)
    return evidence.noise.flips.astype(np.float64)


def _tied(evidence: Evidence, cutoff: int, arm: Arm) -> NDArray[np.float64]:
    return perturbation.tied_top(evidence).astype(np.float64)


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
        undefined_when="there are no inputs",
        cutoffs=(1,),
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
        undefined_when="there are no inputs",
    ),
)
