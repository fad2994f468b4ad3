"""A stored check applied to a run: what it accepts there, and what it lets through."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantdrift.evidence import Evidence
from quantdrift.origin import Origin, differ
from quantdrift.stability.check import StabilityCheck
from quantdrift.stability.errors import MAKE, ExchangeabilityWarning, StabilityError
from quantdrift.stability.nonconformity import confidence_name, observe
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
        StabilityError: the run is of another pair or of other scores, or no input has two items.
        RunError: the check is by msp or entropy, and the run's scores are not logits.
    """
    # refused before the evidence is looked at: msp of similarities would be another message
    check.origin.refuse_other(
        Origin.of(record),
        what="the stability check",
        make=MAKE,
        error=StabilityError,
        candidate=False,  # what is measured is measured: a note says that the bound is for others
    )
    observed = observe(evidence, check.statistic)
    here = Origin.of(record, input_ids=evidence.input_ids[observed.defined])
    observed = observed.part(observed.defined)
    if not len(observed.confidence):
        raise StabilityError("there is nothing to check: no input has two items to compare")
    accepted = check.accepts_confidence(observed.confidence)
    wrong = (accepted & observed.flipped).astype(np.float64)
    none = check.reason or "the check accepts no answer of this run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExchangeabilityWarning)  # it is among the notes
        resemblance = check.resembles_confidence(observed.confidence)
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
    was, notes = check.origin, []
    if differ(was.candidate_fingerprint, here.candidate_fingerprint):
        notes.append(
            "these are other quantized weights than the check was calibrated on (made on other "
            "data?); its bound is not for these"
        )
    notes += _data_notes(was, here)
    if not resemblance.alike:
        notes.append(resemblance.sentence)
    return (*notes, *_size_notes(check, n_items))


def _data_notes(was: Origin, here: Origin) -> list[str]:
    """Whether the inputs are those calibrated on, or of other data."""
    if was.data_fingerprint is not None and _part(was) == _part(here):
        return [
            "the check was calibrated on this very data, so that these figures are not held out"
        ]
    notes = []
    other_part = differ(was.split, here.split) or differ(was.subset, here.subset)
    known = was.inputs is not None and was.data is not None
    # ids alone would not do: mteb's tasks without ids have "test-0" and so on in every subset
    if known and not other_part and (was.inputs, was.data) == (here.inputs, here.data):
        notes.append(
            "the check was calibrated on these very inputs, by their ids, so that these figures "
            "are not held out"
        )
    if differ(was.data, here.data) or other_part:
        names = [_named(each, parts=was.data == here.data) for each in (was, here)]
        notes.append(
            f"calibrated on {names[0]}; this is {names[1]}: the bound is for inputs like those of "
            f"{names[0]}"
        )
    elif differ(was.data_fingerprint, here.data_fingerprint):
        notes.append(
            f"calibrated on {was.data or 'data'} of other content (its digest differs): the bound "
            "is for inputs like those calibrated on"
        )
    return notes


def _part(origin: Origin) -> tuple[str | None, ...]:
    return origin.data_fingerprint, origin.split, origin.subset


def _named(origin: Origin, *, parts: bool) -> str:
    name = origin.data or "unnamed data"
    listed = [part for part in (origin.split, origin.subset) if part is not None]
    return f"{name} {'/'.join(listed)}" if parts and listed else name


def _size_notes(check: StabilityCheck, n_items: tuple[int, int]) -> list[str]:
    """What another number of items means for the bound."""
    fewer, more = n_items[0] < check.n_items_min, n_items[1] > check.n_items_max
    if not (fewer or more):
        return []
    what = (
        f"inputs of this run have {_span(*n_items)} items, those calibrated on had "
        f"{_span(check.n_items_min, check.n_items_max)}; "
    )
    if confidence_name(check.statistic) != "gap":
        return [f"{what}{check.statistic} is of all items' scores and on another scale with others"]
    means = []
    if more:
        means.append("with more items quantization can overturn larger gaps, beyond the bound")
    if fewer:
        means.append("with fewer items it overturns less as a rule, and the check is too strict")
    return [what + "; ".join(means)]


def _span(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
