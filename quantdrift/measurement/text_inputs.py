"""Texts as one side of a retrieval task, embedded by a sentence-transformers model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quantdrift.measurement.embeddings import digest_of
from quantdrift.measurement.inputs import Inputs
from quantdrift.models.reading import reading_digest
from quantdrift.models.sentence_encoder import Role, SentenceEncoder

__all__ = ["text_inputs"]


def text_inputs(
    encoder: SentenceEncoder,
    texts: Sequence[str],
    *,
    role: Role = "document",
    ids: Sequence[str] | None = None,
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
        encode=lambda rows, batch_size: encoder.encode(
            [kept[row] for row in rows.tolist()], role, batch_size
        ),
        key={
            "texts": digest_of(kept),
            "encoder": encoder.describe(role),
            "reading": reading_digest([encoder.model], [encoder.module]),
        },
        lengths=np.array([len(text) for text in kept], dtype=np.int64),
    )
