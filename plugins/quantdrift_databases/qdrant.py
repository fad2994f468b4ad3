"""Qdrant's engine in this process (Qdrant Edge): a graph over vectors, or over codes of them."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantdrift.parts import Engine, Order, Package, UnsupportedError
from quantdrift_databases.database import LIMIT, Database, Hits

_STORED = {
    "float": "float32, in a graph",
    "int8": "a byte a number, in a graph",
    "binary": "a bit a number, in a graph",
    "product": "product codes, in a graph",
    "turbo": "bits after a rotation (TurboQuant), in a graph",
}


class Qdrant(Database):
    """A shard with every vector in the graph: one segment, built in one thread."""

    package, modules = "qdrant-edge-py", ("qdrant_edge",)

    def __init__(self, order: Order) -> None:
        if order.word != "float":
            self.varies = "documents with equal codes come in any order"
            usual = int(order.word == "binary" or "oversampling" in order.asked)  # Qdrant's own default
            self.rescores = order.asked.get("rescore", usual) > 0
        if order.word == "binary" and order.similarity == "euclidean" and not self.rescores:
            raise UnsupportedError("Qdrant gives no distances from bits alone; leave +search=rescore=0 out")
        super().__init__(order)

    def fill(self, folder: Path) -> None:
        """Write the vectors, and index all of them; by default small segments are not indexed."""
        import qdrant_edge as edge

        order, built = self.order, self.order.built
        codes = {
            "int8": lambda: edge.ScalarQuantizationConfig(edge.ScalarType.Int8),
            "binary": edge.BinaryQuantizationConfig,
            "product": lambda: edge.ProductQuantizationConfig(
                getattr(edge.CompressionRatio, f"X{built.get('compression', 16)}")
            ),
            "turbo": lambda: edge.TurboQuantQuantizationConfig(
                bits=getattr(edge.TurboQuantBitSize, f"Bits{built['bits']}") if "bits" in built else None
            ),
        }.get(order.word, lambda: None)()
        distance = {"cosine": "Cosine", "dot": "Dot"}.get(order.similarity, "Euclid")
        graph = edge.HnswIndexConfig(built.get("m", 16), built.get("ef_construct", 100), 1, max_indexing_threads=1)
        config = edge.EdgeConfig(
            vectors=edge.EdgeVectorParams(
                order.documents.shape[1], getattr(edge.Distance, distance), quantization_config=codes, hnsw_config=graph
            ),
            optimizers=edge.EdgeOptimizersConfig(indexing_threshold=1, default_segment_number=1),
        )
        self._edge, self._shard = edge, edge.EdgeShard.create(str(folder), config)
        self.opened.callback(self._shard.close)
        for start, chunk in order.chunks(1000):
            points = [edge.Point(id=start + row, vector=vector.tolist()) for row, vector in enumerate(chunk)]
            self._shard.update(edge.UpdateOperation.upsert_points(points))
        self._shard.optimize()
        if (indexed := self._shard.info().indexed_vectors_count) != self.n_docs:
            raise RuntimeError(f"it indexed {indexed:,} of {self.n_docs:,} vectors")

    def ask(self, query: NDArray[np.float32], k: int, *, exhaustive: bool = False) -> Hits:
        """Search; an exhaustive search has room for every document, and does not rescore."""
        edge, asked = self._edge, {"hnsw_ef": self.n_docs, "rescore": 0} if exhaustive else self.order.asked
        rescore, more = asked.get("rescore"), asked.get("oversampling")
        how = edge.QuantizationSearchParams(
            rescore=None if rescore is None else bool(rescore), oversampling=None if more is None else float(more)
        )
        params = edge.SearchParams(hnsw_ef=asked.get("hnsw_ef"), quantization=how)
        nearest = edge.QueryRequest(query=edge.Query.Nearest(query.tolist()), limit=k, params=params)
        found = self._shard.query(nearest)
        sign = -1.0 if self.order.similarity == "euclidean" else 1.0
        return [hit.id for hit in found], [sign * hit.score for hit in found]


ENGINE = Engine(
    what="Qdrant, its engine in this process",
    build=Qdrant,
    packages=(
        Package(
            name="qdrant-edge-py", module="qdrant_edge", extra="qdrant", note="Qdrant's engine, +index=qdrant:int8"
        ),
    ),
    words=_STORED,
    built={"m": (2, 256), "ef_construct": (4, 1 << 12), "compression": (4, 64), "bits": (1, 4)},
    asked={"limit": LIMIT, "hnsw_ef": (1, 1 << 16), "rescore": (0, 1), "oversampling": (1, 100)},
)
