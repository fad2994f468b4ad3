"""The streamed pass by hand: what is kept of the scores, ties, self-matches, odd shapes."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quantdrift.engine.scoring.state import ScoreState
from quantdrift.engine.scoring.streamed import TILE, Similarity, score_embeddings

STREAMED = "quantdrift.engine.scoring.streamed"


def column(values: Any) -> NDArray[np.float32]:
    """Embeddings of one dimension: with a query of 1, the dot product is the value itself."""
    return np.array(values, dtype=np.float32)[:, None]


def score(reference: Any, candidate: Any, **options: Any) -> ScoreState:
    """The state of one query whose scores are given."""
    one = column([1])
    return score_embeddings(one, one, column(reference), column(candidate), similarity=Similarity.DOT, **options)


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


@pytest.mark.parametrize(
    ("similarity", "wanted"),
    [
        (Similarity.DOT, [6, 8, 0, -2]),
        (Similarity.COSINE, [0.6, 0.8, 0, -1]),  # the query is (2, 0); an all-zero document has 0
        (Similarity.EUCLIDEAN, [-math.hypot(1, 4), -math.hypot(2, 3), -2, -3]),
    ],
)
def test_similarities(similarity: Similarity, wanted: list[float]) -> None:
    query = np.array([[2, 0]], dtype=np.float32)
    documents = np.array([[3, 4], [4, 3], [0, 0], [-1, 0]], dtype=np.float32)
    state = score_embeddings(query, query, documents, documents, similarity=similarity, k=4)
    positions, scores, _ = state.reference_top()
    in_order = scores[0, np.argsort(positions[0])]
    np.testing.assert_allclose(in_order, np.array(wanted, np.float32), rtol=1e-6)


@pytest.mark.parametrize("tile", [1, 2, 4])
def test_a_self_match_does_not_count(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    monkeypatch.setattr(f"{STREAMED}.TILE", tile)
    #      delta: 0 0 90, where 90 is of the excluded item
    state = score([1, 2, 10], [1, 2, 100], k=3, excluded=np.array([2]))
    assert state.reference_top()[0].tolist() == [[1, 0, -1]]
    assert state.candidate_top()[0].tolist() == [[1, 0, -1]]
    assert (state.delta_max.item(), state.n_items.item()) == (0, 2)


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
