"""Milvus Lite: Milvus' interface in this process, over indexes of faiss."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantdrift.parts import Engine, Package, UnsupportedError
from quantdrift_databases.database import LIMIT, Database, Hits

_STORED = {
    "HNSW": "float32, in a graph",
    "IVF_SQ8": "a byte a number",
    "HNSW_SQ": "a byte a number, in a graph",
    "IVF_FLAT": "float32",
    "FLAT": "float32",
}
_NAME = "documents"
_MOST = 16_384
"""Documents that a search of Milvus returns at most; Milvus Lite has no such limit."""


class Milvus(Database):
    """A collection that is loaded with its index; before that, Milvus Lite silently compares every vector."""

    package, modules = "milvus-lite", ("milvus_lite", "pymilvus")

    def fill(self, folder: Path) -> None:
        """Write the vectors into segments, and load each segment with its index."""
        from milvus_lite.server_manager import server_manager_instance
        from pymilvus import DataType, MilvusClient

        order, word, path = self.order, self.order.word, str(folder / "milvus.db")
        self._client = client = MilvusClient(path)
        self.opened.callback(server_manager_instance.release_server, path)  # it runs in a thread
        self.opened.callback(client.close)
        schema = client.create_schema(auto_id=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=order.documents.shape[1])
        client.create_collection(_NAME, schema=schema)
        for start, chunk in order.chunks(1000):
            client.insert(_NAME, [{"id": start + row, "vector": vector} for row, vector in enumerate(chunk)])
        client.flush(_NAME)
        self._metric = {"cosine": "COSINE", "dot": "IP"}.get(order.similarity, "L2")
        index = client.prepare_index_params()
        index.add_index("vector", index_type=word, metric_type=self._metric, params=dict(order.built))
        client.create_index(_NAME, index)
        client.release_collection(_NAME)
        client.load_collection(_NAME)  # builds what a search uses, or raises
        data, made = (len(list(folder.rglob(suffix))) for suffix in ("data_*.parquet", f"*.{word.lower()}.idx"))
        if data != made:
            raise RuntimeError(f"it made an index of {made} of {data} segments")

    def ask(self, query: NDArray[np.float32], k: int, *, exhaustive: bool = False) -> Hits:
        """Search; an exhaustive search probes all lists, with room for every document."""
        if k > _MOST:
            raise UnsupportedError(f"Milvus returns {_MOST:,} documents at most, and {k:,} are asked for")
        params = self.asked if not exhaustive else {"nprobe": self.n_docs, "ef": self.n_docs}
        found = self._client.search(
            _NAME, data=[query], limit=k, anns_field="vector", search_params={"params": params}
        )[0]
        scores = np.array([hit["distance"] for hit in found])
        return [hit["id"] for hit in found], -np.sqrt(np.maximum(scores, 0)) if self._metric == "L2" else scores


ENGINE = Engine(
    what="Milvus Lite, in this process",
    build=Milvus,
    packages=(
        Package(name="pymilvus", module="pymilvus", extra="milvus", note="Milvus' client, +index=milvus:HNSW"),
        Package(name="milvus-lite", module="milvus_lite", extra="milvus", note="Milvus in this process"),
    ),
    words=_STORED,
    built={"nlist": (1, 1 << 16), "M": (2, 256), "efConstruction": (1, 1 << 12)},
    asked={"limit": LIMIT, "nprobe": (1, 1 << 16), "ef": (1, 1 << 16)},
)
