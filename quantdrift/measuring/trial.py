"""What a change to the model does to some queries, by embedding as few documents as that takes.

A whole run embeds every document. To compare many configurations, the first documents of some queries are enough:
the others are too far behind to come first.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quantdrift.measuring.flow import Arms, Flow, scores_of
from quantdrift.measuring.readings import Search
from quantdrift.models.inputs import Inputs, Rows, Vectors
from quantdrift.scoring.streamed import score_embeddings

DEPTH = 20
"""A document behind these does not come first."""
MARGIN = 1.25
"""How much more than a runner-up's gap another document's may close."""
_CHUNK = 256
"""Inputs between two steps of the progress bar."""


class Trial:
    """Some queries of a search, with their first documents in the reference.

    Args:
        flow: what runs the model.
        search: that the queries are of.
        reference: embeddings of both sides by the reference.
        rows: positions of the queries.
    """

    def __init__(self, flow: Flow, search: Search, reference: Arms, rows: Rows) -> None:
        self._flow, self._search = flow, search
        self._queries, documents = search.queries.part(rows), search.sides[-1]
        queries, index = np.asarray(reference[0])[rows], reference[-1]
        state = score_embeddings(
            queries,
            queries,
            index,
            index,
            similarity=search.similarity,
            k=min(DEPTH, len(documents.ids)),
            excluded=None if search.excluded is None else search.excluded[rows],
        )
        positions = state.reference_top()[0]
        self._pool = np.unique(positions[positions >= 0])
        self._documents, self._known = documents.part(self._pool), np.asarray(index)[self._pool]
        # a place in the pool; documents in it keep their order, by which ties break
        self._ranks = np.where(positions >= 0, np.searchsorted(self._pool, positions), -1)
        self._gaps = self._gaps_of(queries, self._known)

    def flips(self, name: str, *, query_only: bool) -> NDArray[np.bool_]:
        """Whether the model that is in place puts another document first; with `query_only` documents stay as they are.

        First the queries and the two documents that a gap lies between are embedded: that shows how far gaps move.
        Then, of the queries whose first document holds, those documents whose gap could close: no wider than 1.25
        times the most by which one did close.
        """
        n_queries = len(self._ranks)
        total = n_queries + (0 if query_only else len(self._pool))
        with self._flow.progress.stage(name, total) as tell:
            queries = self._embedded(self._queries, np.arange(n_queries), tell)
            if query_only:
                gaps = self._gaps_of(queries, self._known)
            else:
                documents = np.full_like(self._known, np.nan)
                near = np.unique(self._ranks[:, :2])
                near = near[near >= 0]
                documents[near] = self._embedded(self._documents, near, tell)
                gaps = self._gaps_of(queries, documents)
                reach = MARGIN * float(np.nanmax((self._gaps - gaps)[:, :2], initial=0.0))
                open_ = (self._gaps <= reach) & ~_overtaken(gaps, self._ranks)[:, None]
                rest = np.setdiff1d(self._ranks[open_ & (self._ranks >= 0)], near)
                documents[rest] = self._embedded(self._documents, rest, tell)
                gaps = self._gaps_of(queries, documents)
                tell(total - n_queries - len(near) - len(rest))
        return _overtaken(gaps, self._ranks)

    def _embedded(self, side: Inputs, rows: Rows, tell: Callable[[int], None]) -> Vectors:
        vectors = np.zeros((len(rows), self._known.shape[1]), dtype=np.float32)
        order = side.part(rows).order()  # of similar lengths
        for at in range(0, len(order), _CHUNK):
            part = order[at : at + _CHUNK]
            vectors[part] = self._flow.run(side, rows[part], self._flow.settings.batch_size)
            tell(len(part))
        return vectors

    def _gaps_of(self, queries: Vectors, documents: Vectors) -> NDArray[np.float64]:
        """Score of the reference's first document less that of each of its first, float64 [n_queries, depth].

        NaN where there is no document, or it is not embedded.
        """
        scores = scores_of(queries, documents[self._ranks.clip(min=0)], self._search.similarity)
        return np.asarray(np.where(self._ranks >= 0, scores[:, :1] - scores, np.nan))


def _overtaken(gaps: NDArray[np.float64], ranks: Rows) -> NDArray[np.bool_]:
    """Whether another than the first is first now, bool [n_queries]; of equal scores the lower position wins."""
    return np.asarray(((gaps < 0) | ((gaps == 0) & (ranks < ranks[:, :1]))).any(axis=1))
