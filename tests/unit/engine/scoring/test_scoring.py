"""The streamed pass by hand: what is kept of the scores, ties, self-matches, odd shapes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from quantdrift.engine.scoring.state import ScoreState, merge
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


def test_all_zero_embeddings_tie_at_zero_in_order_of_position() -> None:
    zeros = np.zeros((3, 8), dtype=np.float32)
    for similarity in Similarity:
        state = score_embeddings(zeros[:2], zeros[:2], zeros, zeros, similarity=similarity, k=3)
        assert state.reference_top()[0].tolist() == [[0, 1, 2]] * 2
        assert state.reference_top()[1].tolist() == [[0, 0, 0]] * 2
        assert state.delta_max.tolist() == [0, 0]


def test_k_beyond_the_documents_leaves_empty_places() -> None:
    positions, reference, candidate = score([1, 2], [2, 1], k=4).reference_top()
    assert positions.tolist() == [[1, 0, -1, -1]]
    assert np.isnan([reference[0, 2:], candidate[0, 2:]]).all()


def test_one_query_one_document() -> None:
    state = score([3], [5], k=1)
    assert state.reference_top()[0].tolist() == [[0]]
    assert (state.delta_min.item(), state.delta_max.item(), state.n_items.item()) == (2, 2, 1)


@pytest.mark.parametrize("tile", [1, 2, 4])
def test_a_self_match_does_not_count(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    monkeypatch.setattr(f"{STREAMED}.TILE", tile)
    #      delta: 0 0 90, where 90 is of the excluded item
    state = score([1, 2, 10], [1, 2, 100], k=3, excluded=np.array([2]))
    assert state.reference_top()[0].tolist() == [[1, 0, -1]]
    assert state.candidate_top()[0].tolist() == [[1, 0, -1]]
    assert (state.delta_max.item(), state.n_items.item()) == (0, 2)


def test_a_query_whose_only_document_is_itself_has_no_items() -> None:
    state = score([1], [1], k=2, excluded=np.array([0]))
    assert state.n_items.tolist() == [0]
    assert state.reference_top()[0].tolist() == [[-1, -1]]


def test_excluded_positions_count_from_the_offset() -> None:
    state = score([1, 2, 3], [1, 2, 3], k=3, offset=100, excluded=np.array([102]))
    assert state.reference_top()[0].tolist() == [[101, 100, -1]]
    outside = score([1, 2, 3], [1, 2, 3], k=3, offset=100, excluded=np.array([2]))
    assert outside.n_items.tolist() == [3]


def test_two_halves_merge_into_the_whole() -> None:
    whole = score([1, 4, 4, 2], [2, 3, 5, 0], k=3)
    halves = score([1, 4], [2, 3], k=3), score([4, 2], [5, 0], k=3, offset=2)
    for state in (merge(*halves), merge(*halves[::-1])):
        assert state.reference_top()[0].tolist() == whole.reference_top()[0].tolist() == [[1, 2, 3]]
        assert state.candidate_top()[0].tolist() == whole.candidate_top()[0].tolist() == [[2, 1, 0]]
        assert (state.delta_min.item(), state.delta_max.item()) == (-2, 1)


def test_with_a_shared_index_only_the_queries_differ() -> None:
    rng = np.random.default_rng(0)
    reads = []

    class Documents(np.ndarray[Any, Any]):
        def __getitem__(self, key: Any) -> Any:
            reads.append(key)
            return np.asarray(super().__getitem__(key))

    documents = rng.integers(-3, 4, (9, 4)).astype(np.float32)
    reference, candidate = rng.integers(-3, 4, (2, 3, 4)).astype(np.float32)
    watched = documents.view(Documents)
    state = score_embeddings(reference, candidate, watched, watched, similarity=Similarity.DOT, k=9)
    apart = score_embeddings(reference, candidate, documents, documents.copy(), similarity=Similarity.DOT, k=9)
    assert len(reads) == 1  # each tile is read once, not once per arm
    np.testing.assert_array_equal(state.candidate_top(), apart.candidate_top())
    assert torch.equal(state.delta_max, apart.delta_max)


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


def test_a_sample_of_the_best_sets_a_bar_that_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample sees the 8 best of the reference only, and the list fills with the candidate's."""
    sizes = {"TILE": 16, "_PRIME_SAMPLE": 8, "_PRIME_FROM": 2}
    for name, value in sizes.items():
        monkeypatch.setattr(f"{STREAMED}.{name}", value)
    sampled = np.linspace(0, 63, 8).astype(int)
    reference, candidate = np.arange(64.0), np.arange(64.0)[::-1].copy()
    reference[sampled] += 100
    candidate[sampled] = 45.5
    state = score(reference, candidate, k=10)
    assert state.reference_top()[0][0].tolist() == [63, 54, 45, 36, 27, 18, 9, 0, 62, 61]
    assert state.candidate_top()[0][0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 10, 11]


@pytest.mark.parametrize("k", [1, 7, 100])
def test_from_the_worst_document_to_the_best(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    """Every document beats all before it, so the buffer of winners overflows in each tile."""
    monkeypatch.setattr(f"{STREAMED}.TILE", 256)
    ascending = np.arange(1000.0)
    state = score(ascending, ascending * 2, k=k)
    assert state.reference_top()[0][0].tolist() == list(range(999, 999 - k, -1))
    assert state.delta_max.item() == 999


def test_documents_can_stay_on_disk(tmp_path: Path) -> None:
    values = column([1, 3, 2])
    np.save(tmp_path / "documents.npy", values)
    mapped = np.load(tmp_path / "documents.npy", mmap_mode="r")
    one = column([1])
    state = score_embeddings(one, one, mapped, mapped, similarity=Similarity.DOT, k=3)
    assert state.reference_top()[0].tolist() == [[1, 2, 0]]


def test_inputs_stay_as_they_are_and_progress_counts_documents() -> None:
    steps: list[int] = []
    queries, documents = torch.ones(2, 3), torch.full((TILE + 5, 3), 7.0)
    before = queries.clone(), documents.clone()
    score_embeddings(queries, queries, documents, documents, k=2, progress=steps.append)
    assert sum(steps) == TILE + 5
    assert torch.equal(queries, before[0])
    assert torch.equal(documents, before[1])
