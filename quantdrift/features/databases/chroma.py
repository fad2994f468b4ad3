"""Chroma, embedded: a graph over float32, beside what was added last, which it compares one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.registry import Package
from quantdrift.features.databases.database import Database, Hits
from quantdrift.features.index.engine import Engine


class Chroma(Database):
    """A collection with embeddings that are given to it."""

    package, modules = "chromadb", ("chromadb",)
    varies = "it builds its graph in the background, without a seed"
    stored = "float32, in a graph"

    def fill(self, folder: Path) -> None:
        """Add the vectors, as many at a time as it takes."""
        import chromadb
        from chromadb.config import Settings

        order = self.order
        self._space = {"cosine": "cosine", "dot": "ip"}.get(order.similarity, "l2")
        self._client = chromadb.PersistentClient(str(folder), settings=Settings(anonymized_telemetry=False))
        graph = {"space": self._space, **order.built, **order.asked}
        graph.pop("limit", None)
        self._collection = self._client.create_collection(
            "documents", embedding_function=None, configuration={"hnsw": graph}
        )
        for start, chunk in order.chunks(min(1000, self._client.get_max_batch_size())):
            self._collection.add(ids=[str(start + row) for row in range(len(chunk))], embeddings=chunk)
        if (held := self._collection.count()) != self.n_docs:
            raise RuntimeError(f"it holds {held:,} of {self.n_docs:,} documents")

    def ask(self, query: NDArray[np.float32], k: int, *, exhaustive: bool = False) -> Hits:
        """What a search finds."""
        del exhaustive  # it holds the vectors themselves
        found = self._collection.query(query_embeddings=query[None], n_results=k, include=["distances"])
        distances = np.asarray(found["distances"][0], dtype=np.float32)
        ids = [int(name) if name.isdecimal() else name for name in found["ids"][0]]
        return ids, -np.sqrt(np.maximum(distances, 0)) if self._space == "l2" else 1 - distances

    def stop(self) -> None:
        """Let go of the files."""
        if hasattr(self, "_client"):
            self._client.close()


ENGINE = Engine(
    what="Chroma, embedded",
    build=Chroma,
    packages=(Package(name="chromadb", module="chromadb", extra="chroma", note="Chroma, +index=chroma"),),
    words={"hnsw": Chroma.stored},
    built=("max_neighbors", "ef_construction"),
    asked=("limit", "ef_search"),
)
