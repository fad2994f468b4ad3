"""Laws of requests that are halved, of calls side by side, and of fingerprints of servers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantdrift.models.server import _fingerprint, in_halves, side_by_side
from quantdrift.models.server_client import OneInputError, TooMuchError


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
