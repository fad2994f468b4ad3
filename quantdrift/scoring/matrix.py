"""Scores that are already there (a shortlist, logits) to a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quantdrift.errors import ScoreError
from quantdrift.scoring.state import FIELDS, Block, ScoreState, at_positions

__all__ = ["score_matrix", "score_ragged"]


def score_matrix(
    reference_scores: NDArray[Any],
    candidate_scores: NDArray[Any],
    *,
    k: int = 200,
    positions: NDArray[Any] | None = None,
) -> ScoreState:
    """The state of scores that are already there (a shortlist, logits): one row per query.

    Args:
        reference_scores: float [n_queries, n_items].
        candidate_scores: float [n_queries, n_items], of the same items.
        k: how many items of either ranking to keep.
        positions: int64 [n_items], increasing, the items' positions; 0..n_items-1 if not given.

    Returns:
        The same state as `score_embeddings` would give for these scores.

    Raises:
        ScoreError: shapes differ, a score or a difference is not finite, k is below 1, there is
            nothing to score, or the positions do not increase.
    """
    if reference_scores.shape != candidate_scores.shape or reference_scores.ndim != 2:  # noqa: PLR2004 -- a matrix
        raise ScoreError(
            "expected two score matrices of the same shape [n_queries, n_items]; got "
            f"{reference_scores.shape} and {candidate_scores.shape}"
        )
    if k < 1:
        raise ScoreError(f"expected k of at least 1; got {k}")
    if 0 in reference_scores.shape:
        raise ScoreError(f"nothing to score: n_queries x n_items is {reference_scores.shape}")
    reference = torch.from_numpy(np.array(reference_scores, dtype=np.float32))
    candidate = torch.from_numpy(np.array(candidate_scores, dtype=np.float32))
    # finite scores can still be further apart than float32 reaches
    if not all(t.isfinite().all() for t in (reference, candidate, candidate - reference)):
        raise ScoreError("expected finite scores; at least one is NaN or infinite")
    n_queries, n_items = reference.shape
    block = Block(n_queries, k, reference.device)
    block.add(reference, candidate, torch.empty_like(reference), 0, None)
    state = block.finish()
    if positions is None:
        return state
    if len(positions) != n_items:
        raise ScoreError(
            f"positions must be one increasing integer per item ({n_items}); got {len(positions)}"
        )
    return at_positions(state, positions)


def score_ragged(
    rows: Sequence[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]], *, k: int
) -> ScoreState:
    """The state of queries that each have items of their own (shortlists).

    Args:
        rows: per query its items' positions, increasing, and their reference and candidate scores,
            all of one length.
        k: how many items of either ranking to keep.

    Raises:
        ScoreError: as `score_matrix`.
    """
    if not rows:
        raise ScoreError("nothing to score: there are no queries")
    states = [
        score_matrix(reference[None, :], candidate[None, :], k=k, positions=positions)
        for positions, reference, candidate in rows
    ]
    return ScoreState(
        **{name: torch.cat([getattr(state, name) for state in states]) for name in FIELDS}
    )
