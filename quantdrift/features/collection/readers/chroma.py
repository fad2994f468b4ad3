"""A collection of Chroma, in a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.extras import version_of
from quantdrift.features.collection.place import Place, Reader
from quantdrift.features.index.engine import ENGINES

_PAGE = 1000


class InFolder:
    """A collection whose ids are the documents'; nothing that it was set to embed with is loaded."""

    def __init__(self, place: Place) -> None:
        import chromadb
        from chromadb.config import Settings

        self._client = chromadb.PersistentClient(str(place.folder), settings=Settings(anonymized_telemetry=False))
        self._collection = self._client.get_collection(place.name, embedding_function=None)
        self.count, self.library = self._collection.count(), f"chromadb {version_of('chromadb')}"
        first = self._collection.peek(1)["embeddings"]
        if not len(first):
            raise UnsupportedError(f"{place.at}#{place.name} is empty; expected a collection of documents")
        self.dim = len(first[0])
        graph = self._collection.configuration.get("hnsw") or {}
        self.metric = {"l2": "euclidean", "ip": "dot"}.get(graph.get("space", "l2"), "cosine")

    def ids(self) -> Iterator[str]:
        """Ids of all documents, a page at a time."""
        for start in range(0, self.count, _PAGE):
            yield from self._collection.get(limit=_PAGE, offset=start, include=[])["ids"]

    def ask(self, query: NDArray[np.float32], k: int) -> tuple[Sequence[str], Sequence[float]]:
        """What a search finds."""
        found = self._collection.query(query_embeddings=query[None], n_results=k, include=["distances"])
        distances = np.asarray(found["distances"][0], dtype=np.float32)
        scores = -np.sqrt(np.maximum(distances, 0)) if self.metric == "euclidean" else 1 - distances
        return found["ids"][0], scores.tolist()

    def close(self) -> None:
        """Let go of the files."""
        self._client.close()


READER = Reader(
    what="FOLDER#COLLECTION of Chroma",
    accepts=lambda place: not place.on_server and (place.folder / "chroma.sqlite3").is_file(),
    open=InFolder,
    packages=ENGINES["chroma"].packages,
)
