"""Texts as one side of a retrieval task, embedded by a server."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import ServerError
from quantdrift.measurement.embeddings import digest_of
from quantdrift.measurement.inputs import Inputs, Vectors
from quantdrift.models.endpoint.answers import OneInputError
from quantdrift.models.endpoint.encoder import EndpointEncoder, Role

__all__ = ["server_inputs"]

_SHOWN = 60


def server_inputs(
    encoder: EndpointEncoder, texts: Sequence[str], *, role: Role, ids: Sequence[str]
) -> Inputs:
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
                f"{encoder.endpoint.embeddings}: {role} {ids[row]!r} ({_shown(kept[row])}): "
                f"{error.reason}"
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
