"""Laws of names of servers, of requests cut from inputs, and of calls side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantdrift.engine.encoders.server import Limit, _fingerprint, batches, in_halves, side_by_side
from quantdrift.engine.encoders.server_client import OneInputError, TooMuchError
from quantdrift.spec import read_endpoint

WORDS = st.text(st.characters(categories=("L", "N"), include_characters="-_."), min_size=1)
PATHS = st.lists(st.text("abcv1-", min_size=1).filter(lambda part: part != "embeddings"), max_size=3).map("/".join)
URLS = st.builds(
    lambda scheme, host, port, path, end: f"{scheme}://{host}{port}/{path}{end}",
    st.sampled_from(["http", "https", "HTTP"]),
    st.from_regex(r"[a-zA-Z][a-zA-Z0-9]{0,9}(\.[a-z]{2,3})?", fullmatch=True),
    st.one_of(st.just(""), st.integers(1, 65535).map(lambda port: f":{port}")),
    PATHS,
    st.sampled_from(["", "/", "/embeddings", "/embeddings/"]),
)
NAMES = st.builds(lambda url, model: f"openai:{url}#{model}", URLS, WORDS)


@given(NAMES)
def test_the_canonical_form_means_the_same_and_is_its_own(name: str) -> None:
    found = read_endpoint(name)
    assert read_endpoint(str(found)) == found
    assert str(read_endpoint(str(found))) == str(found)
    assert found.embeddings.endswith("/embeddings")
    assert not found.embeddings.endswith("/embeddings/embeddings")


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(1, 10), st.integers(1, 100))
def test_requests_hold_every_input_once_and_within_the_limits(lengths: list[int], count: int, characters: int) -> None:
    found = batches(lengths, count=count, characters=characters)
    assert [at for part in found for at in part] == list(range(len(lengths)))
    for part, following in zip(found, [*found[1:], None], strict=True):
        total = sum(lengths[at] for at in part)
        assert 1 <= len(part) <= count
        assert total <= characters or len(part) == 1
        if following is not None:  # none is cut short without need
            fits = total + lengths[following.start] <= characters
            assert len(part) == count or not fits


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 39))
def test_halving_gives_every_embedding_or_names_the_input_that_is_refused(n: int, most: int, bad: int) -> None:
    texts = [str(number) for number in range(n)]
    limit = Limit()
    sizes: list[int] = []

    def embed(sent: Sequence[str]) -> NDArray[np.float32]:
        sizes.append(len(sent))
        if len(sent) > most or str(bad) in sent:
            raise TooMuchError("url: no", "no")
        return np.array([[float(text)] for text in sent], dtype=np.float32)

    if bad < n:
        with pytest.raises(OneInputError, match="the server no") as caught:
            in_halves(embed, texts, range(n), limit)
        assert caught.value.number == bad
        return
    found = in_halves(embed, texts, range(n), limit)
    assert found[:, 0].tolist() == list(range(n))
    assert (limit.most <= most) == (n > most)
    assert sizes[0] == n
    sizes.clear()
    again = in_halves(embed, texts, range(n), limit)
    assert again.tolist() == found.tolist()
    assert max(sizes) <= most  # nothing is refused twice


@given(st.lists(st.integers(), max_size=30), st.integers(1, 5))
def test_side_by_side_is_one_after_the_other(values: list[int], width: int) -> None:
    calls: list[Any] = [lambda value=value: value for value in values]
    assert side_by_side(calls, width) == values


@given(st.integers(0, 29), st.integers(1, 5))
def test_the_error_of_a_call_is_raised(bad: int, width: int) -> None:
    def call(number: int) -> int:
        if number == bad:
            raise ValueError(number)
        return number

    with pytest.raises(ValueError, match=str(bad)):
        side_by_side([lambda number=number: call(number) for number in range(30)], width)


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
