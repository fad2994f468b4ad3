"""What scoring refuses, and scores that come as they are: matrices and shortlists."""

from typing import Any

import numpy as np
import pytest

from quantdrift.base.errors import ScoreError
from quantdrift.scoring.similarity import Similarity, check_embeddings
from quantdrift.scoring.streamed import score_embeddings, score_matrix, score_ragged

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
