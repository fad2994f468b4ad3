"""The gaps of calibration inputs: by hand, in the reference's order, every text once; and what is kept of them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quantdrift.base.errors import DataError
from quantdrift.measuring.problem import GapProblem, contenders_for, draw_queries, hold_out
from quantdrift.measuring.readings import Classes, Head, Search
from quantdrift.models.inputs import Settings
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.streamed import score_embeddings
from support.worlds import Rower, rows_of


def problem_of(
    queries: Any, documents: Any, similarity: Similarity = Similarity.DOT, excluded: Any = None, **options: Any
) -> GapProblem:
    """Make the problem of sides that are vectors already; rows are encoded in an order of their own."""
    vectors = {"query": np.array(queries, np.float32), "document": np.array(documents, np.float32)}
    settings: Any = {"chosen": np.arange(len(queries)), "batch_size": 8, "n_contenders": 4, **options}
    encoder = Rower(lambda role, rows, size: vectors[role][rows])
    sides = {role: rows_of(role, len(x), lengths=np.arange(len(x)) * 7 % 5) for role, x in vectors.items()}
    pair = SimpleNamespace(encoder=encoder, query_only=settings.pop("query_only", False))
    flow: Any = SimpleNamespace(pair=pair, settings=Settings(batch_size=settings.pop("batch_size")))
    search = Search(queries=sides["query"], documents=sides["document"], similarity=similarity, excluded=excluded)
    return search.problem(flow, tuple(vectors.values()), **settings)


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
    problem = problem_of(QUERY, DOCUMENTS, similarity, query_only=query_only)
    assert problem.gaps(problem.outputs())[0, :2] == pytest.approx(gaps)
    assert problem.n_rows == (1 if query_only else 4)


def test_a_document_that_does_not_count_is_no_contender() -> None:
    """The document that would be the first of the pool's second query is left out."""
    queries, excluded = [[0.0, 1.0], *QUERY], np.array([-1, 0])
    problem = problem_of(queries, DOCUMENTS, Similarity.COSINE, chosen=np.array([1]), excluded=excluded)
    assert (problem.valid.sum(), problem.gaps(problem.outputs())[0, 0]) == (1, pytest.approx(0.6))
    assert problem.n_rows == 3


@pytest.mark.parametrize("similarity", list(Similarity))
def test_gaps_are_differences_of_the_scores_that_a_run_computes(similarity: Similarity) -> None:
    rng, chosen = np.random.default_rng(0), np.array([0, 2, 3, 8])
    queries, documents = (rng.normal(size=(n, 5)).astype(np.float32) for n in (9, 30))
    problem = problem_of(queries, documents, similarity, chosen=chosen, n_contenders=3)
    part = queries[chosen]
    state = score_embeddings(part, part, documents, documents, similarity=similarity, k=4)
    scores = state.reference_top()[1]
    np.testing.assert_allclose(problem.gaps(problem.outputs()), scores[:, :1] - scores[:, 1:], atol=1e-5)


def test_the_draw_is_seeded_ascending_and_a_quarter_at_most() -> None:
    drawn = draw_queries(1000, wanted=128, seed=3)
    assert (drawn.tolist(), len(drawn)) == (sorted(set(drawn.tolist())), 128)
    assert drawn.tolist() != draw_queries(1000, wanted=128, seed=4).tolist()
    assert [len(draw_queries(n, wanted=128)) for n in (4, 7, 8, 511, 512, 513)] == [1, 1, 2, 127, 128, 128]
    with pytest.raises(DataError, match=r"4 queries.* got 3"):
        draw_queries(3, wanted=1)
    assert [contenders_for(n) for n in (1, 32, 42, 43, 64, 127, 128, 500)] == [4, 4, 4, 3, 2, 2, 1, 1]


def test_queries_that_are_held_out_are_never_drawn_and_one_text_is_on_one_side() -> None:
    texts = [f"text {number % 40}" for number in range(100)]
    held = hold_out(texts, share=0.75, seed=0)
    rest = sorted(set(range(100)) - set(held.tolist()))
    assert not {texts[row] for row in held.tolist()} & {texts[row] for row in rest}
    assert len({texts[row] for row in rest}) == 10
    assert held.tolist() == hold_out(texts, share=0.75, seed=0).tolist() != hold_out(texts, share=0.75, seed=1).tolist()
    drawn = [draw_queries(100, wanted=12, seed=seed, held_out=held).tolist() for seed in (0, 1)]
    assert all(len(set(rows)) == 12 and set(rows) <= set(rest) for rows in drawn)
    assert drawn[0] != drawn[1]
    assert draw_queries(100, wanted=500, held_out=held).tolist() == rest  # no more are there
    with pytest.raises(DataError, match="got 3"):
        hold_out(["same"] * 3, share=0.5, seed=0)


def test_gaps_between_classes_by_hand() -> None:
    outputs = np.array([[1, 5, 3], [7, 0, 2]], dtype=np.float32)
    encoder, inputs = Rower(lambda _, rows, size: outputs[rows]), rows_of("train", 2)
    head = Head(classes=("a", "b", "c"), record={})
    flow: Any = SimpleNamespace(
        pair=SimpleNamespace(encoder=encoder), settings=Settings(batch_size=1), run=lambda *_: outputs
    )
    problem = Classes(inputs=inputs, train=inputs, head=head).problem(flow, (), np.arange(2), n_contenders=4)
    assert problem.valid.shape == (2, 2)  # as many as there are other classes
    assert problem.gaps(problem.outputs()).tolist() == [[2, 4], [5, 7]]
    moved = outputs + np.array([[0, 0, 3], [0, 6, 0]], dtype=np.float32)
    # the classes stay those of the reference: 3 is ahead of 5 by 1 now, 0 ahead of 6 by 1
    assert problem.gaps(moved).tolist() == [[-1, 4], [5, 1]]
