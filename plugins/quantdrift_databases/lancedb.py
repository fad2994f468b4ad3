"""LanceDB, embedded: inverted files and graphs over codes, stored with the vectors."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.parts import Engine, Order, Package
from quantdrift_databases.database import LIMIT, Database, Hits, nearness

_CONFIGS = {
    "IVF_PQ": ("IvfPq", "product codes"),
    "IVF_HNSW_SQ": ("HnswSq", "a byte a number, in a graph"),
    "IVF_RQ": ("IvfRq", "bits after a rotation (RaBitQ)"),
    "IVF_SQ": ("IvfSq", "a byte a number"),
    "IVF_HNSW_PQ": ("HnswPq", "product codes, in a graph"),
    "IVF_FLAT": ("IvfFlat", "float32"),
    "IVF_HNSW_FLAT": ("HnswFlat", "float32, in a graph"),
}
_ALL = 1 << 16
"""More partitions than an index has."""


class LanceDB(Database):
    """A table of one fragment for each chunk, with an index over all rows."""

    package, modules = "lancedb", ("lancedb",)

    def __init__(self, order: Order) -> None:
        if order.word not in {"IVF_SQ"}:
            self.varies = "it draws where its training and its graphs begin, without a seed"
        self.rescores = "refine_factor" in order.asked and not order.stored.startswith("float32")
        super().__init__(order)

    def fill(self, folder: Path) -> None:
        """Write the vectors, and index them with LanceDB's defaults."""
        os.environ.setdefault("LANCE_CPU_THREADS", "1")
        import lancedb
        import lancedb.index
        import pyarrow as pa

        order, dim = self.order, self.order.documents.shape[1]
        schema = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), dim))])

        def batches() -> Any:
            for start, chunk in order.chunks(8192):
                vectors = pa.FixedSizeListArray.from_arrays(pa.array(chunk.ravel()), dim)
                yield pa.record_batch([pa.array(range(start, start + len(chunk))), vectors], schema=schema)

        self._distance = {"cosine": "cosine", "dot": "dot"}.get(order.similarity, "l2")
        self._table = lancedb.connect(str(folder)).create_table("documents", data=batches(), schema=schema)
        config = getattr(lancedb.index, _CONFIGS[order.word][0])(distance_type=self._distance, **order.built)
        self._table.create_index("vector", config=config, name="made")
        made = self._table.index_stats("made")
        # with too few rows to train on, LanceDB makes an empty index and compares every vector
        if made is None or made.index_type != order.word or made.num_indexed_rows != self.n_docs:
            n, kind = (0, "no index") if made is None else (made.num_indexed_rows, made.index_type)
            raise RuntimeError(f"it indexed {n:,} of {self.n_docs:,} documents by {kind}; codes train on 256 at least")

    def ask(self, query: NDArray[np.float32], k: int, *, exhaustive: bool = False) -> Hits:
        """Search; an exhaustive search probes all partitions, with room for every document."""
        asked = {"nprobes": _ALL, "ef": max(k, self.n_docs)} if exhaustive else self.asked
        search = self._table.search(query, vector_column_name="vector").distance_type(self._distance).limit(k)
        for key, number in asked.items():
            search = getattr(search, key)(number)
        found = search.select(["id", "_distance"]).to_arrow()
        return found["id"].to_pylist(), nearness(found["_distance"].to_numpy(), euclidean=self._distance == "l2")


ENGINE = Engine(
    what="LanceDB, embedded",
    build=LanceDB,
    packages=(Package(name="lancedb", module="lancedb", extra="lancedb", note="LanceDB, +index=lancedb:IVF_PQ"),),
    words={word: stored for word, (_, stored) in _CONFIGS.items()},
    built={
        "num_partitions": (1, 1 << 16),
        "num_sub_vectors": (1, 1 << 12),
        "num_bits": (1, 8),
        "m": (2, 256),
        "ef_construction": (1, 1 << 12),
        "target_partition_size": (1, 1 << 24),
    },
    asked={"limit": LIMIT, "nprobes": (1, 1 << 16), "ef": (1, 1 << 16), "refine_factor": (1, 1000)},
)
