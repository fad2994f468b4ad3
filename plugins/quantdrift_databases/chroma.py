"""Chroma, in a folder: a graph over float32; the vectors that were added last are compared one by one."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.parts import Engine, Package, UnsupportedError
from quantdrift_databases.collection.place import Place, Reader
from quantdrift_databases.database import LIMIT, Database, Hits, nearness

_PAGE = 1000
_METRICS = {"cosine": "cosine", "dot": "ip", "euclidean": "l2"}


def _client(folder: Path) -> Any:
    import chromadb
    from chromadb.config import Settings

    return chromadb.PersistentClient(str(folder), settings=Settings(anonymized_telemetry=False))


def _nearest(collection: Any, query: NDArray[np.float32], k: int, metric: str) -> Hits:
    found = collection.query(query_embeddings=query[None], n_results=k, include=["distances"])
    return found["ids"][0], nearness(found["distances"][0], euclidean=metric == "euclidean")


class Chroma(Database):
    """A collection of given embeddings."""

    package, modules = "chromadb", ("chromadb",)
    varies = "it builds its graph in the background, without a seed"

    def fill(self, folder: Path) -> None:
        """Add the vectors in batches."""
        order, client = self.order, _client(folder)
        self.opened.callback(client.close)
        graph = {"space": _METRICS[order.similarity], **order.built, **self.asked}
        self._collection = client.create_collection("documents", embedding_function=None, configuration={"hnsw": graph})
        for start, chunk in order.chunks(min(_PAGE, client.get_max_batch_size())):
            self._collection.add(ids=[str(start + row) for row in range(len(chunk))], embeddings=chunk)
        if (held := self._collection.count()) != self.n_docs:
            raise RuntimeError(f"it contains {held:,} of {self.n_docs:,} documents")

    def ask(self, query: NDArray[np.float32], k: int, *, exhaustive: bool = False) -> Hits:
        """Search; an exhaustive search is the same, as it compares the vectors themselves."""
        ids, scores = _nearest(self._collection, query, k, self.order.similarity)
        return [int(name) if name.isdecimal() else name for name in ids], scores


class InFolder:
    """A collection with the ids of the documents; its embedding function is not loaded."""

    def __init__(self, place: Place) -> None:
        self._client = _client(place.folder)
        self._collection = self._client.get_collection(place.name, embedding_function=None)
        self.count, self.library = self._collection.count(), f"chromadb {version('chromadb')}"
        first = self._collection.peek(1)["embeddings"]
        if not len(first):
            raise UnsupportedError(f"{place} is empty; expected a collection of documents")
        self.dim = len(first[0])
        space = (self._collection.configuration.get("hnsw") or {}).get("space", "l2")
        self.metric = next(metric for metric, name in _METRICS.items() if name == space)

    def ids(self) -> Iterator[str]:
        """Ids of all documents, a page at a time."""
        for start in range(0, self.count, _PAGE):
            yield from self._collection.get(limit=_PAGE, offset=start, include=[])["ids"]

    def ask(self, query: NDArray[np.float32], k: int) -> Hits:
        """Search."""
        return _nearest(self._collection, query, k, self.metric)

    def close(self) -> None:
        """Close the files."""
        self._client.close()


ENGINE = Engine(
    what="Chroma, embedded",
    build=Chroma,
    packages=(Package(name="chromadb", module="chromadb", extra="chroma", note="Chroma, +index=chroma"),),
    words={"hnsw": "float32, in a graph"},
    built={"max_neighbors": (2, 256), "ef_construction": (1, 1 << 12)},
    asked={"limit": LIMIT, "ef_search": (1, 1 << 16)},
)
READER = Reader(
    what="FOLDER#COLLECTION of Chroma",
    accepts=lambda place: (place.folder / "chroma.sqlite3").is_file(),
    open=InFolder,
    packages=ENGINE.packages,
)
