"""The noise floor: the reference against itself, run again with another batch size and order.

Batching alone changes embeddings in their last digits, and a flip rate below this floor says
nothing about quantization.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence import Noise
from quantdrift.scoring import Similarity

__all__ = ["compare_rankings", "noise_of_scores", "other_batch_size"]

Vectors = NDArray[np.float32]
_BLOCK = 512


def other_batch_size(batch_size: int) -> int:
    """A batch size that pads and blocks differently: about half, and odd.

    >>> other_batch_size(32), other_batch_size(1)
    (17, 3)
    """
    return batch_size // 2 + 1 if batch_size > 1 and batch_size % 4 == 0 else batch_size + 2


def compare_rankings(
    first: tuple[Vectors, Vectors],
    second: tuple[Vectors, Vectors],
    contenders: NDArray[np.int64],
    similarity: Similarity,
) -> Noise:
    """Whether the best of the contenders is the same in two runs of one model.

    Scores are taken in float64: what is compared is the model's noise, not that of scoring.

    Args:
        first: query embeddings [n_queries, dim] and document embeddings [n_docs, dim].
        second: the same inputs, embedded again.
        contenders: int64 [n_queries, depth], rows of the document embeddings in order of rank, -1
            where there are fewer.
        similarity: how embeddings are compared.

    Returns:
        The noise floor of every query.
    """
    n_queries = len(contenders)
    flips = np.zeros(n_queries, dtype=np.bool_)
    epsilon = np.zeros(n_queries, dtype=np.float32)
    for at in range(0, n_queries, _BLOCK):
        rows = slice(at, at + _BLOCK)
        ranks = contenders[rows]
        once, again = (
            _scores(queries[rows], documents[ranks.clip(min=0)], similarity)
            for queries, documents in (first, second)
        )
        part = noise_of_scores(once, again, ranks)
        flips[rows], epsilon[rows] = part.flips, part.epsilon
    return Noise(flips=flips, epsilon=epsilon)


def noise_of_scores(
    once: NDArray[np.float64], again: NDArray[np.float64], contenders: NDArray[np.int64]
) -> Noise:
    """Whether the best of the contenders is the same by the scores of two runs of one model.

    Args:
        once: float64 [n_queries, depth], scores of the contenders.
        again: float64 [n_queries, depth], of the second run.
        contenders: int64 [n_queries, depth], their positions in the corpus, -1 where there are
            fewer; what is scored there does not count.

    Returns:
        The noise floor of every query.
    """
    missing = contenders < 0
    best = [_best(np.where(missing, -np.inf, scores), contenders) for scores in (once, again)]
    epsilon = np.where(missing, 0, np.abs(again - once)).max(axis=1)
    return Noise(flips=best[0] != best[1], epsilon=epsilon.astype(np.float32))


def _best(scores: NDArray[np.float64], ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of equal scores the lower position wins, as in the ranking itself."""
    top = scores == scores.max(axis=1, keepdims=True)
    return np.asarray(np.where(top, ranks, np.iinfo(np.int64).max).min(axis=1))


def _scores(queries: Vectors, documents: Vectors, similarity: Similarity) -> NDArray[np.float64]:
    """float64 [n, depth] of queries [n, dim] and their own documents [n, depth, dim]."""
    left, right = queries.astype(np.float64), documents.astype(np.float64)
    if similarity is Similarity.EUCLIDEAN:
        return np.asarray(-np.linalg.norm(left[:, None, :] - right, axis=2))
    if similarity is Similarity.COSINE:
        left = left / np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-30)
        right = right / np.maximum(np.linalg.norm(right, axis=2, keepdims=True), 1e-30)
    return np.asarray(np.einsum("nd,nkd->nk", left, right))
