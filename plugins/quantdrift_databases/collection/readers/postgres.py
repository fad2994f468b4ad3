"""A table of PostgreSQL with an index of pgvector, asked as its planner has it; user and password are libpq's."""

import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from quantdrift.parts import UnsupportedError, is_loopback
from quantdrift_databases import pgvector
from quantdrift_databases.collection.place import Place, Reader, field_of_ids
from quantdrift_databases.database import Hits

_OF_ADDRESS = ("host", "port", "dbname", "user")
_INDEXES = """SELECT pg_get_indexdef(indexrelid, 1, true), opcname
FROM pg_index JOIN pg_opclass o ON o.oid = indclass[0]
WHERE indrelid = %s::regclass AND indisvalid AND opcname ~ '^(vector|halfvec)_(cosine|ip|l2)_ops$'"""


class Table:
    """A table with a column of ids and one index of vectors."""

    def __init__(self, place: Place) -> None:
        if "password" in place.at:
            raise UnsupportedError("a password in an address ends up in every record; expected it in PGPASSWORD")
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        where = conninfo_to_dict(place.at)
        if strange := sorted(where.keys() - _OF_ADDRESS):  # others name files, programs and further hosts
            raise UnsupportedError(f"{place}: {', '.join(strange)} in an address; expected {', '.join(_OF_ADDRESS)}")
        only, host = "-c default_transaction_read_only=on", where.get("host")
        # an empty one keeps PGPASSWORD, which is for PGHOST alone, but not what PGPASSFILE has for this host
        kept = {} if host in {None, os.environ.get("PGHOST")} else {"password": ""}
        try:
            base = psycopg.connect(
                **where, **kept, **_encrypted(host), autocommit=True, options=only, connect_timeout=10
            )
        except psycopg.OperationalError as error:
            if kept and "password" in str(error):
                raise UnsupportedError(
                    f"{place}: PGPASSWORD goes to the host in PGHOST alone; set PGHOST={host}"
                ) from error
            raise
        self._base = base
        self.library, name = pgvector.version(base), (place.name,)
        (self._table,) = base.execute("SELECT %s::regclass::text", name).fetchone()
        columns = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
        self._id = field_of_ids([column for (column,) in base.execute(columns, name)], place)
        indexes = base.execute(_INDEXES, name).fetchall()
        if len(indexes) != 1:
            raise UnsupportedError(
                f"{place} has {len(indexes)} indexes of vectors by cosine, inner product or distance; expected one"
            )
        held, (kind, compared, _) = indexes[0][0], indexes[0][1].split("_")
        operators = {short: (metric, operator) for metric, (operator, short) in pgvector.OPERATORS.items()}
        self.metric, operator = operators[compared]
        self._distance = f"{held} {operator} %s::{kind}"
        self.count, self.dim = base.execute(f"SELECT count(*), max(vector_dims({held})) FROM {self._table}").fetchone()

    def ids(self) -> Iterator[str]:
        """Ids of all documents, some at a time."""
        with self._base.transaction(), self._base.cursor(name="ids") as cursor:
            yield from (name for (name,) in cursor.execute(f"SELECT {self._id}::text FROM {self._table}"))

    def ask(self, query: NDArray[np.float32], k: int) -> Hits:
        """What a search finds."""
        asked = f"SELECT {self._id}::text, {self._distance} AS distance FROM {self._table} ORDER BY distance LIMIT %s"
        found = self._base.execute(asked, (pgvector.written(query), k)).fetchall()
        return [name for name, _ in found], [(self.metric == "cosine") - distance for _, distance in found]

    def close(self) -> None:
        """Close the connection."""
        self._base.close()


def _encrypted(host: str | None) -> dict[str, str]:
    """Nothing goes to another machine unencrypted, whatever the server says."""
    if host is None or host.startswith("/") or is_loopback(host):  # PGHOST's own, or a socket of this machine
        return {}
    return {} if os.environ.get("PGSSLMODE") in {"require", "verify-ca", "verify-full"} else {"sslmode": "require"}


READER = Reader(
    what="postgresql://HOST/DATABASE#TABLE of pgvector",
    accepts=lambda place: place.at.startswith(("postgresql://", "postgres://")),
    open=Table,
    packages=pgvector.ENGINE.packages[:1],
)
