"""How sure a model looks, from its own scores: the gap, and the usual rivals of it.

All of them are oriented the same way, larger meaning surer, so that one rule ("trust what is at
least this sure") serves the stability check and routing. None needs torch.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantdrift import perturbation
from quantdrift.errors import RunError, ScoreError, UnknownNameError
from quantdrift.evidence import Confidence, Evidence

__all__ = [
    "CONFIDENCES",
    "ConfidenceName",
    "as_array",
    "confidence_in",
    "confidence_of",
    "softmax_confidence",
]

ConfidenceName = Literal["gap", "msp", "entropy"]
"""The candidate gap, the maximum softmax probability, or minus the predictive entropy in nats."""

CONFIDENCES: tuple[ConfidenceName, ...] = get_args(ConfidenceName)

_NOT_FINITE = "expected finite scores; at least one is NaN or infinite"


def as_array(values: Any) -> NDArray[Any]:
    """An array of what a model returned: array, nested list, or a tensor on any device.

    A result with `logits` (as of transformers) stands for these. Tensors are told by what they can
    do, so that no framework is imported.

    Raises:
        ScoreError: numpy cannot read it.
    """
    values = getattr(values, "logits", values)
    tensor = hasattr(values, "detach")
    try:
        values = values.detach().cpu() if tensor else values
        try:
            return np.asarray(values)
        except TypeError:  # numpy has no bfloat16; float32 holds every value of it
            if not tensor:
                raise
            return np.asarray(values.float())
    except (TypeError, ValueError, RuntimeError) as error:
        raise ScoreError(f"expected an array, a list or a tensor of numbers; {error}") from error


def confidence_of(scores: ArrayLike, name: ConfidenceName = "gap") -> NDArray[np.float64]:
    """How sure these scores look; larger is surer.

    gap = first - second score; msp = max softmax(scores); entropy = sum_j p_j log p_j, which is
    minus the predictive entropy.

    Args:
        scores: [n_inputs, n_items], what one model ranks by, in any order of items: an array, or a
            tensor on any device. Those of the softmax need the scores of all items, the gap only
            the first two.
        name: which confidence.

    Returns:
        float64 [n_inputs], in score units and at least 0 (gap), from 0 to 1 (msp), in nats and at
        most 0 (entropy).

    Raises:
        ScoreError: scores are no matrix, have fewer than two items, or are not finite: a NaN or
            +infinity anywhere, or -infinity among the first two. -infinity behind them is let
            pass, as of a class that was masked (probability 0).
        UnknownNameError: there is no such confidence.

    Source: paper, sections 3 and 5.2.

    >>> confidence_of([[1.0, 4.0, 3.5], [2.0, 2.0, 0.0]])
    array([0.5, 0. ])
    """
    if name not in CONFIDENCES:
        raise UnknownNameError("confidence", name, CONFIDENCES)
    if name == "gap":
        return _top_gap(scores)
    found = softmax_confidence(scores)
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
    if name not in CONFIDENCES:
        raise UnknownNameError("confidence", name, CONFIDENCES)
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
        logits: [n_inputs, n_classes], of all classes; -infinity for one that is masked.

    Raises:
        ScoreError: as `confidence_of`.
    """
    matrix = _matrix(logits).astype(np.float64, copy=False)
    finite = np.isfinite(matrix)
    masked = np.isneginf(matrix)
    if not ((finite | masked).all() and (finite.sum(axis=1) >= 2).all()):  # noqa: PLR2004 -- a runner-up
        raise ScoreError(_NOT_FINITE)
    shifted = matrix - matrix.max(axis=1, keepdims=True)
    weights = np.exp(shifted)
    total = weights.sum(axis=1)
    shifted = np.where(masked, 0.0, shifted)  # 0 log 0 is 0
    # -sum p log p with log p = shifted - log total, so that no p of 0 takes a logarithm
    entropy = np.log(total) - (weights * shifted).sum(axis=1) / total
    return Confidence(msp=1 / total, entropy=np.maximum(entropy, 0.0))


def _top_gap(scores: ArrayLike) -> NDArray[np.float64]:
    """Two passes in the scores' own dtype, as a server asks this of every answer it gives.

    Only the two scores are widened, so that their difference is exact.
    """
    matrix = _matrix(scores).copy()  # the first score is struck out to find the second
    rows = np.arange(len(matrix))
    best = matrix.argmax(axis=1)
    first = matrix[rows, best].astype(np.float64)
    matrix[rows, best] = -np.inf
    second = matrix.max(axis=1).astype(np.float64)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ScoreError(_NOT_FINITE)
    return np.asarray(first - second)


def _matrix(scores: ArrayLike) -> NDArray[np.floating[Any]]:
    """As floating-point numbers of at least two items, finite or not."""
    matrix = as_array(scores)
    if matrix.dtype.kind != "f":
        try:
            matrix = matrix.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ScoreError(f"expected scores that are numbers; {error}") from error
    if matrix.ndim != 2 or matrix.shape[1] < 2:  # noqa: PLR2004 -- a matrix of at least two items
        raise ScoreError(
            "expected scores of shape [n_inputs, n_items] with at least two items, to tell first "
            f"from second; got shape {matrix.shape}. One input is a batch of one: scores[None]"
        )
    return matrix
