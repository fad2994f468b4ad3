"""The streamed pass by hand: what is kept of the scores, ties, self-matches, odd shapes."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.state import ScoreState
from quantdrift.scoring.streamed import TILE, score_embeddings


def column(values: Any) -> NDArray[np.float32]:
    """Embeddings of one dimension: with a query of 1, the dot product is the value itself."""
    return np.array(values, dtype=np.float32)[:, None]


def score(reference: Any, candidate: Any, **options: Any) -> ScoreState:
    """The state of one query whose scores are given."""
    query = column([1])
    return score_embeddings(query, query, column(reference), column(candidate), similarity=Similarity.DOT, **options)


def test_by_hand() -> None:
    #                    item 0  1  2  3        delta
    state = score(reference=[5, 3, 4, 1], candidate=[4, 5, 4, 3], k=2)  # -1 +2 0 +2
    positions, reference, candidate = state.reference_top()
    assert (positions.tolist(), reference.tolist(), candidate.tolist()) == ([[0, 2]], [[5, 4]], [[4, 4]])
    positions, reference, candidate = state.candidate_top()
    assert (positions.tolist(), reference.tolist(), candidate.tolist()) == (
        [[1, 0]],  # items 0 and 2 both score 4: the lower position is first
        [[3, 5]],
        [[5, 4]],
    )
    assert (state.delta_min.tolist(), state.delta_max.tolist()) == ([-1], [2])
    assert state.n_items.tolist() == [4]


@pytest.mark.parametrize("similarity", Similarity)
@pytest.mark.parametrize("n_queries", [1, 3, 33])
def test_equal_documents_score_equal_wherever_they_stand(similarity: Similarity, n_queries: int) -> None:
    """Real numbers, whose sums depend on the order of adding; 2 tiles, the second almost empty."""
    rng = np.random.default_rng(1)
    texts = rng.standard_normal((50, 100)).astype(np.float32)
    which = rng.integers(0, len(texts), TILE + 3)
    which[-1] = which[0]
    queries = rng.standard_normal((n_queries, 100)).astype(np.float32)
    state = score_embeddings(queries, queries, texts[which], texts[which], similarity=similarity, k=len(which))
    for positions, scores in zip(*state.reference_top()[:2], strict=True):
        by_text = which[positions]
        for text in np.unique(which):
            of_text = by_text == text
            assert len(set(scores[of_text].tolist())) == 1
            assert positions[of_text].tolist() == sorted(positions[of_text].tolist())
