"""What routing costs, and what it gives back for that: an exact curve from a run's evidence.

    relative cost = 1 / speed-up + routed share          full precision alone is 1

One pass of the candidate over everything, one of the reference over what is routed. It breaks even
at a routed share of 1 - 1 / speed-up. The speed-up is stated, not measured here.

Source: paper, section 5.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.confidence import ConfidenceName
from quantdrift.errors import QuantDriftError
from quantdrift.evidence import Evidence
from quantdrift.routing.answers import accuracy_reason, answers_of

__all__ = ["SPEED_UP", "CostCurve", "break_even_share", "cost_curve", "relative_cost"]

SPEED_UP = 4.5
"""Of a 4-bit model over full precision, as GPTQ's authors report it and the paper uses it."""

Floats = NDArray[np.float64]


def relative_cost(routed_share: float, speed_up: float = SPEED_UP) -> float:
    """Cost per input of candidate plus routed reference, full precision = 1.

    Args:
        routed_share: from 0 to 1.
        speed_up: of the candidate, at least 1.

    Returns:
        1 / speed_up + routed_share; above 1 routing costs more than full precision alone.

    Raises:
        QuantDriftError: speed_up is below 1 or not finite.

    >>> round(relative_cost(0.25), 3)
    0.472
    """
    return _candidate_cost(speed_up) + routed_share


def break_even_share(speed_up: float = SPEED_UP) -> float:
    """The routed share at which routing costs as much as full precision alone.

    Raises:
        QuantDriftError: speed_up is below 1 or not finite.
    """
    return 1 - _candidate_cost(speed_up)


def _candidate_cost(speed_up: float) -> float:
    if not (np.isfinite(speed_up) and speed_up >= 1):
        raise QuantDriftError(
            f"expected a speed-up of 1 or more (the candidate over full precision); got {speed_up}"
        )
    return 1 / speed_up


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostCurve:
    """Every threshold that makes a difference on a run, from routing nothing to everything.

    Attributes:
        score: which confidence.
        n: number of inputs.
        routed: float64 [n_points], share routed, increasing from 0 to 1. Inputs that tie in
            confidence are routed together, so that there are as many points as thresholds.
        cost: float64 [n_points], relative to full precision.
        changes: float64 [n_points], recovered share of the changed answers, 0 to 1, never falling;
            None if none changed.
        accuracy: float64 [n_points], recovered share of the accuracy loss, or None.
        accuracy_reason: why there is none.
    """

    score: ConfidenceName
    n: int
    routed: Floats
    cost: Floats
    changes: Floats | None
    accuracy: Floats | None
    accuracy_reason: str | None

    def at(self, share: float) -> int:
        """The point that routes most without routing more than a share."""
        return int(np.searchsorted(self.routed, share * (1 + 1e-12), side="right")) - 1

    def for_changes(self, share: float) -> int | None:
        """The first point that gives back at least a share of the changed answers."""
        if self.changes is None:
            return None
        return int(np.searchsorted(self.changes, share * (1 - 1e-12), side="left"))

    def rows(self, shares: Sequence[float]) -> list[dict[str, Any]]:
        """The points `at` these shares, as JSON objects."""
        return [
            {
                "routed": float(self.routed[point]),
                "cost": float(self.cost[point]),
                "changes": None if self.changes is None else float(self.changes[point]),
                "accuracy": None if self.accuracy is None else float(self.accuracy[point]),
            }
            for point in (self.at(share) for share in shares)
        ]


def cost_curve(
    evidence: Evidence, *, score: ConfidenceName = "gap", speed_up: float = SPEED_UP
) -> CostCurve:
    """Route the inputs of a run in order of confidence, the least sure first.

    Exact, but of this very run: a threshold that is to be used is set on one part of the inputs and
    judged on another (`sweep`).

    Args:
        evidence: of one run.
        score: which confidence.
        speed_up: of the candidate, at least 1.

    Raises:
        RunError: the run has no such confidence, or no input with two items.
        QuantDriftError: speed_up is below 1 or not finite.
    """
    base = _candidate_cost(speed_up)
    answers = answers_of(evidence, score)
    order = np.argsort(answers.confidence, kind="stable")
    ordered = answers.confidence[order]
    # a point after the last input of each value, and one before all
    ends = np.append(np.flatnonzero(np.diff(ordered) > 0) + 1, answers.n)
    points = np.insert(ends, 0, 0)

    def gained(values: NDArray[Any]) -> Floats:
        sums = np.insert(np.cumsum(values[order].astype(np.float64)), 0, 0.0)
        return np.asarray(sums[points] / sums[-1])

    routed = points / answers.n
    reason = accuracy_reason(answers)
    return CostCurve(
        score=score,
        n=answers.n,
        routed=routed,
        cost=base + routed,
        changes=gained(answers.changed) if answers.changed.any() else None,
        accuracy=gained(np.nan_to_num(answers.gain)) if reason is None else None,
        accuracy_reason=reason,
    )
