"""A trial of a changed model on a few queries and the first documents that the reference finds for them.

A whole run embeds every document. To compare many configurations, the first documents of some queries are enough, as
later ones are too far away to come first.
"""

import numpy as np
from numpy.typing import NDArray

from quantdrift.measuring.flow import Arms, Flow
from quantdrift.measuring.readings import Search
from quantdrift.models.inputs import Rows, Vectors
from quantdrift.scoring.streamed import score_embeddings

DEPTH = 20
"""Number of first documents per query; later ones do not come first."""
_CHUNK = 256
"""Inputs between two steps of the progress bar."""


class Trial:
    """Some queries of a search, with their first documents in the reference.

    Args:
        flow: the model and how inputs go through it.
        search: the search that the queries are of.
        reference: embeddings of both sides by the reference.
        rows: positions of the queries.
    """

    def __init__(self, flow: Flow, search: Search, reference: Arms, rows: Rows) -> None:
        self._flow, self._similarity = flow, search.similarity
        queries, index = np.asarray(reference[0])[rows], reference[-1]
        self._excluded = None if search.excluded is None else search.excluded[rows]
        first = self._top(queries, index, k=min(DEPTH, len(index)))
        pool = np.unique(first[first >= 0])
        if self._excluded is not None:  # from here on by its place in the pool
            self._excluded = np.where(np.isin(self._excluded, pool), np.searchsorted(pool, self._excluded), -1)
        self._sides = search.queries.part(rows), search.sides[-1].part(pool)
        self._documents = np.asarray(index)[pool]
        self._first = self._top(queries, self._documents)

    def flips(self, name: str, *, query_only: bool) -> NDArray[np.bool_]:
        """Say for each query whether the model that is in place puts another document first.

        With `query_only` the documents stay at the reference's embeddings.
        """
        sides = self._sides[:1] if query_only else self._sides
        with self._flow.progress.stage(name, sum(len(side.ids) for side in sides)) as tell:
            embedded = []
            for side in sides:
                vectors = np.zeros((len(side.ids), self._documents.shape[1]), dtype=np.float32)
                order = side.order()  # of similar lengths
                for at in range(0, len(order), _CHUNK):
                    part = order[at : at + _CHUNK]
                    vectors[part] = self._flow.run(side, part, self._flow.settings.batch_size)
                    tell(len(part))
                embedded.append(vectors)
        documents = self._documents if query_only else embedded[1]
        return np.asarray((self._top(embedded[0], documents) != self._first)[:, 0])

    def _top(self, queries: Vectors, documents: Vectors, k: int = 1) -> Rows:
        """Positions of the first documents of each query, int64 [n_queries, k]."""
        similarity, excluded = self._similarity, self._excluded
        state = score_embeddings(queries, queries, documents, documents, similarity=similarity, k=k, excluded=excluded)
        return state.reference_top()[0]
