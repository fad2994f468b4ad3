"""An index in front of documents, as scoring asks it; `quantdrift.features.index` has those that there are."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray


class SearchIndex:
    """An index over the documents of one arm, which are numbered from 0.

    Attributes:
        lossless: whether it holds the documents as they are stored, so that only its search loses anything.
        notes: what a run should say, one sentence each; read after the last search.
    """

    lossless = True
    notes: tuple[str, ...] = ()

    def search(self, queries: NDArray[Any], k: int) -> NDArray[Any]:
        """Positions int64 [n_queries, k] of documents for queries float32 [n_queries, dim], best first.

        -1 stands where it found fewer.
        """
        raise NotImplementedError

    def scores(self, queries: NDArray[Any]) -> NDArray[Any]:
        """Scores float32 [n_queries, n_docs] of all documents by the codes that it holds; larger is nearer.

        Never asked of an index that is lossless.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Describe the index for run.json."""
        raise NotImplementedError
