"""The gaps of calibration inputs, as a function of what the model puts out.

A gap is a difference of two scores: of the first document and of a contender (retrieval), of the
first class and of another (classification). Criteria ask how it moves when a layer is quantized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from quantdrift.allocation.solver import DEPTH
from quantdrift.engine.inputs import Inputs, Vectors
from quantdrift.engine.scoring.streamed import Similarity, score_embeddings
from quantdrift.errors import DataError

# --- The gaps of calibration inputs, as a function of what the model puts out ---------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """One forward pass over some of a problem's rows.

    Attributes:
        rows: int64 [n_batch], which rows.
        run: puts them through the model as it is now; float32 [n_batch, dim], in the order of
            `rows`. The same model gives the same numbers, bit for bit.
    """

    rows: NDArray[np.int64]
    run: Callable[[], NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GapProblem:
    """Calibration inputs, their contenders in the reference, and the gaps between them.

    A row is what the model sees at once: a text, a pair of texts, an image. A text that several
    inputs have to do with is one row.

    Attributes:
        batches: every row exactly once.
        rows: int64 [n_inputs, n_contenders, n_roles], the rows that a gap depends on. For retrieval
            the roles are query, first document and contender.
        valid: bool [n_inputs, n_contenders]; False where there are fewer contenders. Contenders are
            in the reference's order, so the first is its runner-up.
        gap: from outputs [n_inputs, n_contenders, n_roles, dim] to gaps [n_inputs, n_contenders];
            differentiable, and no gap depends on another's outputs.
        reference: float32 [n_rows, dim], outputs of the reference where they are known already.
    """

    batches: Sequence[Batch]
    rows: NDArray[np.int64]
    valid: NDArray[np.bool_]
    gap: Callable[[Tensor], Tensor]
    reference: NDArray[np.float32] | None = None

    @property
    def n_rows(self) -> int:
        """How many rows the model sees."""
        return sum(len(batch.rows) for batch in self.batches)

    def outputs(self) -> NDArray[np.float32]:
        """What the model puts out for every row as it is now, float32 [n_rows, dim]."""
        parts = [(batch.rows, batch.run()) for batch in self.batches]
        outputs = np.empty((self.n_rows, parts[0][1].shape[1]), dtype=np.float32)
        for rows, part in parts:
            outputs[rows] = part
        return outputs

    def gaps(self, outputs: NDArray[np.float32]) -> NDArray[np.float64]:
        """The gaps that outputs make.

        Args:
            outputs: float32 [n_rows, dim].

        Returns:
            float64 [n_inputs, n_contenders], nan where there is no contender.
        """
        chosen = torch.from_numpy(outputs[np.maximum(self.rows, 0)]).double()
        gaps = self.gap(chosen).numpy()
        return np.where(self.valid, gaps, np.nan)


# --- retrieval problem ----------------------------------------------------------------------------

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
    side: Inputs, chosen: NDArray[np.int64], start: int, size: int, busy: NDArray[np.int64] | None = None
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


# --- The gaps of calibration inputs of a classifier: its first class, and those behind it ---------


def classification_problem(
    inputs: Inputs, outputs: Vectors, *, logits: Callable[[Tensor], Tensor], batch_size: int, n_contenders: int = 1
) -> GapProblem:
    """The gaps between the first class and those behind it, in the reference's order.

    gap_c = logit of the reference's first class - logit of its class c + 1.

    Args:
        inputs: to calibrate on.
        outputs: float32 [n_inputs, dim], what the reference puts out for them: logits, or
            embeddings that a probe reads.
        logits: from outputs [..., dim] to logits [..., n_classes]; differentiable.
        batch_size: inputs per forward pass.
        n_contenders: classes behind the first; fewer where there are not so many.

    Raises:
        DataError: there is only one class.
    """
    with torch.no_grad():
        scores = logits(torch.from_numpy(np.array(outputs)))
    n_classes = scores.shape[1]
    if n_classes < 2:  # noqa: PLR2004 -- nothing to tell apart otherwise
        raise DataError("the model has only one class, so there is no gap to measure")
    tops = torch.argsort(scores, dim=1, descending=True, stable=True)[:, : n_contenders + 1]
    firsts, others = tops[:, :1], tops[:, 1:]
    shape = (len(inputs.ids), others.shape[1])
    order = inputs.order()
    batches = [order[at : at + batch_size] for at in range(0, len(order), batch_size)]

    def gap(found: Tensor) -> Tensor:
        each = logits(found[:, :, 0])  # [n_inputs, n_contenders, n_classes]
        best = each.gather(2, firsts[:, None].expand(-1, shape[1], 1).to(each.device))
        behind = each.gather(2, others[..., None].to(each.device))
        return (best - behind)[..., 0]

    return GapProblem(
        batches=[Batch(rows=rows, run=partial(inputs.encode, rows, batch_size)) for rows in batches],
        rows=np.broadcast_to(np.arange(shape[0])[:, None, None], (*shape, 1)).astype(np.int64),
        valid=np.ones(shape, dtype=np.bool_),
        gap=gap,
        reference=np.asarray(outputs),
    )


# --- Which document a model answers first, of those that are near the first in the reference ------

_CHUNK = 256
"""Inputs between two steps of the progress bar."""


class FirstAnswers:
    """Queries, and the documents that contend for their first rank.

    Attributes:
        reference: int64 [n_queries], positions of the reference's first documents; -1 where there
            is none.
        pool: int64 [n_pool], positions of the documents that are looked at, ascending.
    """

    def __init__(
        self,
        queries: Inputs,
        documents: Inputs,
        reference: tuple[Vectors, Vectors],
        *,
        similarity: Similarity,
        batch_size: int,
        depth: int = DEPTH,
        query_only: bool = False,
        excluded: NDArray[np.int64] | None = None,
    ) -> None:
        """Rank all documents in the reference.

        Args:
            queries: to be answered.
            documents: the corpus.
            reference: embeddings of both by the reference.
            similarity: how embeddings become scores.
            batch_size: inputs per forward pass.
            depth: first documents of every query that are looked at.
            query_only: whether the documents stay at the reference.
            excluded: per query one document position that does not count, or -1.
        """
        index = reference[1]
        state = score_embeddings(
            reference[0], reference[0], index, index, similarity=similarity, k=min(depth, len(index)), excluded=excluded
        )
        tops = state.reference_top()[0]
        self.reference: NDArray[np.int64] = tops[:, 0]
        self.pool: NDArray[np.int64] = np.unique(tops[tops >= 0])
        self._queries, self._documents = queries, documents.part(self.pool)
        self._index = np.asarray(index)[self.pool] if query_only else None
        self._similarity, self._batch_size = similarity, batch_size
        self._excluded = None if excluded is None else self._places(excluded)

    @property
    def n_rows(self) -> int:
        """Inputs that one answer takes through the model."""
        return len(self._queries.ids) + (len(self.pool) if self._index is None else 0)

    def now(self, tell: Callable[[int], None]) -> NDArray[np.int64]:
        """The first documents by the model as it is, int64 [n_queries]; -1 where there is none.

        Args:
            tell: told how many inputs are done, after each chunk.
        """
        queries = self._embedded(self._queries, tell)
        documents = self._index
        if documents is None:
            documents = self._embedded(self._documents, tell)
        state = score_embeddings(
            queries, queries, documents, documents, similarity=self._similarity, k=1, excluded=self._excluded
        )
        best: NDArray[np.int64] = state.reference_top()[0][:, 0]
        return np.where(best >= 0, self.pool[np.maximum(best, 0)], -1)

    def _places(self, excluded: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where in the pool the excluded documents are, -1 for those outside."""
        places = np.searchsorted(self.pool, excluded)
        there = self.pool[np.minimum(places, len(self.pool) - 1)] == excluded
        return np.where(there, places, -1)

    def _embedded(self, side: Inputs, tell: Callable[[int], None]) -> Vectors:
        order = side.order()
        chunks = [order[at : at + _CHUNK] for at in range(0, len(order), _CHUNK)]
        parts = []
        for chunk in chunks:
            parts.append(side.encode(chunk, self._batch_size))
            tell(len(chunk))
        vectors = np.concatenate(parts)
        found = np.empty_like(vectors)
        found[order] = vectors
        return found
