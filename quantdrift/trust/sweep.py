"""The sweep: thresholds set on one part of a run's inputs, and what routing by them gives back on the rest.

Source: paper, section 5.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import RunError
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Evidence
from quantdrift.metrics import parse_metric
from quantdrift.statistics.conformal import CONFIDENCES, ConfidenceName, confidence_in
from quantdrift.trust.certify import Share, random_splits, share_of
from quantdrift.trust.router import percentile_threshold

Floats = NDArray[np.float64]

PERCENTILES = (10.0, 25.0, 50.0)
LEAST_LOSS = 0.005
"""Accuracy that quantization has to cost over a run before a share of the loss is told."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """The inputs of a run that could be routed (those with at least two items).

    Attributes:
        confidence: float64 [n], of the candidate, larger is surer.
        changed: bool [n], whether the first answer differs.
        gain: float64 [n], by how much the accuracy of the input rises if it is routed: 1, 0 or -1; NaN where it has
            no label.
    """

    confidence: Floats
    changed: NDArray[np.bool_]
    gain: Floats

    @property
    def accuracy_reason(self) -> str | None:
        """Why there is no loss of accuracy to give back, or None if there is at least `LEAST_LOSS` of it."""
        labelled = self.gain[~np.isnan(self.gain)]
        if not len(labelled):
            return "no input has a label"
        lost = float(labelled.sum())
        if lost >= LEAST_LOSS * len(labelled) * (1 - 1e-12):
            return None
        return (
            f"accuracy changes by {-100 * lost / len(labelled):+.2f} points, and only of a loss of "
            f"{100 * LEAST_LOSS:g} or more can a share be told"
        )


def answers_of(evidence: Evidence, score: ConfidenceName = "gap") -> Answers:
    """Confidence, changes and labels of a run."""
    confidence = confidence_in(evidence, score)
    defined = ~np.isnan(confidence)
    if not defined.any():
        raise RunError("expected a run with an input of at least two items; there is none")
    gain = -parse_metric("change.accuracy").per_input(evidence)
    return Answers(confidence=confidence[defined], changed=perturbation.flips(evidence)[defined], gain=gain[defined])


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One confidence at one percentile; sd is that of (gain - R headroom) / mean headroom of a ratio of sums R.

    Attributes:
        score: which confidence.
        percentile: of it on the slice, where the threshold is set.
        routed: share of the other inputs that are routed, 0 to 1.
        accuracy: recovered share of the accuracy loss; 1 is all of it, and beyond 1 or below 0 is possible where
            top-1 changes were better than before, or are.
        changes: recovered share of the top-1 changes, 0 to 1.
    """

    score: ConfidenceName
    percentile: float
    routed: Share
    accuracy: Share
    changes: Share


def sweep(
    evidence: Evidence,
    *,
    scores: Sequence[ConfidenceName] = CONFIDENCES,
    percentiles: Sequence[float] = PERCENTILES,
    share: float = 0.5,
    n_splits: int = 20,
    seed: int = 0,
) -> tuple[SweepPoint, ...]:
    """Route one run at several percentiles of several confidences; all see the same splits."""
    points = []
    for score in scores:
        answers = answers_of(evidence, score)
        cut, orders = random_splits(len(answers.gain), share, n_splits, seed)
        for percentile in percentiles:
            sums = []
            for order in orders:
                slice_, rest = order[:cut], order[cut:]
                below = answers.confidence[rest] < percentile_threshold(answers.confidence[slice_], percentile)
                gain, changed = np.nan_to_num(answers.gain[rest]), answers.changed[rest]
                sums.append([(v[below].sum(), v.sum()) for v in (np.ones(len(rest)), gain, changed)])
            routed, accuracy, changes = np.array(sums, dtype=np.float64).transpose(1, 2, 0)
            reason = None if answers.changed.any() else "no answer changed"
            points.append(
                SweepPoint(
                    score=score,
                    percentile=percentile,
                    routed=_ratio(routed, None),
                    accuracy=_ratio(accuracy, answers.accuracy_reason),
                    changes=_ratio(changes, reason),
                )
            )
    return tuple(points)


def _ratio(parts: Floats, reason: str | None) -> Share:
    """Sum of gains over sum of headrooms, of [2, n_splits], with its spread over the splits."""
    gains, headrooms = parts
    if reason is None and headrooms.sum() <= 0:
        reason = "the parts measured on have nothing to gain, in sum"
    if reason is not None:
        return Share(value=None, reason=reason)
    ratio = float(gains.sum() / headrooms.sum())
    return share_of((gains - ratio * headrooms) / headrooms.mean(), None, mean=ratio)
