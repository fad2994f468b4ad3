"""Predictions beside what was measured: finished runs, and how far shifts add up; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.predict import Gaps, Prediction, flipped, predict
from quantdrift.errors import UnsupportedError
from quantdrift.evidence import Evidence
from quantdrift.perturbation import flips as measured_flips
from quantdrift.runs import Run
from quantdrift.spec import Scheme, Spec
from quantdrift.statistics import Estimate, rate_estimate
from quantdrift.versus import parse_pair

__all__ = ["Additivity", "MeasuredRun", "PredictedOn", "additivity", "measured_run"]

_LEAST_CORRELATION = 0.9
_RATIOS = (0.8, 1.25)
"""Between these, a predicted shift is as large as a measured one for what it is used for."""
_SAME_GAP = 1e-3
"""Relative difference up to which a run's gap is the one that was predicted for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Additivity:
    """How the predicted shifts of gaps compare with measured ones.

    Attributes:
        correlation: Pearson's, over inputs and contenders; None if either is the same throughout.
        ratio: sqrt(sum of predicted^2 / sum of measured^2); below 1 the shift is underestimated;
            None if nothing moved.
        n_gaps: how many gaps.
        predicted: flip rate of the inputs that are compared.
        measured: of the same inputs, what really happened among the same contenders.
    """

    correlation: float | None
    ratio: float | None
    n_gaps: int
    predicted: Estimate
    measured: Estimate

    @property
    def holds(self) -> bool:
        """Whether the sum of what layers do alone is what they do together, near enough."""
        if self.ratio is None or self.correlation is None:
            return self.ratio is None  # nothing moved, and nothing was said to
        low, high = _RATIOS
        return self.correlation >= _LEAST_CORRELATION and low <= self.ratio <= high


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedOn:
    """What a run has to share with a prediction.

    Attributes:
        fingerprint: of the reference's weights.
        data: fingerprint of the data.
        group_size: input weights that share a scale.
        layers: names, in order.
        input_ids: of the calibration inputs, in order.
    """

    fingerprint: str
    data: str
    group_size: int | None
    layers: Sequence[str]
    input_ids: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run and what is predicted for its widths.

    Attributes:
        path: its folder.
        spec: the pair.
        flips: measured, over the run's queries.
        prediction: over the calibration queries, for rounding to nearest.
        additivity: of the shifts of calibration queries that the run holds; None for another
            quantizer, or if it holds none of them.
    """

    path: Path
    spec: Spec
    flips: Estimate
    prediction: Prediction
    additivity: Additivity | None


def additivity(measured: Gaps, widths: Sequence[int], moved: NDArray[np.float64]) -> Additivity:
    """Compare predicted with measured shifts.

    Args:
        measured: gaps and contributions.
        widths: of every layer.
        moved: float64 [n_inputs, n_contenders], gap of the quantized model less that of the
            reference; nan where it is not known.
    """
    rows = np.flatnonzero(~np.isnan(moved).all(axis=1) & measured.counted)
    moved, gaps = moved[rows], measured.gaps[rows]
    predicted = np.where(np.isnan(moved), np.nan, measured.shifts(widths)[rows])
    there = ~np.isnan(predicted) & ~np.isnan(moved)
    p, m = predicted[there], moved[there]
    spread = min(np.ptp(p), np.ptp(m)) if len(p) else 0.0
    size = float((m**2).sum())
    return Additivity(
        correlation=float(np.corrcoef(p, m)[0, 1]) if spread > 0 else None,
        ratio=float(np.sqrt((p**2).sum() / size)) if size > 0 else None,
        n_gaps=len(p),
        predicted=rate_estimate(flipped(gaps, predicted).astype(np.float64)),
        measured=rate_estimate(flipped(gaps, moved).astype(np.float64)),
    )


def measured_run(run: Run, measured: Gaps, origin: PredictedOn) -> MeasuredRun | str:
    """A run beside the prediction for its widths; or why it has none.

    Args:
        run: as found on disk.
        measured: gaps and contributions.
        origin: what the run has to share.

    Raises:
        QuantDriftError: its record or evidence cannot be read.
    """
    spec = parse_pair(str(run.record.get("spec", "")))
    if not isinstance(spec, Spec):
        return "its candidate is a checkpoint, not a scheme"
    reason = _misfit(run, spec.scheme, origin)
    if reason is not None:
        return reason
    made = run.record.get("quantization", {})
    names = made.get("allocation", {}).get("widths", {})
    widths = [int(names.get(name, spec.scheme.weight_bits)) for name in origin.layers]
    try:
        prediction = predict(measured, widths)
    except UnsupportedError:
        return f"it has layers at {_listed(sorted(set(widths)))} bits, which --widths leaves out"
    evidence = run.evidence()
    nearest = spec.scheme.quantizer == "rtn"
    moved = _moved(evidence, measured, origin.input_ids)
    known = nearest and not np.isnan(moved).all()
    return MeasuredRun(
        path=run.path,
        spec=spec,
        flips=rate_estimate(measured_flips(evidence).astype(np.float64)),
        prediction=prediction,
        additivity=additivity(measured, widths, moved) if known else None,
    )


def _misfit(run: Run, scheme: Scheme, origin: PredictedOn) -> str | None:
    record = run.record
    if record.get("model", {}).get("fingerprint") != origin.fingerprint:
        return "it is of another model"
    if record.get("data", {}).get("fingerprint") != origin.data:
        return "it is of other data"
    if scheme.group_size != origin.group_size:
        return f"it rounds by {scheme.granularity}: say so with --group"
    if scheme.activation_bits is not None:
        return "it quantizes activations, too"
    if scheme.query_only:
        return "it quantizes the query side only"
    return None


def _moved(evidence: Evidence, measured: Gaps, input_ids: Sequence[str]) -> NDArray[np.float64]:
    """The measured shift of every gap, nan where the run does not hold it."""
    moved = np.full(measured.gaps.shape, np.nan)
    row_of = {str(name): row for row, name in enumerate(evidence.input_ids.tolist())}
    found = [(number, row_of[name]) for number, name in enumerate(input_ids) if name in row_of]
    if not found:
        return moved
    numbers, rows = (np.array(part) for part in zip(*found, strict=True))
    top = evidence.reference_top
    before, after = (
        scores[rows].astype(np.float64) for scores in (top.reference_scores, top.candidate_scores)
    )
    n = min(measured.gaps.shape[1], before.shape[1] - 1)
    gaps, low = (part[:, :1] - part[:, 1 : n + 1] for part in (before, after))
    expected = measured.gaps[numbers, :n]
    # another device can order near ties in another way; those are other gaps
    size = np.abs(before[:, :1])
    same = np.abs(gaps - expected) <= _SAME_GAP * (np.abs(expected) + 1e-2 * size)
    moved[numbers, :n] = np.where(same, low - gaps, np.nan)
    return moved


def _listed(widths: Sequence[int]) -> str:
    return ", ".join(map(str, widths))
