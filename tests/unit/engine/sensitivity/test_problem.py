"""The gaps of calibration inputs: by hand, in the reference's order, every text once; and what is kept of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quantdrift.engine.readings import Search
from quantdrift.engine.scoring.streamed import Similarity, score_embeddings
from quantdrift.engine.sensitivity.problem import (
    GapProblem,
    classification_problem,
    contenders_for,
    draw_queries,
    retrieval_problem,
)
from quantdrift.errors import DataError
from support.worlds import Rower, rows_of


class Side:
    """Inputs that are vectors already, and a record of what was encoded."""

    def __init__(self, role: str, vectors: Any, lengths: Any = None) -> None:
        self.vectors = np.array(vectors, dtype=np.float32)
        self.calls: list[list[int]] = []
        lengths = None if lengths is None else np.array(lengths)
        self.inputs = rows_of(role, len(self.vectors), prefix=role, lengths=lengths)

    def run(self, _: str, rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
        assert len(rows) <= batch_size
        self.calls.append(rows.tolist())
        return self.vectors[rows]


def problem_of(
    queries: Side, documents: Side, similarity: Similarity = Similarity.DOT, excluded: Any = None, **options: Any
) -> GapProblem:
    settings = {"chosen": np.arange(len(queries.vectors)), "batch_size": 8, "n_contenders": 4, **options}
    reference = (queries.vectors, documents.vectors)
    sides = {side.inputs.role: side for side in (queries, documents)}
    encoder = Rower(lambda role, rows, size: sides[role].run(role, rows, size))
    search = Search(queries=queries.inputs, documents=documents.inputs, similarity=similarity, excluded=excluded)
    return retrieval_problem(encoder, search, reference, **settings)


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
    assert problem.gaps(problem.outputs())[0, :2] == pytest.approx(gaps)
    assert problem.n_rows == (1 if query_only else 4)


def test_a_document_that_does_not_count_is_no_contender() -> None:
    """For the second query of the pool the document that would be its first is left out."""
    queries, excluded = Side("q", [[0.0, 1.0], *QUERY]), np.array([-1, 0])
    problem = problem_of(queries, Side("d", DOCUMENTS), Similarity.COSINE, chosen=np.array([1]), excluded=excluded)
    assert problem.valid.sum() == 1
    assert problem.gaps(problem.outputs())[0, 0] == pytest.approx(0.6)
    assert problem.n_rows == 3


def random_sides(n_queries: int = 9, n_docs: int = 30) -> tuple[Side, Side]:
    rng = np.random.default_rng(0)
    lengths = [rng.integers(1, 50, size=n) for n in (n_queries, n_docs)]
    return (Side("q", rng.normal(size=(n_queries, 5)), lengths[0]), Side("d", rng.normal(size=(n_docs, 5)), lengths[1]))


@pytest.mark.parametrize("similarity", list(Similarity))
def test_gaps_are_differences_of_the_scores_that_a_run_computes(similarity: Similarity) -> None:
    queries, documents = random_sides()
    chosen = np.array([0, 2, 3, 8])
    problem = problem_of(queries, documents, similarity, chosen=chosen, n_contenders=3)
    part = queries.vectors[chosen]
    state = score_embeddings(part, part, documents.vectors, documents.vectors, similarity=similarity, k=4)
    scores = state.reference_top()[1]
    np.testing.assert_allclose(problem.gaps(problem.outputs()), scores[:, :1] - scores[:, 1:], atol=1e-5)


def test_the_draw_is_seeded_ascending_and_a_quarter_at_most() -> None:
    drawn = draw_queries(1000, wanted=128, seed=3)
    assert drawn.tolist() == sorted(set(drawn.tolist()))
    assert len(drawn) == 128
    np.testing.assert_array_equal(drawn, draw_queries(1000, wanted=128, seed=3))
    assert drawn.tolist() != draw_queries(1000, wanted=128, seed=4).tolist()
    assert [len(draw_queries(n, wanted=128)) for n in (4, 7, 8, 511, 512, 513)] == [1, 1, 2, 127, 128, 128]
    with pytest.raises(DataError, match=r"at least 4 queries, .* got 3"):
        draw_queries(3, wanted=1)
    assert [contenders_for(n) for n in (1, 32, 42, 43, 64, 127, 128, 500)] == [4, 4, 4, 3, 2, 2, 1, 1]


def test_gaps_between_classes_by_hand() -> None:
    outputs = np.array([[1, 5, 3], [7, 0, 2]], dtype=np.float32)
    train = Side("train", outputs)
    encoder, side = Rower(train.run), train.inputs
    problem = classification_problem(encoder, side, outputs, logits=lambda x: x, batch_size=1, n_contenders=4)
    assert problem.valid.shape == (2, 2)  # as many as there are other classes
    assert problem.gaps(problem.outputs()).tolist() == [[2, 4], [5, 7]]
    moved = outputs + np.array([[0, 0, 3], [0, 6, 0]], dtype=np.float32)
    # the classes stay those of the reference: 3 is ahead of 5 by 1 now, 0 ahead of 6 by 1
    assert problem.gaps(moved).tolist() == [[-1, 4], [5, 1]]
