"""The score of two embeddings."""

from enum import StrEnum
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from quantdrift.base.errors import ScoreError, UnknownNameError
from quantdrift.scoring.ragged import Ragged

_LEAST_NORM = 1e-18
"""Squares of shorter vectors lose digits in float32."""


class Similarity(StrEnum):
    """A score of two embeddings; larger is nearer."""

    COSINE = "cosine"
    DOT = "dot"
    EUCLIDEAN = "euclidean"  # the score is minus the distance

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the similarity of a name; UnknownNameError if there is none."""
        if name not in set(cls):
            raise UnknownNameError("similarity", name, cls, hint=f"(expected {', '.join(cls)})")
        return cls(name)


def prepare(embeddings: Any, similarity: Similarity, device: torch.device) -> Tensor:
    """Return embeddings as a float32 tensor on `device`, normalized if the similarity is cosine.

    An all-zero vector stays zero: its cosine with everything is 0.
    """
    if not isinstance(embeddings, Tensor):
        embeddings = torch.from_numpy(np.array(embeddings, dtype=np.float32, order="C"))
    tensor: Tensor = embeddings.to(device=device, dtype=torch.float32)
    if similarity is Similarity.COSINE:
        tensor = _normalized(tensor)
    return tensor.contiguous()


def _normalized(vectors: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    unit = vectors / norms
    odd = ~((norms > _LEAST_NORM) & (norms < float("inf"))).squeeze(1)
    if bool(odd.any()):  # a tiny or huge vector still has a direction
        exact = vectors[odd].to(torch.float64)
        unit[odd] = (exact / exact.norm(dim=1, keepdim=True).clamp_min(1e-300)).to(torch.float32)
    return unit


def scores_from_products(queries: Tensor, documents: Tensor, similarity: Similarity, *, out: Tensor) -> None:
    """Write the scores of prepared queries and documents into `out`; euclidean is -sqrt(|q|^2 + |d|^2 - 2 q.d)."""
    torch.mm(queries, documents.t(), out=out)
    if similarity is Similarity.EUCLIDEAN:
        squares = documents.square().sum(1)[None, :] + queries.square().sum(1)[:, None]
        torch.sub(squares, out, alpha=2, out=out)
        out.clamp_(min=0).sqrt_().neg_()


def check_embeddings(embeddings: Any, *, arm: str, what: str, ids: Any = None) -> None:
    """Refuse embeddings [n, dim] with NaN or infinity, and name the first row."""
    for at in range(0, len(embeddings), 65536):
        chunk = embeddings[at : at + 65536]
        bad = ~(chunk.finite() if isinstance(chunk, Ragged) else np.isfinite(np.asarray(chunk)).all(axis=1))
        if bad.any():
            row = at + int(bad.argmax())
            name = f" {ids[row]!r}" if ids is not None else f" at row {row}"
            raise ScoreError(
                f"the {arm} model's embedding of {what}{name} holds NaN or infinity; expected "
                "finite numbers. Check that input, or run the model in float32 or bfloat16."
            )
