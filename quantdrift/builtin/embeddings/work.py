"""Stored embeddings with fewer dimensions, as halves, bytes or bits of sentence-transformers."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from quantdrift.base.errors import UnsupportedError
from quantdrift.kinds.precisions import CODED
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.stages import VectorStage
from quantdrift.scoring.stored import BITS, BYTES, HALVES, Stored, Vectors


class Embeddings(VectorStage):
    """The stored embeddings of a candidate: fewer dimensions, and a precision."""

    takes = ("vectors", "token vectors", "weights of terms")

    def vectors(self, vectors: Vectors) -> Vectors:
        """Keep the leading dimensions."""
        if (dim := self.scheme.option("dim")) is None:
            return vectors
        if int(dim) > (width := int(vectors.shape[1])):
            raise UnsupportedError(f"+dim={dim} keeps more dimensions than there are; expected at most {width}")
        return vectors[:, : int(dim)]

    def stored(self, stored: Stored, calibration: Vectors) -> Stored:
        """Store at a precision; bytes divide each dimension's range in the reference's documents."""
        precision = self.scheme.option("emb")
        return stored if precision is None else at_precision(stored, precision, calibration)


def at_precision(plain: Stored, precision: str, calibration: Vectors) -> Stored:
    """Store embeddings at a precision.

    Args:
        plain: embeddings at float32.
        precision: one of HALVES or CODED.
        calibration: float32 [n, dim], embeddings that define the ranges of bytes.

    Raises:
        UnsupportedError: bytes or bits are compared by distance, or numbers are too large for halves.
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


def _codes(vectors: Vectors, precision: str, ranges: Vectors | None) -> Tensor:
    """Return the codes of sentence-transformers as numbers, bit for bit."""
    from sentence_transformers.util import quantize_embeddings  # noqa: PLC0415 -- seconds, and few runs need it

    codes = np.asarray(quantize_embeddings(vectors, "ubinary" if precision in BITS else precision, ranges=ranges))  # type: ignore[arg-type]
    if precision in BITS:
        codes = np.unpackbits(codes, axis=1)[:, : vectors.shape[1]].astype(np.float32) * 2 - 1
    return torch.from_numpy(codes.astype(np.float32))
