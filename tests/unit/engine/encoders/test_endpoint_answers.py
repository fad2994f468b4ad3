"""What a server answers, as a matrix or as an error of one line, by hand."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from quantdrift.engine.encoders.server_client import OneInputError, complaint_of, read_embeddings, read_json, told
from quantdrift.errors import ServerError


def answer(*embeddings: Any, index: list[Any] | None = None) -> dict[str, Any]:
    places: list[Any] = list(range(len(embeddings))) if index is None else index
    data = [{"embedding": e, "index": i} for e, i in zip(embeddings, places, strict=True)]
    return {"object": "list", "data": data}


def test_numbers_and_base64_are_one() -> None:
    packed = base64.b64encode(np.array([1, -0.5], dtype="<f4").tobytes()).decode()
    found = read_embeddings(answer([0.25, 3], packed), 2, None)
    assert found.dtype == np.float32
    assert found.tolist() == [[0.25, 3], [1, -0.5]]


def test_the_order_is_that_of_the_inputs() -> None:
    found = read_embeddings(answer([2], [0], [1], index=[2, 0, 1]), 3, 1)
    assert found.tolist() == [[0], [1], [2]]
    plain = {"data": [{"embedding": [5.0]}, {"embedding": [6.0]}]}
    assert read_embeddings(plain, 2, 1).tolist() == [[5], [6]]


@pytest.mark.parametrize("index", [[0, 0], [1, 2], [0, None], ["0", "1"], [0.0, 1.0], [False, 1]])
def test_an_index_that_is_none_is_refused(index: list[Any]) -> None:
    with pytest.raises(ServerError, match="expected each index from 0 to 1 once"):
        read_embeddings(answer([1], [2], index=index), 2, None)


@pytest.mark.parametrize(
    ("embedding", "message"),
    [
        (None, "no embedding of it"),
        ([], "no embedding of it"),
        ("", "no embedding of it"),
        ([1, None], "null, NaN or infinity"),
        ([1, float("nan")], "null, NaN or infinity"),
        ([1, 1e300], "null, NaN or infinity"),
        ([[1, 2], [3, 4]], "gave 2 vectors for it; expected one. .*pooling"),
        (["a", "b"], "no list of numbers"),
        ({"x": 1}, "no list of numbers"),
        ("AAA", "no list of numbers"),
        ("\ud800", "no list of numbers"),
        (5, "no list of numbers"),
        (True, "no list of numbers"),
        ([10**4000], "no list of numbers"),
        ([[1], [2, 3]], "no list of numbers"),
    ],
)
def test_the_input_without_an_embedding_is_named(embedding: Any, message: str) -> None:
    with pytest.raises(OneInputError, match=message) as caught:
        read_embeddings(answer([1, 2], embedding), 2, 2)
    assert caught.value.number == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (answer([1, 2]), "expected 2 embeddings for 2 inputs; got 1"),
        (answer([1, 2], [1, 2], [1, 2]), "got 3"),
        (answer([1, 2], [1, 2, 3]), r"2 numbers and 3 \(input 1\)"),
        ([[1, 2], [3, 4]], 'expected {"data"'),
        ({"embeddings": [[1]]}, 'expected {"data"'),
        ({"data": [[1], [2]]}, 'expected {"data"'),
        ({"data": None}, 'expected {"data"'),
        ("x" * 5000, 'expected {"data"'),
    ],
)
def test_what_is_no_answer_is_refused(content: Any, message: str) -> None:
    with pytest.raises(ServerError, match=message):
        read_embeddings(content, 2, None)


def test_a_length_that_changes_between_answers_is_another_model() -> None:
    with pytest.raises(ServerError, match="one model to answer all the time"):
        read_embeddings(answer([1, 2, 3]), 1, 2)


def test_a_page_in_place_of_json_shows_its_title() -> None:
    page = b"<html><head><TITLE>502\n Bad Gateway</TITLE></head><body>nginx</body></html>"
    with pytest.raises(ServerError, match=r"^expected JSON; got text/html: 502\n Bad Gateway$"):
        read_json(page, "text/html; charset=utf-8")
    with pytest.raises(ServerError, match="got no content type: nothing"):
        read_json(b"", "")


@pytest.mark.parametrize("content", [b"[" * 100_000, b"1" * 5000, b"\xff{}", b"<title>" * 100_000])
def test_what_json_cannot_hold_is_no_answer(content: bytes) -> None:
    with pytest.raises(ServerError, match=r"^expected JSON; got application/json: "):
        read_json(content, "application/json")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"error": {"message": "no such\\n model", "code": 7}}', "no such model"),
        (b'{"error": "too long"}', "too long"),
        (b'{"object": "error", "message": "no"}', "no"),
        (b'{"detail": [{"msg": "field required"}]}', '[{"msg": "field required"}]'),
        (b"\x1b[31mplain\x00 text", "\ufffd[31mplain\ufffd text"),
        (b'{"message": "one\\n::error::two \\u202e \\ud800"}', "one ::error::two \ufffd \ufffd"),
        (b"<title>Not here</title>", "Not here"),
        (b"", ""),
        (b"y" * 1000, "y" * 100 + "\u2026" + "y" * 99),
        (b"[" * 100_000, "[" * 100 + "\u2026" + "[" * 99),
    ],
)
def test_complaints_are_one_line(content: bytes, said: str) -> None:
    assert told(complaint_of(content), None) == said
