"""A server's answer to a request for embeddings, as a matrix, or what is wrong with it.

What an error here quotes of a server is as long as it came; `told` makes it fit to be shown.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import ServerError
from quantdrift.records import parse_json

__all__ = ["OneInputError", "complaint_of", "read_embeddings", "read_json"]

_PAGE = 4096
"""Bytes of what is no JSON that are looked at."""
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


class OneInputError(ServerError):
    """One input cannot be embedded; whoever knows its name says it.

    Attributes:
        number: position of the input among those that were sent.
        reason: what is wrong with it, or what the server says of it.
    """

    def __init__(self, number: int, reason: str) -> None:
        self.number = number
        self.reason = reason
        super().__init__(f"input {number}: {reason}")


def read_json(content: bytes, content_type: str) -> Any:
    """What a server answered, as JSON values.

    Args:
        content: the body.
        content_type: as the server calls it.

    Raises:
        ServerError: it is something else.
    """
    try:
        return parse_json(content)
    except ValueError as error:
        kind = content_type.partition(";")[0].strip() or "no content type"
        raise ServerError(f"expected JSON; got {kind}: {_text(content) or 'nothing'}") from error


def complaint_of(content: bytes) -> str:
    """What a server says is wrong: `error.message`, `error`, `detail`, or the text.

    Args:
        content: the body of its answer.
    """
    try:
        said = parse_json(content)
    except ValueError:
        return _text(content)
    for name in ("error", "message", "detail"):
        while isinstance(said, Mapping) and said.get(name):
            said = said[name]
    return said if isinstance(said, str) else json.dumps(said)


def read_embeddings(answer: Any, n: int, dimensions: int | None) -> NDArray[np.float32]:
    """The embeddings of an answer in the order of the inputs, whatever order they came in.

    Args:
        answer: JSON values; each embedding is a list of numbers, or little-endian float32 in
            base64.
        n: number of inputs that were sent.
        dimensions: of the model as far as it is known; None for the first answer.

    Returns:
        float32 [n, dim].

    Raises:
        OneInputError: an embedding is missing, empty, or not of finite numbers.
        ServerError: the answer is no list of n embeddings, or they are not all of one length.
    """
    entries = answer.get("data") if isinstance(answer, Mapping) else None
    if not isinstance(entries, list) or not all(isinstance(one, Mapping) for one in entries):
        got = json.dumps(answer)
        raise ServerError(f'expected {{"data": [{{"embedding": ...}}, ...]}}; got {got}')
    if len(entries) != n:
        raise ServerError(f"expected {n} embeddings for {n} inputs; got {len(entries)}")
    rows: list[NDArray[np.float32] | None] = [None] * n
    for place, entry in zip(_places(entries), entries, strict=True):
        rows[place] = _vector(entry.get("embedding"), place)
    vectors = [row for row in rows if row is not None]
    for place, row in enumerate(vectors):
        wanted = len(vectors[0]) if dimensions is None else dimensions
        if len(row) != wanted:
            raise ServerError(
                f"embeddings are of different lengths: {wanted} numbers and {len(row)} (input "
                f"{place}); expected one model to answer all the time"
            )
    return np.stack(vectors)


def _places(entries: Sequence[Mapping[str, Any]]) -> list[int]:
    """The input that each entry is of."""
    said = [entry.get("index") for entry in entries]
    if all(index is None for index in said):
        return list(range(len(entries)))
    if sorted(index for index in said if type(index) is int) != list(range(len(entries))):
        raise ServerError(f"expected each index from 0 to {len(entries) - 1} once; got {said}")
    return [int(index) for index in said if index is not None]


def _vector(embedding: Any, place: int) -> NDArray[np.float32]:
    if embedding is None:
        raise OneInputError(place, "the server gave no embedding of it")
    try:
        if isinstance(embedding, str):
            vector = np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4")
        else:
            with np.errstate(over="ignore"):  # what is too large is infinite, and refused below
                vector = np.asarray([*embedding], dtype=np.float64).astype(np.float32)
    except (TypeError, ValueError, OverflowError) as error:  # base64's own error is a ValueError
        got = json.dumps(embedding)
        raise OneInputError(place, f"its embedding is no list of numbers: {got}") from error
    if vector.size == 0:
        raise OneInputError(place, "the server gave no embedding of it")
    if vector.ndim != 1:
        raise OneInputError(
            place,
            f"the server gave {len(vector)} vectors for it; expected one. Start the server with "
            "pooling (llama-server --pooling mean, or what the model was trained with)",
        )
    if not np.isfinite(vector).all():
        raise OneInputError(place, "its embedding holds null, NaN or infinity")
    return np.asarray(vector, dtype=np.float32)


def _text(content: bytes) -> str:
    text = content[:_PAGE].decode(errors="replace").strip()
    title = _TITLE.search(text)
    return title[1] if title else text
