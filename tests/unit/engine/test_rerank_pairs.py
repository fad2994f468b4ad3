"""Pairs of shortlists, their inputs and their noise, on examples that a pencil can follow."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quantdrift.engine.refusals import refuse_for_reranking
from quantdrift.engine.rerank import OPENING, asked_for, opening_of, pair_inputs, pairs_of
from quantdrift.engine.scoring.streamed import score_ragged
from quantdrift.engine.search import noise_of_scores
from quantdrift.errors import UnsupportedError
from quantdrift.spec import parse_scheme

DOCUMENTS = ("a", "b", "c", "d")
LISTS = {"q1": ("d", "a"), "q0": ("b",), "q2": ("c", "b", "a")}


def reader(text: str = "") -> Any:
    """Scores a pair by the lengths of its texts."""

    def encode(pairs: Sequence[tuple[str, str]], role: str, batch_size: int) -> NDArray[np.float32]:
        del role
        assert batch_size == 4
        return np.array([[100 * len(q) + len(d)] for q, d in pairs], dtype=np.float32)

    return SimpleNamespace(encode=encode, key=lambda _: {"cross_encoder": text})


def test_pairs_stand_beside_those_of_their_query_by_position() -> None:
    pairs = pairs_of(LISTS, DOCUMENTS)
    assert pairs.query_ids == ("q1", "q0", "q2")
    assert pairs.query_rows.tolist() == [0, 0, 1, 2, 2, 2]
    assert pairs.document_rows.tolist() == [0, 3, 1, 0, 1, 2]
    assert pairs.starts.tolist() == [0, 2, 3, 6]
    assert pairs.ids()[1] == "q1 with d"
    assert len(pairs) == 6


def test_pairs_are_found_by_position() -> None:
    pairs = pairs_of(LISTS, DOCUMENTS)
    wanted = np.array([[3, 0, -1], [1, -1, -1], [2, 0, 1]])
    assert pairs.numbers(wanted).tolist() == [[1, 0, -1], [2, -1, -1], [5, 3, 4]]


def test_a_pair_is_scored_as_its_query_and_document() -> None:
    pairs = pairs_of(LISTS, DOCUMENTS)
    queries, documents = ["x", "xx", "xxx"], ["1", "22", "333", "4444"]
    inputs = pair_inputs(reader(), pairs, queries, documents)
    found = inputs.encode(np.array([5, 1, 2]), 4)
    assert found.tolist() == [[303.0], [104.0], [202.0]]
    assert inputs.lengths is not None
    assert inputs.lengths.tolist() == [2, 5, 4, 4, 5, 6]
    assert inputs.order().tolist() == [5, 1, 4, 2, 3, 0]


def test_whatever_decides_a_score_is_in_the_key() -> None:
    pairs = pairs_of(LISTS, DOCUMENTS)
    queries, documents = ["x", "y", "z"], ["1", "2", "3", "4"]

    def key(lists: Any = LISTS, asked: Any = queries, read: Any = documents, of: str = "") -> Any:
        return pair_inputs(reader(of), pairs_of(lists, DOCUMENTS), asked, read).key

    assert key() == pair_inputs(reader(), pairs, queries, documents).key
    others = [
        key({**LISTS, "q0": ("c",)}),
        key(asked=["x", "y", "w"]),
        key(read=["1", "2", "3", "5"]),
        key(of="max_length 64"),
    ]
    assert all(other != key() for other in others)


def test_a_document_is_asked_for_by_its_own_first_words() -> None:
    words = [f"w{number}" for number in range(30)]
    assert opening_of("  ".join(words)) == " ".join(words[:OPENING])
    assert opening_of(" \n ") == "."
    inputs = asked_for(reader(), [" ".join(words), "short"])
    assert inputs.role == "document"
    long = 100 * len(" ".join(words[:OPENING])) + len(" ".join(words))
    assert inputs.encode(np.array([1, 0]), 4).tolist() == [[505.0], [float(long)]]


def test_of_ragged_scores_every_query_has_its_own_extremes() -> None:
    rows = [
        (np.array([0, 3]), np.array([1.0, 2.0], "f4"), np.array([3.0, 2.5], "f4")),
        (np.array([1]), np.array([5.0], "f4"), np.array([4.0], "f4")),
    ]
    state = score_ragged(rows, k=5)
    assert state.reference_top()[0][0, :2].tolist() == [3, 0]
    assert state.candidate_top()[0][0, :2].tolist() == [0, 3]
    assert state.delta_min.tolist() == [0.5, -1.0]
    assert state.delta_max.tolist() == [2.0, -1.0]
    assert state.n_items.tolist() == [2, 1]


def test_noise_is_whether_the_best_contender_is_another_one() -> None:
    contenders = np.array([[7, 2, -1], [4, 9, 1], [3, 8, -1]])
    once = np.array([[5.0, 4.0, 99.0], [1.0, 1.0, 1.0], [2.0, 1.0, 0.0]])
    again = np.array([[4.0, 4.5, -99.0], [1.0, 1.0, 1.0], [2.25, 1.0, 7.0]])
    found = noise_of_scores(once, again, contenders)
    assert found.flips.tolist() == [True, False, False]
    assert found.epsilon.tolist() == [1.0, 0.0, 0.25]


def test_of_equal_scores_the_lower_position_is_the_best() -> None:
    contenders = np.array([[7, 2]])
    found = noise_of_scores(np.array([[1.0, 1.0]]), np.array([[1.0, 1.5]]), contenders)
    assert found.flips.tolist() == [False]


@pytest.mark.parametrize(
    ("scheme", "told"), [("W4+query", "Leave .query out"), ("W3.5+gap", "one width for all layers")]
)
def test_schemes_without_meaning_for_a_reranker_are_refused(scheme: str, told: str) -> None:
    with pytest.raises(UnsupportedError, match=told):
        refuse_for_reranking(parse_scheme(scheme))
    refuse_for_reranking(parse_scheme("W4-gptq"))
    refuse_for_reranking(parse_scheme("W3.5+gap+allocation=some.json"))
