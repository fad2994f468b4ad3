"""A server's answer to a request for embeddings, as a matrix; what is wrong with it, in a line."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import ServerError

__all__ = ["OneInputError", "complaint_of", "read_embeddings", "read_json"]

_SHOWN = 200
"""Characters of what a server says that are passed on."""
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
        ServerError: it is something else; shows its beginning.
    """
    try:
        return json.loads(content)
    except ValueError as error:
        kind = content_type.partition(";")[0].strip() or "no content type"
        raise ServerError(
            f"expected JSON; got {kind}: {_beginning(_text(content)) or 'nothing'}"
        ) from error


def complaint_of(content: bytes) -> str:
    """What a server says is wrong, on one line: `error.message`, `error`, `detail`, or the text.

    Args:
        content: the body of its answer.
    """
    try:
        said = json.loads(content)
    except ValueError:
        return _beginning(_text(content))
    for name in ("error", "message", "detail"):
        while isinstance(said, Mapping) and said.get(name):
            said = said[name]
    return _beginning(said if isinstance(said, str) else json.dumps(said))


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
        shown = _beginning(json.dumps(answer))
        raise ServerError(f'expected {{"data": [{{"embedding": ...}}, ...]}}; got {shown}')
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
        raise ServerError(
            f"expected each index from 0 to {len(entries) - 1} once; got {_beginning(str(said))}"
        )
    return [int(index) for index in said if index is not None]


def _vector(embedding: Any, place: int) -> NDArray[np.float32]:
    try:
        if isinstance(embedding, str):
            vector = np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4")
        else:
            with np.errstate(over="ignore"):  # what is too large is infinite, and refused below
                vector = np.asarray(embedding, dtype=np.float64).astype(np.float32)
    except (TypeError, ValueError) as error:  # base64's own error is a ValueError
        shown = _beginning(json.dumps(embedding))
        raise OneInputError(place, f"its embedding is no list of numbers: {shown}") from error
    if embedding is None or vector.size == 0:
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
    text = content.decode(errors="replace")
    title = _TITLE.search(text)
    return title[1] if title else text


def _beginning(text: str) -> str:
    line = " ".join(text.split())
    line = "".join(c for c in line if c.isprintable())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
