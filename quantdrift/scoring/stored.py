"""Embeddings as an index stores them: as float32, half-precision floats, bytes or bits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.kinds.precisions import BITS_OF, CODED
from quantdrift.scoring.similarity import Similarity, prepare

Vectors = NDArray[Any]

HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
BYTES, BITS = CODED[:2], CODED[2:]
_RANGED = 100
"""Least number of documents to compute ranges from, as in sentence-transformers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """The queries and documents of one arm, as they are stored and compared.

    Attributes:
        precision: one of HALVES or CODED; None for float32.
        similarity: the score of two embeddings.
        queries: float32 [n_queries, dim], the factors of scores, normalized for cosine. Bytes and bits stand as codes,
            a bit as -1 or 1.
        documents: float32 [n_docs, dim], likewise.
        exact_queries: float32 [n_queries, dim], uncoded, for rescoring.
        ranges: float32 [2, dim], least and greatest value of each dimension, divided into 255 steps by bytes.
        ids: ids of the documents, for an index that exists already.
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
        """Make the float32 form of embeddings [n, dim]; normalized if the similarity is cosine."""
        left, right = (prepare(np.asarray(side), similarity, torch.device("cpu")) for side in (queries, documents))
        return cls(similarity=similarity, queries=left, documents=right, exact_queries=left)

    @property
    def coded(self) -> bool:
        """Whether scores are in units of codes."""
        return self.precision in CODED

    @property
    def bits(self) -> int:
        """The bits of one document."""
        return int(self.documents.shape[1] * BITS_OF.get(self.precision or "", 32))

    def rounded(self, scores: Tensor) -> Tensor:
        """Round scores as products of this precision are rounded: half precision ties more often."""
        half = HALVES.get(self.precision or "")
        return scores if half is None else scores.to(half).to(torch.float32)

    def decoded(self) -> Tensor:
        """Return the documents for rescoring: bytes in units of embeddings again, bits as 0 and 1."""
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


def on_ranges(stored: Stored, n_docs: int) -> tuple[str, ...]:
    """Return notes on codes of bytes: what changes answers beside rounding, and ranges that come from few documents.

    Values outside of a range are clipped.
    """
    if stored.ranges is None:
        return ()
    steps = (
        f"+emb={stored.precision} compares by the codes, whose step differs from dimension to dimension (an index "
        "with SQ8 decodes them first): that, more"
    )
    few = f"+emb={stored.precision} takes its ranges from {n_docs:,} documents; expected {_RANGED} or more"
    return (f"{steps} than the rounding, changes answers", *([few] if n_docs < _RANGED else []))
