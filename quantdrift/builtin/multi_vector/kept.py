"""Storage of the candidate's documents of several rows each: pooled, pruned, at a precision."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.multi_vector.scoring import Keep, Product, score_rows
from quantdrift.kinds.precisions import BITS_OF
from quantdrift.scheme import Scheme
from quantdrift.scoring.ragged import Matrix, Ragged
from quantdrift.scoring.stages import VectorStage
from quantdrift.scoring.state import ScoreState
from quantdrift.scoring.stored import BITS, BYTES, HALVES

LEARNED = 1 << 18
"""Most rows of the reference's documents from which ranges are taken."""


class RowStage(VectorStage):
    """A stage of documents of several rows each."""

    def keep(self) -> Keep | None:
        """Return the storage of the candidate's documents; None leaves them unchanged."""
        return None


class Tokens(RowStage):
    """Token vectors of a candidate's documents, pooled."""

    takes = ("token vectors",)

    def keep(self) -> Keep | None:
        """Return the pooling of token vectors by clusters."""
        factor = self.scheme.option("pool")
        return None if factor is None else partial(pooled, factor=float(factor))

    def record(self) -> Mapping[str, Any]:
        """Return the pooling factor."""
        return {"pool": self.scheme.option("pool")}


def score_kept(
    stages: Sequence[VectorStage],
    product: Product,
    queries: tuple[Ragged, Ragged],
    documents: tuple[Ragged, Ragged],
    **how: Any,
) -> ScoreState:
    """Score both arms by `score_rows`; stages change the candidate's documents, never the queries."""
    keeps: list[Keep] = []
    precision = None
    for stage in stages:  # the reading has refused stages for one vector an input
        keep = None
        if isinstance(stage, RowStage):
            keep = stage.keep()
        elif (precision := stage.scheme.option("emb")) is not None:
            keep = coded_rows(product, documents[0], precision)
        keeps += [] if keep is None else [keep]

    def kept(part: Ragged) -> Ragged:
        for keep in keeps:
            part = keep(part)
        return part

    state, n_rows = score_rows(product, queries, documents, keep=kept if keeps else None, **how)
    if not stages:
        return state
    bits = product.row_bits(documents[0].shape[1], BITS_OF.get(precision or "", 32))
    record: dict[str, Any] = {
        "precision": precision or "float32",
        "rows_per_document": round(n_rows, 2),
        "bytes_per_document": round(n_rows * bits / 8, 1),
        "index": None,
    }
    for stage in stages:
        record |= stage.record()
    return replace(state, told=record)


def check_stored(scheme: Scheme, product: Product) -> None:
    """Refuse options that rows cannot have, before anything is encoded."""
    if scheme.option("dim") is not None:
        raise UnsupportedError(f"+dim= shortens one vector an input, and this model makes {product.of}; leave it out")
    if not product.signed and scheme.option("emb") in BITS:
        raise UnsupportedError(
            f"+emb={scheme.option('emb')} keeps signs, and {product.of} have none; expected int8 or fp16"
        )


def coded_rows(product: Product, documents: Ragged, precision: str) -> Keep:
    """Return the storage of token vectors or term weights at a precision, decoded to their own units.

    Bytes divide the range of each dimension in the reference's documents (for weights the range of all, from 0) into
    255 steps and clip numbers outside of it; a bit is the sign, times the mean size of a number.
    """
    values = product.values(_learned(documents))
    code: Callable[[Matrix], Matrix]
    if (half := HALVES.get(precision)) is not None:

        def code(numbers: Matrix) -> Matrix:
            halved: Matrix = torch.from_numpy(np.array(numbers)).to(half).float().numpy()
            return halved

    elif precision in BYTES:
        low = values.min(axis=0) if product.signed else np.zeros(1)
        steps = (values.max(axis=0) - low).astype(np.float64) / 255
        steps = np.where(steps == 0, 1, steps)

        def code(numbers: Matrix) -> Matrix:
            coded: Matrix = (np.rint((numbers - low) / steps).clip(0, 255) * steps + low).astype(np.float32)
            return coded

    else:  # `check_stored` has refused weights, which have no sign
        size = np.float32(np.abs(values).mean())

        def code(numbers: Matrix) -> Matrix:
            return np.where(numbers > 0, size, -size).astype(np.float32)

    def keep(part: Ragged) -> Ragged:
        rows = np.array(part.flat())
        product.values(rows)[:] = code(product.values(rows))
        return Ragged.joined(rows, part.lengths)

    return keep


def _learned(documents: Ragged) -> Matrix:
    """Return the rows of some documents, evenly from the corpus."""
    n = int(LEARNED / max(1.0, float(documents.lengths.mean())))
    some: Ragged = documents[np.unique(np.linspace(0, len(documents) - 1, min(n, len(documents))).astype(int))]
    return some.flat()


def pooled(part: Ragged, factor: float) -> Ragged:
    """Merge each document's token vectors to a share of 1 / factor, by sentence-transformers' own clustering."""
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling  # noqa: PLC0415 -- seconds, and few runs need it

    pooling = HierarchicalTokenPooling(pool_factor=factor)
    made = pooling.pool([torch.from_numpy(np.array(matrix)) for matrix in part])
    return Ragged.of([matrix.numpy() for matrix in made])
