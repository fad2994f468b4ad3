"""The gaps of calibration queries: by hand, in the reference's order, every text once."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from quantdrift.engine.inputs import Inputs
from quantdrift.engine.scoring.streamed import Similarity, score_embeddings
from quantdrift.engine.sensitivity.problem import GapProblem, contenders_for, draw_queries, retrieval_problem
from quantdrift.errors import DataError

Array = NDArray[np.float32]


class Side:
    """Inputs that are vectors already, and a record of what was encoded."""

    def __init__(self, role: str, vectors: Any, lengths: Any = None) -> None:
        self.vectors = np.array(vectors, dtype=np.float32)
        self.calls: list[list[int]] = []

        def encode(rows: NDArray[np.int64], batch_size: int) -> Array:
            assert len(rows) <= batch_size
            self.calls.append(rows.tolist())
            return self.vectors[rows]

        self.inputs = Inputs(
            role=role,
            ids=[f"{role}{number}" for number in range(len(self.vectors))],
            encode=encode,
            key=None,
            lengths=None if lengths is None else np.array(lengths),
        )


def problem_of(
    queries: Side,
    documents: Side,
    similarity: Similarity = Similarity.DOT,
    *,
    chosen: Any = None,
    batch_size: int = 8,
    n_contenders: int = 4,
    **options: Any,
) -> GapProblem:
    return retrieval_problem(
        queries.inputs,
        documents.inputs,
        (queries.vectors, documents.vectors),
        similarity=similarity,
        chosen=np.arange(len(queries.vectors)) if chosen is None else np.array(chosen),
        batch_size=batch_size,
        n_contenders=n_contenders,
        **options,
    )


QUERY = [[1.0, 0.0]]
DOCUMENTS = [[1.0, 0.0], [3.0, 4.0], [0.0, 2.0]]


@pytest.mark.parametrize("query_only", [False, True])
@pytest.mark.parametrize(
    ("similarity", "gaps"),
    [
        (Similarity.COSINE, [1 - 0.6, 1 - 0]),  # 1, 0.6, 0
        (Similarity.DOT, [3 - 1, 3 - 0]),  # 1, 3, 0: the second document is the first
        (Similarity.EUCLIDEAN, [5**0.5, 20**0.5]),  # distances 0, sqrt(20), sqrt(5)
    ],
)
def test_gaps_by_hand(similarity: Similarity, gaps: list[float], query_only: bool) -> None:
    problem = problem_of(Side("q", QUERY), Side("d", DOCUMENTS), similarity, query_only=query_only)
    found = problem.gaps(problem.outputs())
    assert found[0, :2] == pytest.approx(gaps)
    assert problem.n_rows == (1 if query_only else 4)


def test_with_an_index_that_stays_only_the_query_moves_the_gap() -> None:
    problem = problem_of(Side("q", QUERY), Side("d", DOCUMENTS), Similarity.DOT, query_only=True)
    moved = np.array([[1.0, -1.0]], dtype=np.float32)
    assert problem.gaps(moved)[0, :2] == pytest.approx([-1 - 1, -1 + 2])  # scores 1, -1, -2


def test_a_document_that_does_not_count_is_no_contender() -> None:
    """For the second query of the pool the document that would be its first is left out."""
    queries = Side("q", [[0.0, 1.0], *QUERY])
    excluded = np.array([-1, 0])
    problem = problem_of(queries, Side("d", DOCUMENTS), Similarity.COSINE, chosen=[1], excluded=excluded)
    assert problem.valid.sum() == 1
    assert problem.gaps(problem.outputs())[0, 0] == pytest.approx(0.6)
    assert problem.n_rows == 3


def test_where_there_are_fewer_documents_than_contenders_gaps_are_missing() -> None:
    problem = problem_of(Side("q", QUERY), Side("d", DOCUMENTS), n_contenders=4)
    gaps = problem.gaps(problem.outputs())
    assert problem.valid[0, :2].all()
    assert not problem.valid[0, 2:].any()
    assert np.array_equal(np.isnan(gaps), ~problem.valid)
    with pytest.raises(DataError, match="no calibration query has two documents"):
        problem_of(Side("q", QUERY), Side("d", DOCUMENTS[:1]))
    with pytest.raises(DataError, match="no calibration query has two documents"):
        problem_of(Side("q", QUERY), Side("d", DOCUMENTS[:2]), excluded=np.array([1]))


def random_sides(n_queries: int = 9, n_docs: int = 30) -> tuple[Side, Side]:
    rng = np.random.default_rng(0)
    lengths = [rng.integers(1, 50, size=n) for n in (n_queries, n_docs)]
    return (Side("q", rng.normal(size=(n_queries, 5)), lengths[0]), Side("d", rng.normal(size=(n_docs, 5)), lengths[1]))


@pytest.mark.parametrize("similarity", list(Similarity))
def test_gaps_are_differences_of_the_scores_that_a_run_computes(similarity: Similarity) -> None:
    queries, documents = random_sides()
    chosen = [0, 2, 3, 8]
    problem = problem_of(queries, documents, similarity, chosen=chosen, n_contenders=3)
    part = queries.vectors[chosen]
    state = score_embeddings(part, part, documents.vectors, documents.vectors, similarity=similarity, k=4)
    scores = state.reference_top()[1]
    np.testing.assert_allclose(problem.gaps(problem.outputs()), scores[:, :1] - scores[:, 1:], atol=1e-5)


def test_every_row_is_embedded_exactly_once_and_is_the_references_own() -> None:
    queries, documents = random_sides()
    chosen = [1, 4, 5, 6, 7]
    problem = problem_of(queries, documents, chosen=chosen, batch_size=4)
    rows = np.concatenate([batch.rows for batch in problem.batches])
    assert sorted(rows.tolist()) == list(range(problem.n_rows))
    outputs = problem.outputs()
    assert problem.reference is not None
    np.testing.assert_array_equal(outputs, problem.reference)
    np.testing.assert_array_equal(outputs[: len(chosen)], queries.vectors[chosen])
    assert sorted(chain(*queries.calls)) == chosen
    encoded = list(chain(*documents.calls))
    assert len(set(encoded)) == len(encoded) == problem.n_rows - len(chosen)
    # no document that is nobody's contender, none of another query
    scores = queries.vectors[chosen] @ documents.vectors.T
    assert set(encoded) == set(np.argsort(-scores, axis=1)[:, :5].ravel().tolist())


def test_batches_hold_texts_of_similar_length_and_of_one_side() -> None:
    queries, documents = random_sides()
    problem = problem_of(queries, documents, batch_size=4)
    problem.outputs()
    assert queries.inputs.lengths is not None
    longest_first = [queries.inputs.lengths[row] for call in queries.calls for row in call]
    assert longest_first == sorted(longest_first, reverse=True)
    assert all(len(call) <= 4 for call in queries.calls + documents.calls)


def test_gaps_have_gradients_and_none_depends_on_anothers_rows() -> None:
    queries, documents = random_sides()
    problem = problem_of(queries, documents, Similarity.COSINE, n_contenders=2)
    chosen = torch.from_numpy(problem.outputs()[problem.rows]).double().requires_grad_()
    problem.gap(chosen)[3, 1].backward()  # type: ignore[no-untyped-call]  # untyped in torch
    assert chosen.grad is not None
    moved = chosen.grad.abs().sum(dim=(-1, -2)) > 0
    assert moved.nonzero().tolist() == [[3, 1]]


def test_the_draw_is_seeded_ascending_and_a_quarter_at_most() -> None:
    drawn = draw_queries(1000, wanted=128, seed=3)
    assert len(drawn) == len(set(drawn.tolist())) == 128
    assert drawn.tolist() == sorted(drawn.tolist())
    assert 0 <= drawn[0] < drawn[-1] < 1000
    np.testing.assert_array_equal(drawn, draw_queries(1000, wanted=128, seed=3))
    assert drawn.tolist() != draw_queries(1000, wanted=128, seed=4).tolist()
    assert [len(draw_queries(n, wanted=128)) for n in (4, 7, 8, 511, 512, 513)] == [1, 1, 2, 127, 128, 128]
    with pytest.raises(DataError, match=r"at least 4 queries, .* got 3"):
        draw_queries(3, wanted=1)


def test_few_queries_are_measured_against_more_documents() -> None:
    assert [contenders_for(n) for n in (1, 32, 42, 43, 64, 127, 128, 500)] == [4, 4, 4, 3, 2, 2, 1, 1]
