"""Metrics of the stability check at a level: accepted answers, and changed ones among them.

The check is calibrated on half of the inputs (at most 1,000, chosen by a hash of their ids) and measured on the others.
Source: paper, section 3 and its table of coverage and violation.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence.record import Evidence, once
from quantdrift.metrics.base import define
from quantdrift.statistics.conformal import MOST, Observed, calibrates, least_inputs, observe, split_conformal_threshold

Floats = NDArray[np.float64]


@once
def _calibrating(evidence: Evidence) -> NDArray[np.bool_]:
    return calibrates(evidence.input_ids)


@once
def _observed(evidence: Evidence) -> Observed:
    return observe(evidence, "S")


def _too_few(group: Sequence[Evidence], cutoff: float) -> str | None:
    counts = [int((_calibrating(evidence) & (evidence.n_items > 1)).sum()) for evidence in group]
    least = least_inputs(cutoff)
    if max(counts, default=0) >= least:
        return None
    return (
        f"level {cutoff:g} needs {least:,} inputs to calibrate on, and there are "
        f"{max(counts, default=0):,} (half of a run's inputs, at most {MOST:,})"
    )


accepted_answers = partial(
    define,
    section="stability check",
    undefined_when="no input has two items to compare",
    too_few=_too_few,
    cutoffs=(0.10, 0.05, 0.01),
    cutoff_is="level",
    ranks=2,
    when_cut="undefined",
)


@accepted_answers("coverage", direction="higher", headline=True)
def _coverage(evidence: Evidence, cutoff: float, *_: Any) -> Floats:
    """Share of the answers that the stability check accepts at this level, calibrated on other inputs of the run."""
    observed, calibrating = _observed(evidence), _calibrating(evidence)
    assert observed.values is not None  # S has some
    calibration = observed.values[calibrating & observed.defined]
    if len(calibration) < least_inputs(cutoff):
        return np.full(evidence.n_inputs, np.nan)
    accepted = observed.confidence >= split_conformal_threshold(calibration, cutoff)
    return np.where(observed.defined & ~calibrating, accepted, np.nan)


@accepted_answers("violation", direction="lower", undefined_when="the stability check accepts no answer")
def _violation(evidence: Evidence, cutoff: float, *_: Any) -> Floats:
    """Of the answers that the stability check accepts at this level, the share that changed."""
    return np.where(_coverage(evidence, cutoff) == 1, _flipped(evidence), np.nan)


@accepted_answers("joint_violation", direction="lower")
def _joint(evidence: Evidence, cutoff: float, *_: Any) -> Floats:
    """Share of the answers that the check accepts though they changed; in the mean no more than the level."""
    return _coverage(evidence, cutoff) * _flipped(evidence)


def _flipped(evidence: Evidence) -> Floats:
    return _observed(evidence).flipped.astype(np.float64)
