"""Which document a model answers first, of those that are near the first in the reference.

Embedding these alone takes a fraction of a run, and the same documents serve every candidate. Not
seen is a document that becomes the first from beyond that depth in the ranking of every query.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.settings import DEPTH
from quantdrift.measurement.inputs import Inputs, Vectors
from quantdrift.scoring import Similarity, score_embeddings

__all__ = ["FirstAnswers"]

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
            reference[0],
            reference[0],
            index,
            index,
            similarity=similarity,
            k=min(depth, len(index)),
            excluded=excluded,
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
            queries,
            queries,
            documents,
            documents,
            similarity=self._similarity,
            k=1,
            excluded=self._excluded,
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
