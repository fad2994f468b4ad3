"""Search an existing collection in place of an index of the data's embeddings."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.parts import DEFAULT_LIMIT, Found, SearchIndex, Similarity, Stored, UnsupportedError, VectorStage, clean
from quantdrift_databases.collection.place import Held, Place, Reader, read_place, reader_of
from quantdrift_databases.database import checked, refusing

_LARGE = 0.1
"""Largest share of ids on one side alone; with more, the collection is not one of these data."""


class NamedCollection(VectorStage):
    """The collection that `+collection=` names."""

    def index(self, stored: Stored, similarity: Similarity) -> SearchIndex:
        """Open the collection, and compare it with the data."""
        place = read_place(self.scheme.option("collection", ""))
        if not stored.ids:
            raise UnsupportedError("a collection needs the ids of documents, which this harness does not give")
        return Asked(place, reader_of(place), stored.ids, int(stored.documents.shape[1]), similarity)


class Asked(SearchIndex):
    """A collection whose answers are matched to the documents of the data by their ids."""

    lossless = known = False

    def __init__(self, place: Place, reader: Reader, ids: Sequence[str], dim: int, similarity: Similarity) -> None:
        self._name, self._positions = str(place), {name: position for position, name in enumerate(ids)}
        self.returns = place.limit or DEFAULT_LIMIT
        self._strange = self._short = 0
        with refusing(self._name, "to open it"):
            self._held: Held = reader.open(place)
        try:
            self._on_ids = self._compared(dim)
            self._similar = _reading(self._held.metric, similarity, self._name)
        except BaseException:
            self._held.close()
            raise

    def close(self) -> None:
        """Close the collection."""
        self._held.close()

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]  # it grows with every search
        """Remarks for the run."""
        name, strange = self._name, self._strange
        notes = {
            f"{name} was asked for {self.returns} documents a query; #NAME,limit=N asks for others": True,
            **dict.fromkeys(self._on_ids, True),
            f"{strange:,} answers of {name} are documents that are not in the data, and were left out": strange,
            f"{name} returned fewer documents than asked for in {self._short:,} searches": self._short,
        }
        return tuple(note for note, holds in notes.items() if holds)

    def search(self, queries: NDArray[Any], k: int) -> Found:
        """Search the collection, and return positions."""
        wanted, n_docs = min(k, self._held.count), len(self._positions)
        positions = np.full((len(queries), k), -1, dtype=np.int64)
        scores = np.full((len(queries), k), np.nan, dtype=np.float32)
        for row, query in enumerate(queries):
            with refusing(self._name, "a search"):
                names, values = self._held.ask(query, wanted)
            # a document that is not in the data gets a number above theirs
            ids = [self._positions.get(str(name), n_docs + names.index(name)) for name in names]
            values = self._similar(np.asarray(values, dtype=np.float32))
            numbers, values = checked(ids, values, n_docs + len(names), wanted, what=self._name)
            kept = (numbers >= 0) & (numbers < n_docs)
            self._strange += int((numbers >= n_docs).sum())
            self._short += len(names) < wanted
            positions[row, : kept.sum()], scores[row, : kept.sum()] = numbers[kept], values[kept]
        return Found(positions, scores)

    def describe(self) -> dict[str, Any]:
        """Describe the collection for run.json."""
        held = self._held
        as_engines = {"name": self._name, "search": None, "library": held.library, "bytes": None}
        return {**as_engines, "documents": held.count, "metric": held.metric}

    def _compared(self, dim: int) -> tuple[str, ...]:
        """Compare the collection with the data: small differences become notes, large ones an error."""
        held, name, n_docs = self._held, self._name, len(self._positions)
        if held.dim != dim:
            raise UnsupportedError(
                f"{name} has vectors of {held.dim:,} numbers, and the model makes {dim:,}; expected the collection of "
                "this model, or +dim= with it"
            )
        if held.count > n_docs * (1 + 2 * _LARGE) + 1:  # too many documents, whatever their ids
            n_missing, n_strange, examples = n_docs, held.count - n_docs, list[str]()
        else:
            with refusing(name, "to list its ids"):
                names = {*map(str, held.ids())}
            n_missing, examples = len(self._positions.keys() - names), sorted(names - self._positions.keys())
            n_strange = len(examples)
        told = {
            f"{name} lacks {n_missing:,} of the {n_docs:,} documents of the data": n_missing,
            f"{name} has {n_strange:,} documents that are not in the data"
            + (f" (first {clean(', '.join(examples[:4]))[:200]})" if examples else ""): n_strange,
        }
        said = tuple(line for line, holds in told.items() if holds)
        if max(n_missing, n_strange) > _LARGE * n_docs:
            raise UnsupportedError(f"{'; '.join(said)}: expected a collection of these data, by their document ids")
        return said


def _reading(metric: str, similarity: Similarity, name: str) -> Any:
    """A function from scores of the collection's metric to scores of the model's similarity."""
    if metric == similarity or (similarity is Similarity.COSINE and metric in {"cosine", "dot"}):
        return lambda scores: scores
    if similarity is Similarity.COSINE and metric == "euclidean":
        return lambda distances: 1 - np.square(distances) / 2  # of vectors of length 1
    raise UnsupportedError(
        f"{name} compares by {metric}, and the model by {similarity}, which orders documents otherwise; expected a "
        f"collection of {similarity}"
    )
