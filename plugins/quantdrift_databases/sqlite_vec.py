"""sqlite-vec: an SQLite table that compares a query with every vector, as floats, bytes or bits."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantdrift.parts import Engine, Order, Package, UnsupportedError
from quantdrift_databases.database import LIMIT, Database, Hits

_HELD = {
    "float": ("float32", "?"),
    "int8": ("a byte a number, in steps of 1/127 from -1 to 1", "vec_quantize_int8(?, 'unit')"),
    "bit": ("a bit a number: whether it is above 0", "vec_quantize_binary(?)"),
}
_EQUAL = 1e-3
"""Difference of lengths up to which they count as equal."""
_MOST = 4096
"""Documents that a search of vec0 returns at most."""


class SqliteVec(Database):
    """A virtual table vec0, whose search compares every document, so that only its codes lose accuracy."""

    package, modules = "sqlite-vec", ()

    def __init__(self, order: Order) -> None:
        _, self._made = _HELD[order.word]
        if order.word == "int8" and (largest := float(np.abs(order.documents).max(initial=0))) > 1:
            raise UnsupportedError(
                f"+index={order.name} codes numbers from -1 to 1, and the documents have {largest:.3g}; expected a "
                "model of normalized embeddings"
            )
        if order.word == "bit" and order.documents.shape[1] % 8:
            raise UnsupportedError(f"+index={order.name} takes dimensions in eights; got {order.documents.shape[1]}")
        super().__init__(order)

    def fill(self, folder: Path) -> None:
        """Write the vectors; apsw brings an SQLite that loads extensions, which Python's own may not."""
        import apsw
        import sqlite_vec

        order, dim = self.order, self.order.documents.shape[1]
        self._base = base = apsw.Connection(str(folder / "vectors.sqlite"))
        self.opened.callback(base.close)
        base.enable_load_extension(True)
        base.load_extension(sqlite_vec.loadable_path())
        # vec0 has no inner product; with documents of equal lengths it ranks as the cosine does
        if order.similarity == "dot" and np.ptp(np.linalg.norm(order.documents, axis=1)) > _EQUAL:
            raise UnsupportedError(f"+index={order.name} has no inner product; expected a model of cosine similarity")
        metric = "L2" if order.similarity == "euclidean" else "cosine"
        self._metric = "vec_distance_" + ("hamming" if order.word == "bit" else metric)
        metric = "" if order.word == "bit" else f" distance_metric={metric}"
        base.execute(f"CREATE VIRTUAL TABLE v USING vec0(id INTEGER PRIMARY KEY, e {order.word}[{dim}]{metric})")
        for start, chunk in order.chunks(8192):
            rows = ((start + row, vector.tobytes()) for row, vector in enumerate(chunk))
            with base:
                base.executemany(f"INSERT INTO v(id, e) VALUES (?, {self._made})", rows)

    def ask(self, query: NDArray[np.float32], k: int, *, exhaustive: bool = False) -> Hits:
        """Search; for more documents than vec0 returns, its distances to every row are sorted."""
        if exhaustive or k > _MOST:
            asked = f"SELECT id, {self._metric}(e, {self._made}) AS distance FROM v ORDER BY distance LIMIT ?"
        else:
            asked = f"SELECT id, distance FROM v WHERE e MATCH {self._made} AND k = ? ORDER BY distance"
        found = self._base.execute(asked, (query.astype(np.float32).tobytes(), k)).fetchall()
        return [name for name, _ in found], [-distance for _, distance in found]


ENGINE = Engine(
    what="sqlite-vec, by apsw",
    build=SqliteVec,
    packages=(
        Package(name="sqlite-vec", module="sqlite_vec", extra="sqlite-vec", note="+index=sqlite-vec:int8"),
        Package(name="apsw", module="apsw", extra="sqlite-vec", note="an SQLite that loads extensions"),
    ),
    words={word: stored for word, (stored, _) in _HELD.items()},
    asked={"limit": LIMIT},
)
