"""How sure a model looks, from its own scores: the gap, and the usual rivals of it.

All of them are oriented the same way, larger meaning surer, so that one rule ("trust what is at
least this sure") serves the stability check and routing. None needs torch.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantdrift import perturbation
from quantdrift.errors import RunError, ScoreError, UnknownNameError
from quantdrift.evidence import Confidence, Evidence

__all__ = ["CONFIDENCES", "ConfidenceName", "confidence_in", "confidence_of", "softmax_confidence"]

ConfidenceName = Literal["gap", "msp", "entropy"]
"""The candidate gap, the maximum softmax probability, or minus the predictive entropy in nats."""

CONFIDENCES: tuple[ConfidenceName, ...] = get_args(ConfidenceName)


def confidence_of(scores: ArrayLike, name: ConfidenceName = "gap") -> NDArray[np.float64]:
    """How sure these scores look; larger is surer.

    gap = first - second score; msp = max softmax(scores); entropy = sum_j p_j log p_j, which is
    minus the predictive entropy.

    Args:
        scores: [n_inputs, n_items], what one model ranks by, in any order of items. A tensor on an
            accelerator is to be moved first (`.cpu()`).
        name: which confidence. Those of the softmax need the scores of all items.

    Returns:
        float64 [n_inputs], in score units (gap), from 0 to 1 (msp), in nats and at most 0
        (entropy).

    Raises:
        ScoreError: scores are no matrix, have fewer than two items, or are not finite.
        UnknownNameError: there is no such confidence.

    Source: paper, sections 3 and 5.2.
    """
    matrix = _matrix(scores)
    if name == "gap":
        if matrix.shape[1] == 2:  # noqa: PLR2004 -- sorting two is a difference
            return np.asarray(np.abs(matrix[:, 0] - matrix[:, 1]))
        top = np.partition(matrix, -2, axis=1)[:, -2:]
        return np.asarray(top[:, 1] - top[:, 0])
    _check(name)
    found = softmax_confidence(matrix)
    return found.msp if name == "msp" else -found.entropy


def confidence_in(evidence: Evidence, name: ConfidenceName = "gap") -> NDArray[np.float64]:
    """How sure the candidate looked on every input of a run; larger is surer.

    Args:
        evidence: of one run.
        name: which confidence.

    Returns:
        float64 [n_inputs], as `confidence_of`; NaN where there is only one item.

    Raises:
        RunError: it is one of the softmax, and the run's scores are not logits.
        UnknownNameError: there is no such confidence.
    """
    if name == "gap":
        return perturbation.candidate_gap(evidence)
    _check(name)
    if evidence.confidence is None:
        raise RunError(
            f"{name} is of class probabilities, and this run ranks by similarities, whose softmax "
            "is none; expected a run on classification data. Use gap"
        )
    values = evidence.confidence.msp if name == "msp" else -evidence.confidence.entropy
    return np.where(evidence.n_items > 1, values, np.nan)


def softmax_confidence(logits: ArrayLike) -> Confidence:
    """Maximum softmax probability and predictive entropy.

    Args:
        logits: [n_inputs, n_classes], of all classes.

    Raises:
        ScoreError: as `confidence_of`.
    """
    matrix = _matrix(logits)
    shifted = matrix - matrix.max(axis=1, keepdims=True)
    weights = np.exp(shifted)
    total = weights.sum(axis=1)
    # -sum p log p with log p = shifted - log total, so that no p of 0 takes a logarithm
    entropy = np.log(total) - (weights * shifted).sum(axis=1) / total
    return Confidence(msp=1 / total, entropy=np.maximum(entropy, 0.0))


def _matrix(scores: ArrayLike) -> NDArray[np.float64]:
    matrix = np.asarray(scores, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[1] < 2:  # noqa: PLR2004 -- a matrix of at least two items
        raise ScoreError(
            "expected scores of shape [n_inputs, n_items] with at least two items, to tell first "
            f"from second; got shape {matrix.shape}"
        )
    if not np.isfinite(matrix).all():
        raise ScoreError("expected finite scores; at least one is NaN or infinite")
    return matrix


def _check(name: str) -> None:
    if name not in CONFIDENCES:
        raise UnknownNameError("confidence", name, CONFIDENCES)
