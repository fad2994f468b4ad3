"""The gap of served scores, fast: a server computes it for every answer it gives."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantdrift.errors import ScoreError

__all__ = ["top_gap"]


def top_gap(scores: ArrayLike) -> NDArray[np.float64]:
    """First minus second score; what `quantdrift.confidence.confidence_of` gives, faster.

    Two passes in the scores' own dtype instead of a sort in float64; only the two scores are
    widened, so that their difference is exact.

    Args:
        scores: float [n_inputs, n_items], of at least two items, finite. A tensor on an accelerator
            is to be moved first (`.float().cpu()`).

    Returns:
        float64 [n_inputs], in score units, at least 0.

    Raises:
        ScoreError: it is no such matrix, or one of the first two scores is NaN or infinite (a NaN
            anywhere counts as first).

    Source: paper, section 3.

    >>> top_gap([[1.0, 4.0, 3.5], [2.0, 2.0, 0.0]])
    array([0.5, 0. ])
    """
    try:
        matrix = np.asarray(scores)
        # copied, for the first score is struck out to find the second
        matrix = matrix.astype(matrix.dtype if matrix.dtype.kind == "f" else np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor that numpy cannot read
        raise ScoreError(
            f"expected scores that numpy can read; {error}. For a tensor: "
            "scores.detach().float().cpu()"
        ) from error
    if matrix.ndim != 2 or matrix.shape[1] < 2:  # noqa: PLR2004 -- a matrix of at least two items
        raise ScoreError(
            "expected scores of shape [n_inputs, n_items] with at least two items, to tell first "
            f"from second; got shape {matrix.shape}"
        )
    rows = np.arange(len(matrix))
    best = matrix.argmax(axis=1)
    first = matrix[rows, best].astype(np.float64)
    matrix[rows, best] = -np.inf
    second = matrix.max(axis=1).astype(np.float64)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ScoreError("expected finite scores; at least one is NaN or infinite")
    return np.asarray(first - second)
