"""Embeddings as an index stores them: fewer dimensions, halves, bytes or bits, as sentence-transformers makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.base.errors import UnsupportedError
from quantdrift.engine.scoring.streamed import Similarity, prepare
from quantdrift.spec.grammar import CODED

Vectors = NDArray[Any]

HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
BYTES, BITS = CODED[:2], CODED[2:]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """The queries and documents of one arm, as they are stored and compared.

    Attributes:
        precision: one of HALVES or CODED; None for float32.
        queries: float32 [n_queries, dim], what is multiplied: normalized where similarity is cosine; of bytes and bits
            their codes, a bit as -1 or 1.
        documents: float32 [n_docs, dim], likewise.
        exact_queries: float32 [n_queries, dim], not coded: what documents are scored again with.
        ranges: float32 [2, dim], least and greatest of each dimension, which bytes divide into 255 steps.
    """

    precision: str | None
    queries: Tensor
    documents: Tensor
    exact_queries: Tensor
    ranges: Vectors | None = None

    @property
    def coded(self) -> bool:
        """Whether scores are in units of their own."""
        return self.precision in CODED

    @property
    def bits(self) -> int:
        """Of a document."""
        per_number = {"fp16": 16, "bf16": 16, "int8": 8, "uint8": 8, "binary": 1, "ubinary": 1}
        return int(self.documents.shape[1] * per_number.get(self.precision or "", 32))

    def rounded(self, scores: Tensor) -> Tensor:
        """Scores as a product of this precision gives them: of halves, halves, which tie more often."""
        half = HALVES.get(self.precision or "")
        return scores if half is None else scores.to(half).to(torch.float32)

    def decoded(self) -> Tensor:
        """Documents as they are scored again by: bytes back in the units of embeddings, bits as 0 and 1."""
        if self.precision in BYTES:
            assert self.ranges is not None  # bytes were made with them
            steps = _steps(self.ranges)
            lowest = 128.0 if self.precision == "int8" else 0.0
            return (
                (self.documents.double() + lowest) * torch.from_numpy(steps) + torch.from_numpy(self.ranges[0])
            ).float()
        return (self.documents > 0).float() if self.precision in BITS else self.documents


def _steps(ranges: Vectors) -> Vectors:
    steps = (ranges[1] - ranges[0]) / 255
    return np.where(steps == 0, 1, steps).astype(np.float64)


def stored(
    queries: Any, documents: Any, *, precision: str | None, dim: int | None, similarity: Similarity, calibration: Any
) -> Stored:
    """Embeddings as they are stored.

    Args:
        queries: [n_queries, dim], as the model makes them.
        documents: [n_docs, dim].
        precision: of HALVES or CODED; None for float32.
        dim: how many leading dimensions are kept; None for all.
        similarity: by which they are compared; where it is cosine they are normalized, after the other dimensions went.
        calibration: [n, dim], embeddings whose ranges bytes divide: those of the reference's documents.

    Raises:
        UnsupportedError: there are fewer dimensions, or bytes and bits are to be compared by distance.
    """
    width = int(documents.shape[1])
    if dim is not None and dim > width:
        raise UnsupportedError(f"+dim={dim} keeps more dimensions than there are; expected at most {width}")
    if precision in CODED and similarity is Similarity.EUCLIDEAN:
        raise UnsupportedError(
            f"+emb={precision} compares codes by inner product, and this model compares by Euclidean distance; "
            "expected fp16 or bf16, or a model of cosine or dot product"
        )
    short_queries, short_documents, short_calibration = (
        prepare(np.asarray(each)[:, :dim], similarity, torch.device("cpu"))
        for each in (queries, documents, calibration)
    )
    if precision is None:
        return Stored(precision=None, queries=short_queries, documents=short_documents, exact_queries=short_queries)
    if (half := HALVES.get(precision)) is not None:
        halved = [each.to(half).to(torch.float32) for each in (short_queries, short_documents)]
        if not all(bool(each.isfinite().all()) for each in halved):
            raise UnsupportedError(f"embeddings are too large for +emb={precision}; expected bf16, or normalized ones")
        return Stored(precision=precision, queries=halved[0], documents=halved[1], exact_queries=halved[0])
    ranges = None
    if precision in BYTES:
        known = short_calibration.numpy()
        ranges = np.vstack([known.min(axis=0), known.max(axis=0)])
    coded = [_codes(each.numpy(), precision, ranges) for each in (short_queries, short_documents)]
    return Stored(precision=precision, queries=coded[0], documents=coded[1], exact_queries=short_queries, ranges=ranges)


def _codes(vectors: Vectors, precision: str, ranges: Vectors | None) -> Tensor:
    """Codes as numbers; those of sentence-transformers, bit for bit."""
    from sentence_transformers.util import quantize_embeddings  # noqa: PLC0415 -- seconds, and few runs need it

    found = np.asarray(quantize_embeddings(vectors, "ubinary" if precision in BITS else precision, ranges=ranges))  # type: ignore[arg-type]
    if precision in BITS:
        found = np.unpackbits(found, axis=1)[:, : vectors.shape[1]].astype(np.float32) * 2 - 1
    return torch.from_numpy(found.astype(np.float32))


def packed(codes: Tensor) -> NDArray[np.uint8]:
    """Bits of -1 and 1 [n, dim] as bytes [n, dim / 8 rounded up]."""
    return np.packbits(codes.numpy() > 0, axis=1)
