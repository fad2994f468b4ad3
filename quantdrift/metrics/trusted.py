"""Metrics of the answers that can be accepted, and of what changed among them, at a level.

The check is calibrated on half of the inputs (at most 1,000, chosen by a hash of their ids) and measured on the others.
Source: paper, section 3 and its table of coverage and violation.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence.record import Evidence, once
from quantdrift.metrics.base import define
from quantdrift.statistics import selective
from quantdrift.statistics.conformal import MOST, Observed, calibrates, least_inputs, observe, split_conformal_threshold

Floats = NDArray[np.float64]


@once
def _calibrating(evidence: Evidence) -> NDArray[np.bool_]:
    return calibrates(evidence.input_ids)


@once
def _observed(evidence: Evidence, statistic: Literal["S", "gap"] = "S") -> Observed:
    return observe(evidence, statistic)


def _too_few(
    group: Sequence[Evidence], cutoff: float, least: Callable[[float], int] = least_inputs, at: str = ""
) -> str | None:
    most = max((int((_calibrating(run) & (run.n_items > 1)).sum()) for run in group), default=0)
    if most >= least(cutoff):
        return None
    return (
        f"level {cutoff:g}{at} needs {least(cutoff):,} inputs to calibrate on, and there are {most:,} (half of a run's "
        f"inputs, at most {MOST:,})"
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


accepted_alone = partial(
    accepted_answers,
    too_few=partial(_too_few, least=selective.least_inputs, at=f" at confidence {selective.CONFIDENCE:g}"),
)


@accepted_alone("accepted", direction="higher")
def _accepted(evidence: Evidence, cutoff: float, *_: Any) -> Floats:
    """Share of the answers accepted so that at most this share of them changed, with confidence 0.9."""
    observed, calibrating = _observed(evidence, "gap"), _calibrating(evidence)
    rows = calibrating & observed.defined
    if int(rows.sum()) < selective.least_inputs(cutoff):
        return np.full(evidence.n_inputs, np.nan)
    threshold = selective.selective_threshold(observed.confidence[rows], observed.flipped[rows], cutoff)
    return np.where(observed.defined & ~calibrating, observed.confidence > threshold, np.nan)


@accepted_alone("accepted_changed", direction="lower", undefined_when="no answer is accepted")
def _accepted_changed(evidence: Evidence, cutoff: float, *_: Any) -> Floats:
    """Of the answers accepted at this level, the share that changed."""
    return np.where(_accepted(evidence, cutoff) == 1, _flipped(evidence), np.nan)


@accepted_answers("coverage", direction="higher")
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
