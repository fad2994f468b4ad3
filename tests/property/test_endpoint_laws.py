"""Laws of what comes from servers and databases: requests that are halved, fingerprints, answers used as they are."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch", reason="the extra 'models' is not installed")

from hypothesis import given
from hypothesis import strategies as st

from quantdrift.base.errors import UnsupportedError
from quantdrift.models.server import _fingerprint, in_halves, side_by_side
from quantdrift.models.server_client import OneInputError, TooMuchError
from quantdrift_databases.database import checked


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 60))
def test_halving_gives_every_embedding_or_names_the_input_that_is_refused(n: int, most: int, bad: int) -> None:
    texts = [str(number) for number in range(n)]

    def embed(sent: Sequence[str]) -> NDArray[np.float32]:
        if len(sent) > most or str(bad) in sent:
            raise TooMuchError("url", "no")
        return np.array([[float(text)] for text in sent], dtype=np.float32)

    if bad < n:
        with pytest.raises(OneInputError, match="the server no") as caught:
            in_halves(embed, texts, range(n))
        assert caught.value.number == bad
    else:
        assert in_halves(embed, texts, range(n))[:, 0].tolist() == list(range(n))


@pytest.mark.parametrize("width", [1, 3])
def test_side_by_side_is_one_after_the_other_and_an_error_is_raised(width: int) -> None:
    calls: list[Any] = [lambda value=value: 1 / value for value in range(-9, 10)]
    assert side_by_side(calls[:9], width) == [1 / value for value in range(-9, 0)]
    with pytest.raises(ZeroDivisionError):
        side_by_side(calls, width)


@given(st.integers(0, 2**32 - 1))
def test_a_fingerprint_is_of_directions_and_one_that_is_taken_is_not_given_twice(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(8, 64)).astype(np.float32)
    again = vectors + 1e-3 * rng.normal(size=vectors.shape).astype(np.float32)
    assert _fingerprint(vectors, set()) == _fingerprint(2 * vectors, set())
    other = vectors + 0.3 * rng.normal(size=vectors.shape).astype(np.float32)
    assert _fingerprint(vectors, set()) != _fingerprint(other, set())
    taken = {_fingerprint(vectors, set())}
    assert _fingerprint(vectors, taken) not in taken
    assert _fingerprint(vectors, taken) != _fingerprint(again, taken)


N_DOCS, K = 8, 6
IDS = st.lists(st.integers(0, N_DOCS - 1), unique=True, min_size=2, max_size=K - 1)
SCORES = st.lists(st.floats(-2, 2, width=32), min_size=K, max_size=K)
SPOILED: dict[str, Any] = {
    "a document twice": lambda ids, scores: ([*ids[:-1], ids[0]], scores),
    "an id beyond the last": lambda ids, scores: ([*ids[:-1], N_DOCS], scores),
    "an id before the first": lambda ids, scores: ([*ids[:-1], -1], scores),
    "no number": lambda ids, scores: ([*ids[:-1], str(ids[-1])], scores),
    "a truth": lambda ids, scores: ([*(number for number in ids if number > 1), True], scores),
    "a fraction": lambda ids, scores: ([*ids[:-1], float(ids[-1])], scores),
    "nothing": lambda ids, scores: ([*ids[:-1], None], scores),
    "a score too few": lambda ids, scores: (ids, scores[: len(ids) - 1]),
    "no finite score": lambda ids, scores: (ids, [*scores[: len(ids) - 1], math.inf]),
    "a score beyond float32": lambda ids, scores: (ids, [*scores[: len(ids) - 1], 1e300]),
    "more than were asked for": lambda ids, scores: ([*range(K + 1)], [*scores, 0.5]),
}


@given(ids=IDS, scores=SCORES)
def test_an_answer_is_kept_as_it_came(ids: list[int], scores: list[float]) -> None:
    for given_ids in (ids, np.array(ids, dtype=np.int64)):  # numbers of numpy are numbers
        positions, values = checked(given_ids, scores[: len(ids)], N_DOCS, K, what="+index=toy")
        assert positions.tolist() == [*ids, *[-1] * (K - len(ids))]
        assert values[: len(ids)].tolist() == scores[: len(ids)]
        assert np.isnan(values[len(ids) :]).all()


@pytest.mark.parametrize("fault", SPOILED)
@given(ids=IDS, scores=SCORES)
def test_an_answer_that_cannot_be_one_is_refused(fault: str, ids: list[int], scores: list[float]) -> None:
    spoiled, values = SPOILED[fault](ids, scores)
    with pytest.raises(UnsupportedError, match="cannot be used") as error:
        checked(spoiled, values[: len(spoiled)], N_DOCS, K, what="+index=toy")
    assert "\n" not in str(error.value)
