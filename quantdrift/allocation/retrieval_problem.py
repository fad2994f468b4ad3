"""The gaps of calibration queries: which queries, and which documents contend for their first rank.

The queries are a seeded slice of the pool, at most a quarter of it, and every rate that is reported
of an allocation is over the others (paper, appendix "Calibration protocol").
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from quantdrift.allocation.problem import Batch, GapProblem
from quantdrift.errors import DataError
from quantdrift.measurement.inputs import Inputs, Vectors
from quantdrift.scoring import Similarity, score_embeddings

__all__ = ["CONTENDERS", "GAPS", "contenders_for", "draw_queries", "retrieval_problem"]

LEAST_SHARE = 4
"""At most one query in this many is taken for calibration."""
GAPS = 128
"""Gaps that layers are measured on: to the runner-up, and to more where queries are few."""
_FEW = 4
"""A batch may be short by this factor to be apart from busier inputs."""
CONTENDERS = 4
"""Documents behind the first that are watched at most: a flip is mostly to one of them."""


def draw_queries(n_queries: int, *, wanted: int, seed: int = 0) -> NDArray[np.int64]:
    """Positions of the calibration queries, ascending.

    Args:
        n_queries: in the pool.
        wanted: how many to take; at most a quarter of the pool is.
        seed: of the draw.

    Raises:
        DataError: the pool is too small to take one in four.
    """
    n = min(wanted, n_queries // LEAST_SHARE)
    if n < 1:
        raise DataError(
            f"expected at least {LEAST_SHARE} queries, of which a quarter is taken to measure "
            f"layers on; got {n_queries}"
        )
    rng = np.random.default_rng(seed)
    return np.sort(rng.choice(n_queries, size=n, replace=False)).astype(np.int64)


def contenders_for(n_queries: int) -> int:
    """How many documents behind the first each calibration query is measured against."""
    return min(CONTENDERS, -(-GAPS // n_queries))


def retrieval_problem(
    queries: Inputs,
    documents: Inputs,
    reference: tuple[Vectors, Vectors],
    *,
    similarity: Similarity,
    chosen: NDArray[np.int64],
    batch_size: int,
    n_contenders: int = 1,
    query_only: bool = False,
    excluded: NDArray[np.int64] | None = None,
) -> GapProblem:
    """The gaps between the first document and those behind it, in the reference's order.

    Args:
        queries: the pool.
        documents: the corpus.
        reference: embeddings of both by the reference.
        similarity: how embeddings become scores.
        chosen: int64 [n_inputs], positions of the calibration queries.
        batch_size: rows per forward pass.
        n_contenders: documents behind the first.
        query_only: whether the documents stay at the reference's embeddings.
        excluded: per query one document position that does not count, or -1.

    Raises:
        DataError: no query has two documents to choose from.
    """
    part = np.asarray(reference[0])[chosen]
    state = score_embeddings(
        part,
        part,
        reference[1],
        reference[1],
        similarity=similarity,
        k=n_contenders + 1,
        excluded=None if excluded is None else excluded[chosen],
    )
    tops = state.reference_top()[0]  # [n_inputs, up to n_contenders + 1], -1 behind the last
    valid = (tops[:, 1:] >= 0) & (tops[:, :1] >= 0)
    if not valid.any():
        raise DataError("no calibration query has two documents, so there is no gap to measure")
    n = len(chosen)
    if query_only:
        index = torch.from_numpy(np.asarray(reference[1])[np.maximum(tops, 0)])
        return GapProblem(
            batches=list(_batches(queries, chosen, 0, batch_size)),
            rows=np.where(valid, np.arange(n)[:, None], -1)[..., None],
            valid=valid,
            gap=lambda outputs: _gap(
                outputs[:, :, 0],
                index[:, :1].to(outputs).expand(-1, valid.shape[1], -1),
                index[:, 1:].to(outputs),
                similarity,
            ),
            reference=part,
        )
    needed = np.unique(tops[tops >= 0])
    places = np.where(tops >= 0, n + np.searchsorted(needed, tops), -1)
    queries_of = np.broadcast_to(np.arange(n)[:, None], valid.shape)
    firsts = np.broadcast_to(places[:, :1], valid.shape)
    roles = np.stack([queries_of, firsts, places[:, 1:]], axis=-1)
    return GapProblem(
        batches=[
            *_batches(queries, chosen, 0, batch_size),
            *_batches(documents, needed, n, batch_size, _busy(tops, needed)),
        ],
        rows=np.where(valid[..., None], roles, -1),
        valid=valid,
        gap=lambda outputs: _gap(outputs[:, :, 0], outputs[:, :, 1], outputs[:, :, 2], similarity),
        reference=np.concatenate([part, np.asarray(reference[1])[needed]]),
    )


def _batches(
    side: Inputs,
    chosen: NDArray[np.int64],
    start: int,
    size: int,
    busy: NDArray[np.int64] | None = None,
) -> Iterator[Batch]:
    """Batches of similar lengths, apart by how busy; row `start + i` is the input `chosen[i]`."""
    part = side.part(chosen)
    order = part.order()
    ends = [*range(size, len(order), size), len(order)]
    if busy is not None:
        order = order[np.argsort(busy[order], kind="stable")]
        ends = _ends(busy[order], size)
    begin = 0
    for end in ends:
        rows = order[begin:end]
        yield Batch(rows=rows + start, run=partial(part.encode, rows, size))
        begin = end


def _ends(busy: NDArray[np.int64], size: int) -> list[int]:
    """Where batches end: they are full, or have a few inputs and the next one is busier.

    A batch takes as many backward passes as its busiest input.
    """
    ends, begin = [], 0
    for place in range(1, len(busy)):
        count = place - begin
        if count == size or (count >= size // _FEW and busy[place] > busy[place - 1]):
            ends.append(place)
            begin = place
    return [*ends, len(busy)]


def _busy(tops: NDArray[np.int64], needed: NDArray[np.int64]) -> NDArray[np.int64]:
    """In how many gaps a document is: each takes a backward pass of its whole batch."""
    return np.bincount(np.searchsorted(needed, tops[tops >= 0]), minlength=len(needed))


def _gap(queries: Tensor, firsts: Tensor, others: Tensor, similarity: Similarity) -> Tensor:
    """Score of the first minus score of the other, each [..., dim]."""
    if similarity is Similarity.EUCLIDEAN:
        farther: Tensor = (queries - others).norm(dim=-1) - (queries - firsts).norm(dim=-1)
        return farther
    if similarity is Similarity.COSINE:
        queries, firsts, others = (normalize(part, dim=-1) for part in (queries, firsts, others))
    gap: Tensor = (queries * (firsts - others)).sum(dim=-1)
    return gap
