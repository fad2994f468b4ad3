"""One streamed pass over the items, for both arms at once.

The score matrix (n_queries x n_docs, twice) is never held. Items come in tiles; of each tile only a
`ScoreState` survives: the top-K of either arm with both arms' scores, the extremes of delta, the
number of items. Two states over disjoint items merge into one, so a tile, a process and a machine
are the same operation, and what comes out equals the dense computation exactly.

Ties break by item position, lowest first, the same way in both arms. A score and the position it
belongs to are packed into one int64 whose order is the ranking order, so "top-K with ties by
position" is `torch.topk` on unique integers.
"""

from __future__ import annotations

from quantdrift.scoring.matrix import score_matrix, score_ragged
from quantdrift.scoring.similarity import Similarity, check_embeddings
from quantdrift.scoring.state import ScoreState, at_positions, merge
from quantdrift.scoring.streamed import score_embeddings

__all__ = [
    "ScoreState",
    "Similarity",
    "at_positions",
    "check_embeddings",
    "merge",
    "score_embeddings",
    "score_matrix",
    "score_ragged",
]
