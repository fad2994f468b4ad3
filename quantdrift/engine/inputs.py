"""One side of a retrieval task, as something that can be embedded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.engine.encoders.sentence import SentenceEncoder
from quantdrift.engine.encoders.server import EndpointEncoder, Role
from quantdrift.engine.encoders.server_client import OneInputError
from quantdrift.engine.store import digest_of
from quantdrift.errors import ServerError

# --- One side of a retrieval task, as something that can be embedded ------------------------------

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One side of a retrieval task: the queries, or the documents.

    Attributes:
        role: "query" or "document".
        ids: names, in order of position.
        encode: embeds the inputs of the given numbers with a batch size, float32 [len, dim], by the
            model in whatever arm it is in.
        key: JSON values that decide the embeddings beside the weights (texts, prompt, length
            limit); None if they cannot be told, then nothing of this side is kept between runs.
        lengths: int64 [n], rough length of each input, to encode similar ones together; None
            keeps the given order.
        elsewhere: whether a server embeds them: neither batches nor what is installed here decide
            anything then, and less is lost when a run is killed.
        candidate: what the candidate embeds in their place, where it is a model of its own that is
            asked in another way; None if the same inputs go to it.
    """

    role: str
    ids: Sequence[str]
    encode: Callable[[NDArray[np.int64], int], Vectors]
    key: Mapping[str, Any] | None
    lengths: NDArray[np.int64] | None = None
    elsewhere: bool = False
    candidate: Inputs | None = None

    @property
    def of_candidate(self) -> Inputs:
        """What the candidate embeds."""
        return self if self.candidate is None else self.candidate

    def order(self) -> NDArray[np.int64]:
        """Longest first: similar lengths share a batch, and too long a batch fails at once."""
        if self.lengths is None:
            return np.arange(len(self.ids), dtype=np.int64)
        return np.argsort(-self.lengths, kind="stable").astype(np.int64)

    def part(self, rows: NDArray[np.int64]) -> Inputs:
        """Some of the inputs as a side of their own, in the order given.

        Args:
            rows: int64, positions.
        """
        return Inputs(
            role=self.role,
            ids=[self.ids[row] for row in rows.tolist()],
            encode=lambda chosen, batch_size: self.encode(rows[chosen], batch_size),
            key=None if self.key is None else {**self.key, "rows": digest_of(rows)},
            lengths=None if self.lengths is None else self.lengths[rows],
            elsewhere=self.elsewhere,
            candidate=None if self.candidate is None else self.candidate.part(rows),
        )


# --- Texts as one side of a retrieval task, embedded by a sentence-transformers model -------------


def text_inputs(
    encoder: SentenceEncoder, texts: Sequence[str], *, role: Role = "document", ids: Sequence[str] | None = None
) -> Inputs:
    """Texts as one side of a task.

    Args:
        encoder: what embeds them.
        texts: of every input.
        role: what they are.
        ids: their names; numbers if not given.
    """
    kept = tuple(texts)
    return Inputs(
        role=role,
        ids=tuple(str(number) for number in range(len(kept))) if ids is None else ids,
        encode=lambda rows, batch_size: encoder.encode([kept[row] for row in rows.tolist()], role, batch_size),
        key={"texts": digest_of(kept), **encoder.key(role)},
        lengths=np.array([len(text) for text in kept], dtype=np.int64),
    )


# --- Texts as one side of a retrieval task, embedded by a server ----------------------------------

_SHOWN = 60


def server_inputs(encoder: EndpointEncoder, texts: Sequence[str], *, role: Role, ids: Sequence[str]) -> Inputs:
    """Texts as one side of a task.

    Args:
        encoder: what embeds them.
        texts: of every input.
        role: what they are.
        ids: their names.
    """
    kept = tuple(texts)

    def encode(rows: NDArray[np.int64], batch_size: int) -> Vectors:
        chosen = rows.tolist()
        try:
            return encoder.encode([kept[row] for row in chosen], role, batch_size)
        except OneInputError as error:
            row = chosen[error.number]
            raise ServerError(
                f"{encoder.endpoint.embeddings}: {role} {ids[row]!r} ({_shown(kept[row])}): {error.reason}"
            ) from error

    return Inputs(
        role=role,
        ids=ids,
        encode=encode,
        key={"texts": digest_of(kept), **encoder.key(role)},
        lengths=np.array([len(text) for text in kept], dtype=np.int64),
        elsewhere=True,
    )


def _shown(text: str) -> str:
    """How long a text is and how it begins."""
    if not text.strip():
        return "an empty text"
    line = " ".join(text.split())
    start = line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
    return f"{len(text):,} characters: {start!r}"
