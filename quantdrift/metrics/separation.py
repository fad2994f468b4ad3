"""Gap and perturbation: how far the top-1 was from changing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.evidence import Evidence
from quantdrift.metrics.base import Arm, Family

__all__ = ["FAMILIES"]

_ONE_ITEM = "no input has two items to compare"
_NONE = "no input has an item"


def _separation(evidence: Evidence, cutoff: int, arm: Arm) -> NDArray[np.float64]:
    return perturbation.separation_ratio(evidence)


def _at_risk(evidence: Evidence, cutoff: int, arm: Arm) -> NDArray[np.float64]:
    return perturbation.at_risk(evidence)


def _epsilon(evidence: Evidence, cutoff: int, arm: Arm) -> NDArray[np.float64]:
    return perturbation.epsilon(evidence)


def _gap(evidence: Evidence, cutoff: int, arm: Arm) -> NDArray[np.float64]:
    return perturbation.gap(evidence)


def _candidate_gap(evidence: Evidence, cutoff: int, arm: Arm) -> NDArray[np.float64]:
    return perturbation.candidate_gap(evidence)


def _s(evidence: Evidence, cutoff: int, arm: Arm) -> NDArray[np.float64]:
    return perturbation.perturbation_s(evidence)


FAMILIES = (
    Family(
        name="separation",
        summary="median separation ratio, gap / (2 epsilon); at 1 or more the top-1 cannot change",
        direction="higher",
        low=0,
        high=float("inf"),
        unit="ratio",
        uncertainty="order statistics",
        per_input=_separation,
        undefined_when=_ONE_ITEM,
    ),
    Family(
        name="at_risk",
        summary="share of inputs with a contender: separation ratio below 1",
        direction="lower",
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=_at_risk,
        undefined_when=_ONE_ITEM,
    ),
    Family(
        name="epsilon",
        summary="median of the largest absolute score change over all items",
        direction="lower",
        low=0,
        high=float("inf"),
        unit="score",
        uncertainty="order statistics",
        per_input=_epsilon,
        undefined_when=_NONE,
    ),
    Family(
        name="gap",
        summary="median score difference between ranks 1 and 2 of the reference",
        direction="higher",
        low=0,
        high=float("inf"),
        unit="score",
        uncertainty="order statistics",
        per_input=_gap,
        undefined_when=_ONE_ITEM,
    ),
    Family(
        name="candidate_gap",
        summary="median score difference between ranks 1 and 2 of the candidate: what one can see",
        direction="higher",
        low=0,
        high=float("inf"),
        unit="score",
        uncertainty="order statistics",
        per_input=_candidate_gap,
        undefined_when=_ONE_ITEM,
    ),
    Family(
        name="S",
        summary="median of S, the largest change of a score difference with the candidate's top-1",
        direction="lower",
        low=0,
        high=float("inf"),
        unit="score",
        uncertainty="order statistics",
        per_input=_s,
        undefined_when=_NONE,
    ),
)
