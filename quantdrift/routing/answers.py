"""What routing needs of a run: confidence, what changed, and which answers are right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantdrift.confidence import CONFIDENCES, ConfidenceName, confidence_in
from quantdrift.errors import RunError
from quantdrift.evidence import Evidence
from quantdrift.metrics import parse_metric
from quantdrift.perturbation import flips

__all__ = ["LEAST_LOSS", "Answers", "accuracy_reason", "answers_of", "scores_for"]

LEAST_LOSS = 0.005
"""Accuracy that quantization has to cost over a run before a share of the loss is told."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """The inputs of a run that could be routed (those with at least two items).

    Attributes:
        confidence: float64 [n], of the candidate, larger is surer.
        changed: bool [n], whether the first answer differs.
        gain: float64 [n], by how much the accuracy of the input rises if it is routed: 1, 0 or -1;
            NaN where it has no label.
    """

    confidence: NDArray[np.float64]
    changed: NDArray[np.bool_]
    gain: NDArray[np.float64]

    @property
    def n(self) -> int:
        """Number of inputs."""
        return len(self.confidence)


def answers_of(evidence: Evidence, score: ConfidenceName = "gap") -> Answers:
    """Confidence, changes and labels of a run.

    Args:
        evidence: of one run.
        score: which confidence.

    Raises:
        RunError: the run has no such confidence, or no input with two items.
    """
    confidence = confidence_in(evidence, score)
    known = ~np.isnan(confidence)
    if not known.any():
        raise RunError("expected a run with an input of at least two items; there is none")
    right = {
        arm: parse_metric(name).per_input(evidence)
        for arm, name in (("reference", "reference.accuracy"), ("candidate", "accuracy"))
    }
    return Answers(
        confidence=confidence[known],
        changed=flips(evidence)[known],
        gain=(right["reference"] - right["candidate"])[known],
    )


def accuracy_reason(answers: Answers) -> str | None:
    """Why there is no loss of accuracy to give back, or None if there is.

    The loss over the whole run has to be at least `LEAST_LOSS`, counted in inputs.

    Source: paper, section 5.3.
    """
    labelled = answers.gain[~np.isnan(answers.gain)]
    if not len(labelled):
        return "no input has a label"
    lost = float(labelled.sum())
    if lost <= 0:
        moved = f"rises by {-100 * lost / len(labelled):.2f} points" if lost else "is the same"
        return f"accuracy {moved}, so nothing was lost"
    if lost < LEAST_LOSS * len(labelled) * (1 - 1e-12):
        return (
            f"accuracy falls by {100 * lost / len(labelled):.2f} points, less than the "
            f"{100 * LEAST_LOSS:g} of which a share can be told"
        )
    return None


def scores_for(evidence: Evidence) -> tuple[ConfidenceName, ...]:
    """The confidences that a run has: all of them for logits, the gap for similarities."""
    return CONFIDENCES if evidence.confidence is not None else ("gap",)
