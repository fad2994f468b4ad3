"""Embeddings as an index stores them: fewer dimensions, halves, bytes or bits, as sentence-transformers makes them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.base.errors import UnsupportedError
from quantdrift.engine.scoring.streamed import Similarity, prepare
from quantdrift.stages.embeddings import BITS_OF
from quantdrift.stages.rescoring import CODED

Vectors = NDArray[Any]

HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
BYTES, BITS = CODED[:2], CODED[2:]
_RANGED = 100
"""Documents that ranges should come of at least, as sentence-transformers has it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """The queries and documents of one arm, as they are stored and compared.

    Attributes:
        precision: one of HALVES or CODED; None for float32.
        similarity: by which they are compared.
        queries: float32 [n_queries, dim], what is multiplied: normalized where similarity is cosine; of bytes and bits
            their codes, a bit as -1 or 1.
        documents: float32 [n_docs, dim], likewise.
        exact_queries: float32 [n_queries, dim], not coded: what documents are scored again with.
        ranges: float32 [2, dim], least and greatest of each dimension, which bytes divide into 255 steps.
        ids: of the documents, where an index that is there already needs them.
    """

    precision: str | None = None
    similarity: Similarity
    queries: Tensor
    documents: Tensor
    exact_queries: Tensor
    ranges: Vectors | None = None
    ids: Sequence[str] = ()

    @classmethod
    def plain(cls, queries: Any, documents: Any, similarity: Similarity) -> Self:
        """Embeddings [n, dim] at float32; normalized where they are compared by cosine."""
        left, right = (prepare(np.asarray(side), similarity, torch.device("cpu")) for side in (queries, documents))
        return cls(similarity=similarity, queries=left, documents=right, exact_queries=left)

    @property
    def coded(self) -> bool:
        """Whether scores are in units of their own."""
        return self.precision in CODED

    @property
    def bits(self) -> int:
        """Bits that a document takes."""
        return int(self.documents.shape[1] * BITS_OF.get(self.precision or "", 32))

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


def at_precision(plain: Stored, precision: str, calibration: Vectors) -> Stored:
    """Embeddings at a precision.

    Args:
        plain: at float32.
        precision: of HALVES or CODED.
        calibration: float32 [n, dim], embeddings whose ranges bytes divide.

    Raises:
        UnsupportedError: bytes and bits are to be compared by distance, or halves cannot hold the numbers.
    """
    if precision in CODED and plain.similarity is Similarity.EUCLIDEAN:
        raise UnsupportedError(
            f"+emb={precision} compares codes by inner product, and this model compares by Euclidean distance; "
            "expected fp16 or bf16, or a model of cosine or dot product"
        )
    if (half := HALVES.get(precision)) is not None:
        halved = [side.to(half).to(torch.float32) for side in (plain.queries, plain.documents)]
        if not all(bool(side.isfinite().all()) for side in halved):
            raise UnsupportedError(f"embeddings are too large for +emb={precision}; expected bf16, or normalized ones")
        return replace(plain, precision=precision, queries=halved[0], documents=halved[1], exact_queries=halved[0])
    ranges = None
    if precision in BYTES:
        ranges = np.vstack([calibration.min(axis=0), calibration.max(axis=0)])
    coded = [_codes(side.numpy(), precision, ranges) for side in (plain.queries, plain.documents)]
    return replace(plain, precision=precision, queries=coded[0], documents=coded[1], ranges=ranges)


def on_ranges(stored: Stored, n_docs: int) -> tuple[str, ...]:
    """The note on bytes whose ranges come of few documents: on more, numbers beyond a range are cut."""
    if stored.ranges is None or n_docs >= _RANGED:
        return ()
    return (f"+emb={stored.precision} takes its ranges from {n_docs:,} documents; expected {_RANGED} or more",)


def _codes(vectors: Vectors, precision: str, ranges: Vectors | None) -> Tensor:
    """Codes as numbers; those of sentence-transformers, bit for bit."""
    from sentence_transformers.util import quantize_embeddings  # noqa: PLC0415 -- seconds, and few runs need it

    codes = np.asarray(quantize_embeddings(vectors, "ubinary" if precision in BITS else precision, ranges=ranges))  # type: ignore[arg-type]
    if precision in BITS:
        codes = np.unpackbits(codes, axis=1)[:, : vectors.shape[1]].astype(np.float32) * 2 - 1
    return torch.from_numpy(codes.astype(np.float32))
