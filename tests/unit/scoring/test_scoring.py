"""The streamed pass by hand, what it refuses, scores that come as they are, and a matrix for each input."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quantdrift.base.cache import cache_file
from quantdrift.base.errors import ScoreError
from quantdrift.models.store import EmbeddingStore
from quantdrift.scoring.ragged import Ragged, Rows
from quantdrift.scoring.similarity import Similarity, check_embeddings
from quantdrift.scoring.state import ScoreState
from quantdrift.scoring.streamed import TILE, score_embeddings, score_matrix, score_ragged


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


# --- what is refused ---------------------------------------------------------------------------------


QUERIES, DOCUMENTS = np.ones((2, 3), np.float32), np.ones((4, 3), np.float32)


@pytest.mark.parametrize(
    "arrays",
    [
        (QUERIES[0], QUERIES, DOCUMENTS, DOCUMENTS),
        (QUERIES, QUERIES[:, :2], DOCUMENTS, DOCUMENTS),
        (QUERIES, QUERIES[:1], DOCUMENTS, DOCUMENTS),
        (QUERIES, QUERIES, DOCUMENTS, DOCUMENTS[:3]),
        (QUERIES[:0], QUERIES[:0], DOCUMENTS, DOCUMENTS),
        (QUERIES, QUERIES, DOCUMENTS[:0], DOCUMENTS[:0]),
    ],
)
def test_shapes_that_do_not_fit(arrays: tuple[Any, ...]) -> None:
    with pytest.raises(ScoreError, match=r"one dim .*got \("):
        score_embeddings(*arrays)


@pytest.mark.parametrize("arms", ["both", "one"])
def test_products_beyond_float32(arms: str) -> None:
    large = np.array([[1, 0, 0], [1e30, 0, 0]], np.float32)
    documents = np.tile(np.array([1e20, 1, 1], np.float32), (4, 1))
    other = large if arms == "both" else np.ones_like(large)
    with pytest.raises(ScoreError, match=r"query 1 .*float32"):
        score_embeddings(large, other, documents, documents, similarity=Similarity.DOT, k=2)
    score_embeddings(large, other, documents, documents, similarity=Similarity.COSINE, k=2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_embeddings_that_are_not_finite_name_the_first_row(bad: float) -> None:
    embeddings = np.zeros((70_000, 2), np.float32)
    check_embeddings(embeddings, arm="reference", what="query")
    embeddings[66_000:, 1] = bad
    with pytest.raises(ScoreError, match=r"candidate .*document at row 66000"):
        check_embeddings(embeddings, arm="candidate", what="document")
    ids = [f"d{row}" for row in range(len(embeddings))]
    with pytest.raises(ScoreError, match="document 'd66000'"):
        check_embeddings(embeddings, arm="candidate", what="document", ids=ids)


@pytest.mark.parametrize("length", [1e-45, 1e-30, 1e-19, 1, 1e19, 3e38])
def test_a_vector_of_any_length_has_a_direction(length: float) -> None:
    """The square of all but one of these is no number that float32 holds."""
    documents = np.array([[length, 0, 0], [0, 0, 0]], np.float32)
    query = np.array([[3, 4, 0]], np.float32)
    state = score_embeddings(query, query, documents, documents, k=2)
    assert state.reference_top()[0].tolist() == [[0, 1]]
    assert state.reference_top()[1][0].tolist() == pytest.approx([0.6, 0], rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reference_scores": np.full((2, 3), -3e38), "candidate_scores": np.full((2, 3), 3e38)}, "finite scores"),
        ({"positions": np.array([0, 2, 1])}, "increasing integer"),
        ({"positions": np.array([-1, 0, 1])}, "increasing integer"),
        ({"positions": np.array([0, 1])}, "one increasing integer per item"),
    ],
)
def test_matrices_that_cannot_be_ranked(options: dict[str, Any], message: str) -> None:
    good = {"reference_scores": np.zeros((2, 3)), "candidate_scores": np.zeros((2, 3))}
    with pytest.raises(ScoreError, match=message):
        score_matrix(**{**good, **options})
    with pytest.raises(ScoreError, match="no queries"):
        score_ragged([], k=2)


# --- a matrix for each input -------------------------------------------------------------------------


MATRICES = [np.full((length, 2), number, dtype=np.float32) for number, length in enumerate((2, 0, 3, 1))]


def same(left: Ragged, right: Ragged) -> bool:
    return len(left) == len(right) and all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_some_inputs_are_taken_by_position() -> None:
    ragged = Ragged.of(MATRICES)
    some = ragged[np.array([2, 0])]
    assert ragged.shape == (4, 2)
    assert ragged.size == 12
    assert ragged[:2].lengths.tolist() == [2, 0]
    assert some.flat()[:, 0].tolist() == [2, 2, 2, 0, 0]
    assert ragged[1:3].flat()[:, 0].tolist() == [2, 2, 2]


def encoded(rows: Rows) -> Ragged:
    return Ragged.of([np.full((1 + row % 3, 2), row, dtype=np.float32) for row in rows.tolist()])


def test_what_was_kept_is_read_back_in_the_order_of_the_inputs(tmp_path: Path) -> None:
    order = np.array([3, 1, 4, 0, 2])
    store, expected = EmbeddingStore(tmp_path), encoded(np.arange(5))
    first = store.get("ab" * 20, order=order, encode=encoded, chunk=2)

    def never(rows: Rows) -> Ragged:
        raise AssertionError(rows)

    again = store.get("ab" * 20, order=order, encode=never, chunk=2)
    assert same(first, expected)
    assert same(again, expected)
    assert same(EmbeddingStore(None).get(None, order=order, encode=encoded, chunk=2), expected)


def test_a_run_that_was_killed_goes_on_after_its_last_whole_chunk(tmp_path: Path) -> None:
    order, calls = np.arange(6), list[list[int]]()

    def killed(rows: Rows) -> Ragged:
        calls.append(rows.tolist())
        if rows[0] == 4:
            raise KeyboardInterrupt
        return encoded(rows)

    with pytest.raises(KeyboardInterrupt):
        EmbeddingStore(tmp_path).get("cd" * 20, order=order, encode=killed, chunk=2)
    calls.clear()
    damaged = next(tmp_path.rglob("*.0.npy"))
    damaged.write_bytes(damaged.read_bytes()[:-60])

    def recorded(rows: Rows) -> Ragged:
        calls.append(rows.tolist())
        return encoded(rows)

    whole = EmbeddingStore(tmp_path).get("cd" * 20, order=order, encode=recorded, chunk=2)
    assert calls == [[0, 1], [4, 5]]
    assert same(whole, encoded(order))
    assert [file.name[40:] for file in tmp_path.rglob("*.npy")] == [".npy"]  # one file is open, whatever the corpus


@pytest.mark.parametrize("lengths", [[2**62, 2**62, 2**62, 2**62 + 6], [-1, 2, 0, 5], [1, 1, 1, 1]])
def test_a_damaged_file_is_made_again(lengths: list[int], tmp_path: Path) -> None:
    store, order, key = EmbeddingStore(tmp_path), np.arange(4), "ef" * 20
    store.get(key, order=order, encode=encoded)
    (kept,) = tmp_path.rglob("*.npy")
    with cache_file(kept) as place, place.open("wb") as file:
        np.save(file, np.array(lengths))
        np.save(file, np.zeros((6, 2), dtype=np.float32))
    assert same(store.get(key, order=order, encode=encoded), encoded(order))


def test_a_number_that_is_none_is_refused_with_the_name_of_its_input() -> None:
    broken = [*MATRICES, np.array([[0, np.nan]], dtype=np.float32)]
    with pytest.raises(ScoreError, match="'e' holds NaN"):
        check_embeddings(Ragged.of(broken), arm="reference", what="query", ids="abcde")
