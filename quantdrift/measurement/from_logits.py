"""From the logits of both arms to evidence: classes are the items that are ranked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quantdrift.confidence import softmax_confidence
from quantdrift.evidence import Evidence, Noise
from quantdrift.measurement.assembly import assemble
from quantdrift.scoring import score_matrix

__all__ = ["evidence_of_logits", "noise_of_logits"]

DEPTH = 200
"""Ranks kept of either arm."""


def evidence_of_logits(
    reference: NDArray[np.float32],
    candidate: NDArray[np.float32],
    *,
    input_ids: Sequence[str],
    classes: Sequence[str],
    labels: Sequence[str] | None = None,
    noise: Noise | None = None,
    depth: int = DEPTH,
) -> Evidence:
    """Evidence of a classifier: every input ranks all classes by logit.

    Args:
        reference: float32 [n_inputs, n_classes], the reference's logits.
        candidate: float32 [n_inputs, n_classes], the candidate's.
        input_ids: names of the inputs, all different.
        classes: names of the classes, by logit.
        labels: the right class of each input; one that is no class of the model counts as a
            relevant item that is never found.
        noise: the noise floor, where it was measured.
        depth: how many ranks to keep. Epsilon, S and the confidence are over all classes.

    Raises:
        ScoreError: the shapes differ, or a logit is not finite.
    """
    state = score_matrix(reference, candidate, k=depth)
    qrels = None
    if labels is not None:
        qrels = {name: {label: 1} for name, label in zip(input_ids, labels, strict=True)}
    evidence = assemble(state, input_ids=input_ids, item_ids=classes, qrels=qrels, noise=noise)
    if len(classes) < 2:  # noqa: PLR2004 -- one class is sure of itself
        return evidence
    return replace(evidence, confidence=softmax_confidence(candidate))


def noise_of_logits(once: NDArray[np.float32], again: NDArray[np.float32]) -> Noise:
    """The noise floor of two runs of one classifier.

    Args:
        once: float32 [n_inputs, n_classes].
        again: float32 [n_inputs, n_classes], of the same inputs, in another batch size and order.
    """
    return Noise(
        flips=once.argmax(axis=1) != again.argmax(axis=1),
        epsilon=np.abs(once.astype(np.float64) - again).max(axis=1).astype(np.float32),
    )
