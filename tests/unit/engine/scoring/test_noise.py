"""The noise floor by hand: two runs of one model that differ in their last digits."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from quantdrift.engine.measure import compare_rankings, other_batch_size
from quantdrift.engine.scoring.streamed import Similarity


def floats(values: Any) -> Any:
    return np.array(values, dtype=np.float32)


ONE = floats([[1], [1]])  # with this query, the dot product is the document itself


def test_the_other_batch_size_pads_differently() -> None:
    assert [other_batch_size(size) for size in (1, 2, 3, 6, 32, 128)] == [3, 4, 5, 8, 17, 65]
    for size in range(1, 200):
        assert other_batch_size(size) not in {1, size}


def test_by_hand() -> None:
    first, second = floats([[1.0], [2.0], [3.0]]), floats([[1.0], [3.5], [3.0]])
    contenders = np.array([[2, 1], [1, 0]])  # the second query's best is document 1 in both runs
    noise = compare_rankings((ONE, first), (ONE, second), contenders, Similarity.DOT)
    assert noise.flips.tolist() == [True, False]
    assert noise.epsilon.tolist() == [1.5, 1.5]
    assert noise.epsilon.dtype == np.float32


def test_the_same_run_twice() -> None:
    rng = np.random.default_rng(0)
    queries, documents = floats(rng.standard_normal((600, 8))), floats(rng.standard_normal((9, 8)))
    contenders = np.array([rng.permutation(9)[:4] for _ in range(600)])
    for similarity in Similarity:
        run = (queries, documents)
        noise = compare_rankings(run, run, contenders, similarity)
        assert not noise.flips.any()
        assert not noise.epsilon.any()


def test_each_query_is_compared_with_its_own_documents() -> None:
    """More queries than fit in one block; every 100th has a document that moved past its best."""
    n = 1100
    queries = floats(np.arange(1, n + 1))[:, None]
    first = floats(np.stack([np.full(n, 2.0), np.full(n, 1.0)]).T.reshape(-1, 1))
    second = first.copy()
    moved = np.arange(0, n, 100)
    second[2 * moved + 1] = 3
    contenders = np.arange(2 * n).reshape(n, 2)
    noise = compare_rankings((queries, first), (queries, second), contenders, Similarity.DOT)
    assert np.flatnonzero(noise.flips).tolist() == moved.tolist()
    wanted = np.zeros(n)
    wanted[moved] = 2 * (moved + 1)
    assert noise.epsilon.tolist() == wanted.tolist()


def test_ties_go_to_the_lower_position_in_both_runs() -> None:
    """Rows of `contenders` stand in order of rank, not of position."""
    tied, parted = floats([[1.0], [1.0]]), floats([[1.0], [1.0 + 2**-20]])
    contenders = np.array([[1, 0]])
    same = compare_rankings((ONE[:1], tied), (ONE[:1], tied), contenders, Similarity.DOT)
    assert same.flips.tolist() == [False]
    noise = compare_rankings((ONE[:1], tied), (ONE[:1], parted), contenders, Similarity.DOT)
    assert noise.flips.tolist() == [True]  # document 0 was first of the tied ones


def test_fewer_contenders_than_places() -> None:
    first, second = floats([[1.0], [-9.0]]), floats([[1.5], [-9.0]])
    contenders = np.array([[0, -1, -1], [-1, -1, -1]])  # the second query has no document at all
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        noise = compare_rankings((ONE, first), (ONE, second), contenders, Similarity.DOT)
    assert noise.flips.tolist() == [False, False]
    assert noise.epsilon.tolist() == [0.5, 0]


@pytest.mark.parametrize(
    ("similarity", "epsilon"),
    [
        (Similarity.DOT, 3),  # (1, 0).(3, 4) = 3 and (1, 0).(6, 8) = 6
        (Similarity.COSINE, 0),  # the same direction
        (Similarity.EUCLIDEAN, np.hypot(5, 8) - np.hypot(2, 4)),
    ],
)
def test_similarities(similarity: Similarity, epsilon: float) -> None:
    query = floats([[1, 0]])
    noise = compare_rankings((query, floats([[3, 4]])), (query, floats([[6, 8]])), np.array([[0]]), similarity)
    assert noise.epsilon[0] == pytest.approx(epsilon, abs=1e-6)


def test_a_zero_vector_has_cosine_zero() -> None:
    zero, query = np.zeros((1, 2), dtype=np.float32), floats([[1, 0]])
    noise = compare_rankings((query, zero), (query, query), np.array([[0]]), Similarity.COSINE)
    assert noise.epsilon.tolist() == [1]
