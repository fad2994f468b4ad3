"""The interface of an index to scoring; `quantdrift.builtin.index` has the indexes."""

from typing import Any, NamedTuple

from numpy.typing import NDArray

DEFAULT_LIMIT = 10
"""Documents that a deployment returns, the default of sentence-transformers; +rescore=4 rescores four times as many."""


class Found(NamedTuple):
    """The result of a search.

    Attributes:
        positions: int64 [n_queries, k], documents with the best first; -1 for an empty place.
        scores: float32 [n_queries, k], scores of the index, where larger is nearer; None if they are not needed.
    """

    positions: NDArray[Any]
    scores: NDArray[Any] | None = None


class SearchIndex:
    """An index over the documents of one arm, which are numbered from 0.

    Attributes:
        lossless: whether it holds the documents as they are stored, so that it has no compression error.
        known: whether it can score all documents by its codes, so that compression error and search recall can be
            measured apart.
        returns: number of documents to ask it for; all ranks that are kept if None.
        notes: sentences for the output of a run, read after the last search.
    """

    lossless = True
    known = True
    returns: int | None = None
    notes: tuple[str, ...] = ()

    def search(self, queries: NDArray[Any], k: int) -> Found:
        """Search for queries float32 [n_queries, dim]; the result has scores unless the index is `known`."""
        raise NotImplementedError

    def scores(self, queries: NDArray[Any]) -> NDArray[Any]:
        """Score all documents by the codes of the index, float32 [n_queries, n_docs]; larger is nearer.

        Called only for an index that is known and not lossless.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Describe the index for run.json: "name", "library", and its size in "bytes", None if unknown."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what it holds outside of memory."""
