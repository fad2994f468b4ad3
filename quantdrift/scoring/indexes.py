"""An index in front of documents, as scoring asks it; `quantdrift.builtin.index` has those that there are."""

from typing import Any, NamedTuple

from numpy.typing import NDArray

DEFAULT_LIMIT = 10
"""Documents that a deployment returns; +rescore=4 looks at four times as many. sentence-transformers' default."""


class Found(NamedTuple):
    """What a search found.

    Attributes:
        positions: int64 [n_queries, k] of documents, best first; -1 where there are fewer.
        scores: float32, likewise, larger is nearer, as the index gave them; None where nothing needs them.
    """

    positions: NDArray[Any]
    scores: NDArray[Any] | None = None


class SearchIndex:
    """An index over the documents of one arm, which are numbered from 0.

    Attributes:
        lossless: whether it holds the documents as they are stored, so that only its search loses anything.
        known: whether its codes can be asked for the scores of all documents, so that what they lose and what its
            search misses can be told apart.
        returns: documents that a search asks it for; as many as are kept if None.
        notes: what a run should say, one sentence each; read after the last search.
    """

    lossless = True
    known = True
    returns: int | None = None
    notes: tuple[str, ...] = ()

    def search(self, queries: NDArray[Any], k: int) -> Found:
        """Documents for queries float32 [n_queries, dim]; with scores where not all are `known`."""
        raise NotImplementedError

    def scores(self, queries: NDArray[Any]) -> NDArray[Any]:
        """Scores float32 [n_queries, n_docs] of all documents by the codes that it holds; larger is nearer.

        Never asked of an index that is lossless or not known.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Describe the index for run.json: "name", "library", "bytes" that it takes, None if that is not known."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what it holds outside of memory."""
