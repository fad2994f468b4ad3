"""The noise floor by hand: two runs of one model that differ in their last digits."""

from typing import Any

import numpy as np
import pytest

from quantdrift.measuring.flow import compare_rankings
from quantdrift.scoring.similarity import Similarity


def floats(values: Any) -> Any:
    return np.array(values, dtype=np.float32)


ONE = floats([[1], [1]])  # with this query, the dot product is the document itself


def test_by_hand() -> None:
    first, second = floats([[1.0], [2.0], [3.0]]), floats([[1.0], [3.5], [3.0]])
    contenders = np.array([[2, 1], [1, 0]])  # the second query's best is document 1 in both runs
    noise = compare_rankings((ONE, first), (ONE, second), contenders, Similarity.DOT)
    assert noise.flips.tolist() == [True, False]
    assert noise.epsilon.tolist() == [1.5, 1.5]
    assert noise.epsilon.dtype == np.float32


def test_ties_go_to_the_lower_position_in_both_runs() -> None:
    """Rows of `contenders` stand in order of rank, not of position."""
    tied, parted = floats([[1.0], [1.0]]), floats([[1.0], [1.0 + 2**-20]])
    contenders = np.array([[1, 0]])
    same = compare_rankings((ONE[:1], tied), (ONE[:1], tied), contenders, Similarity.DOT)
    assert same.flips.tolist() == [False]
    noise = compare_rankings((ONE[:1], tied), (ONE[:1], parted), contenders, Similarity.DOT)
    assert noise.flips.tolist() == [True]  # document 0 was first of the tied ones


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
