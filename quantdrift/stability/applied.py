"""A stored check applied to a run: what it accepts there, and what it lets through."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantdrift.evidence import Evidence
from quantdrift.origin import Origin
from quantdrift.stability.check import StabilityCheck
from quantdrift.stability.errors import MAKE, ExchangeabilityWarning, StabilityError
from quantdrift.stability.nonconformity import observe
from quantdrift.stability.resemblance import Resemblance
from quantdrift.statistics import Estimate, rate_estimate, undefined

__all__ = ["Applied", "apply_check"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What a check does on a run that also knows the reference's answers.

    Attributes:
        n_inputs: inputs with at least two items; the others take no part.
        flip_rate: share of them whose top-1 changed.
        coverage: share of them that are accepted.
        joint_violation: share of them that are accepted though their top-1 changed.
        violation: share of the accepted ones whose top-1 changed; undefined if none is accepted.
        resemblance: whether the inputs look like the calibration inputs.
        notes: what to know before reading this: one sentence each.
    """

    n_inputs: int
    flip_rate: float
    coverage: Estimate
    joint_violation: Estimate
    violation: Estimate
    resemblance: Resemblance
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "n_inputs": self.n_inputs,
            "flip_rate": self.flip_rate,
            "coverage": self.coverage.to_json(),
            "joint_violation": self.joint_violation.to_json(),
            "violation": self.violation.to_json(),
            "resemblance": self.resemblance.to_json(),
            "notes": list(self.notes),
        }


def apply_check(check: StabilityCheck, evidence: Evidence, record: Mapping[str, Any]) -> Applied:
    """Apply a check to the inputs of a run.

    Args:
        check: to apply.
        evidence: of the run.
        record: its run.json; says of which pair and data it is.

    Raises:
        StabilityError: the run is of another pair, or no input has two items.
        RunError: the check is by msp or entropy, and the run's scores are not logits.
    """
    here = Origin.of(record)
    check.origin.refuse_other(
        what="the stability check",
        make=MAKE,
        error=StabilityError,
        spec=here.spec,
        model_fingerprint=here.model_fingerprint,
    )
    observed = observe(evidence, check.statistic)
    observed = observed.part(observed.defined)
    if not len(observed.confidence):
        raise StabilityError("there is nothing to check: no input has two items to compare")
    accepted = check.accepts_confidence(observed.confidence)
    wrong = (accepted & observed.flipped).astype(np.float64)
    none = check.reason or "the check accepts no answer of this run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExchangeabilityWarning)  # it is among the notes
        resemblance = check.resembles(observed.confidence)
    return Applied(
        n_inputs=len(accepted),
        flip_rate=float(observed.flipped.mean()),
        coverage=rate_estimate(accepted.astype(np.float64)),
        joint_violation=rate_estimate(wrong),
        violation=rate_estimate(wrong[accepted]) if accepted.any() else undefined(none),
        resemblance=resemblance,
        notes=_notes(check, here, observed.n_items, resemblance),
    )


def _notes(
    check: StabilityCheck, here: Origin, n_items: tuple[int, int], resemblance: Resemblance
) -> tuple[str, ...]:
    notes = []
    was, now = ((each.data_fingerprint, each.split) for each in (check.origin, here))
    if was[0] is not None and was == now:
        notes.append(
            "the check was calibrated on this very data, so that these figures are not held out"
        )
    if not resemblance.alike:
        notes.append(resemblance.sentence)
    if n_items[0] < check.n_items_min or n_items[1] > check.n_items_max:
        notes.append(
            f"inputs of this run have {n_items[0]:,} to {n_items[1]:,} items, those calibrated on "
            f"had {check.n_items_min:,} to {check.n_items_max:,}; with more items quantization can "
            "overturn larger gaps"
        )
    return tuple(notes)
