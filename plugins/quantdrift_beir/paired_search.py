"""Two searches of beir's as one: what the second changes against the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beir.retrieval.search.base import BaseSearch  # type: ignore[import-untyped]  # ships no types

from quantdrift.errors import DataError
from quantdrift.measurement.record import now
from quantdrift_beir.own_search import drift_of_lists
from quantdrift_beir.pairs import held_pair
from quantdrift_beir.record import made_by_two
from quantdrift_beir.results import PairedResults, Results, say

__all__ = ["PairedSearch"]

REFERENCE = "reference"
"""Folder, beside the candidate's files, of the reference's embeddings."""


class PairedSearch(BaseSearch):  # type: ignore[misc]  # its type is not known
    """A search that runs two others, and gives the second one's results with the drift.

    What the two return is compared. Where their lists are shorter than the corpus, epsilon and S
    are lower bounds, and metrics say so.

    Attributes:
        reference: the search that answers are compared with.
        candidate: the search whose answers are returned.
        names: of the two, for records.
        results: of the last search.
    """

    def __init__(
        self, reference: Any, candidate: Any, *, names: tuple[str, str] | None = None
    ) -> None:
        """Join two searches.

        Args:
            reference: a search of beir's.
            candidate: a search of beir's, which may be of another kind.
            names: of the two, for records; those of their models or classes if not given.
        """
        self.reference, self.candidate = reference, candidate
        self.names = names or (_name_of(reference), _name_of(candidate))
        self.results: Mapping[str, Any] = {}
        self._data: tuple[Any, Any] | None = None

    @property
    def _shown(self) -> bool:
        return bool(getattr(self.candidate, "show_progress_bar", True))

    def search(
        self,
        corpus: Mapping[str, Mapping[str, str]],
        queries: Mapping[str, str],
        top_k: int,
        *args: Any,
        **kwargs: Any,
    ) -> PairedResults:
        """Run both searches.

        Args:
            corpus: id to document.
            queries: id to text.
            top_k: documents per query.
            args: passed on to both, as are others by name.
            kwargs: likewise.

        Returns:
            The candidate's results, with the drift.

        Raises:
            RunError: nothing was found, or a score is not finite.
        """
        started = now()
        found = []
        for one in (self.reference, self.candidate):
            results = one.search(corpus, queries, top_k, *args, **kwargs)
            # a copy: one search object, or a dict that both fill, may be behind the two
            found.append({query: dict(results.get(query, {})) for query in queries})
        return self._joined(found, corpus, queries, started)

    def encode(  # noqa: PLR0917 -- beir's own signature
        self,
        corpus: Mapping[str, Mapping[str, str]],
        queries: Mapping[str, str],
        encode_output_path: str = "./embeddings/",
        overwrite: bool = False,
        query_filename: str = "queries.pkl",
        corpus_filename: str = "corpus.*.pkl",
        **kwargs: Any,
    ) -> None:
        """Write the embeddings of both, the reference's into a folder `reference` below.

        Args:
            corpus: id to document.
            queries: id to text.
            encode_output_path: folder of the candidate's files.
            overwrite: whether files that are there are made anew.
            query_filename: of the queries' embeddings.
            corpus_filename: of the documents', `*` being a number.
            kwargs: passed on to both.
        """
        self._data = (corpus, queries)
        for one, folder in (
            (self.reference, Path(encode_output_path) / REFERENCE),
            (self.candidate, Path(encode_output_path)),
        ):
            one.encode(
                corpus,
                queries,
                encode_output_path=str(folder),
                overwrite=overwrite,
                query_filename=query_filename,
                corpus_filename=corpus_filename,
                **kwargs,
            )

    def search_from_files(
        self,
        query_embeddings_file: str,
        corpus_embeddings_files: Sequence[str],
        top_k: int,
        **kwargs: Any,
    ) -> PairedResults:
        """Search the files that `encode` wrote.

        Args:
            query_embeddings_file: the candidate's.
            corpus_embeddings_files: the candidate's.
            top_k: documents per query.
            kwargs: passed on to both.

        Returns:
            The candidate's results, with the drift.

        Raises:
            DataError: `encode` was not called before.
            RunError: nothing was found, or a score is not finite.
        """
        if self._data is None:
            raise DataError("expected encode(corpus, queries, ...) before search_from_files(...)")
        started = now()
        found = []
        for one, below in ((self.reference, REFERENCE), (self.candidate, "")):
            files = [
                str(Path(file).parent / below / Path(file).name)
                for file in (query_embeddings_file, *corpus_embeddings_files)
            ]
            results = one.search_from_files(
                query_embeddings_file=files[0],
                corpus_embeddings_files=files[1:],
                top_k=top_k,
                **kwargs,
            )
            found.append({query: dict(scores) for query, scores in results.items()})
        return self._joined(found, *self._data, started)

    def _joined(
        self, found: list[Results], corpus: Any, queries: Any, started: str
    ) -> PairedResults:
        reading = {"search": [type(one).__name__ for one in (self.reference, self.candidate)]}
        made = made_by_two(*self.names, reading=reading, started=started)
        drift = drift_of_lists(found[0], found[1], corpus, queries, made)
        say(made.spec, drift.evidence, shown=self._shown)
        self.results = PairedResults(found[1], drift)
        return self.results


def _name_of(search: Any) -> str:
    pair = held_pair(search)
    return type(search).__name__ if pair is None else str(pair.spec)
