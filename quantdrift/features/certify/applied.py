"""A stored check applied to a run, which knows the reference's answers too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantdrift.evidence.record import Evidence
from quantdrift.runs.identity import Identity
from quantdrift.statistics.conformal import MAKE, StabilityError, observe
from quantdrift.statistics.estimates import Estimate, rate_estimate, undefined
from quantdrift.trust.check import Resemblance, StabilityCheck


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
        notes: what differs from what the check was calibrated on, a line each.
    """

    n_inputs: int
    flip_rate: float
    coverage: Estimate
    joint_violation: Estimate
    violation: Estimate
    resemblance: Resemblance
    notes: tuple[str, ...]


def apply_check(check: StabilityCheck, evidence: Evidence, record: Mapping[str, Any]) -> Applied:
    """Apply a check to the inputs of a run."""
    # refused before the evidence is looked at: msp of similarities would be another message
    here = Identity.of(record, input_ids=evidence.input_ids[evidence.n_items > 1])
    check.origin.refuse_other(
        here,
        what="the stability check",
        make=MAKE,
        error=StabilityError,
        candidate=False,  # what is measured is measured: a note says that the bound is for others
    )
    observed = observe(evidence, check.statistic)
    observed = observed.part(observed.defined)
    if not len(observed.confidence):
        raise StabilityError("there is nothing to check: no input has two items to compare")
    accepted = check.accepts_confidence(observed.confidence)
    wrong = (accepted & observed.flipped).astype(np.float64)
    return Applied(
        n_inputs=len(accepted),
        flip_rate=float(observed.flipped.mean()),
        coverage=rate_estimate(accepted.astype(np.float64)),
        joint_violation=rate_estimate(wrong),
        violation=rate_estimate(wrong[accepted]) if accepted.any() else undefined("the check accepts no answer"),
        resemblance=check.resembles_confidence(observed.confidence, warn=False),
        notes=tuple(_notes(check, here, observed.n_items)),
    )


def _notes(check: StabilityCheck, here: Identity, n_items: tuple[int, int]) -> Iterator[str]:
    was, sides = check.origin, ("when it was calibrated", "here")
    yield from was.differences(here, ("candidate",), sides=sides)
    other = was.differences(here, ("data",), sides=sides)
    yield from other
    # ids alone would not do: mteb's tasks without ids have "test-0" and so on in every subset
    if not other and {was.inputs, was.data_fingerprint} & {here.inputs, here.data_fingerprint} - {None}:
        yield "the check was calibrated on these very inputs, so that these figures are not held out"
    if n_items[0] < check.n_items_min or n_items[1] > check.n_items_max:
        had, have = ("{:,} to {:,}".format(*span) for span in ((check.n_items_min, check.n_items_max), n_items))
        yield f"items per input: {had} {sides[0]}, {have} {sides[1]}; with more, quantization can overturn larger gaps"
