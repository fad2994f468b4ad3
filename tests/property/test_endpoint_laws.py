"""Laws of names of servers, of requests that are halved, and of calls side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantdrift.engine.encoders.server import in_halves, side_by_side
from quantdrift.engine.encoders.server_client import OneInputError, TooMuchError
from quantdrift.spec.grammar import read_endpoint

WORDS = st.text("abcXY019-_.", min_size=1, max_size=8)
PATHS = st.lists(st.sampled_from(["v1", "api", "a-b"]), max_size=3).map("/".join)
URLS = st.builds(
    lambda scheme, host, port, path, end: f"{scheme}://{host}{port}/{path}{end}",
    st.sampled_from(["http", "https", "HTTP"]),
    st.sampled_from(["localhost", "GPU1", "api.Example.org"]),
    st.one_of(st.just(""), st.integers(1, 65535).map(lambda port: f":{port}")),
    PATHS,
    st.sampled_from(["", "/", "/embeddings", "/embeddings/"]),
)
NAMES = st.builds(lambda url, model: f"openai:{url}#{model}", URLS, WORDS)


@given(NAMES)
def test_the_canonical_form_means_the_same_and_is_its_own(name: str) -> None:
    endpoint = read_endpoint(name)
    assert read_endpoint(str(endpoint)) == endpoint
    assert str(read_endpoint(str(endpoint))) == str(endpoint)
    assert endpoint.embeddings.endswith("/embeddings")
    assert not endpoint.embeddings.endswith("/embeddings/embeddings")


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
