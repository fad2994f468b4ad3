"""A table of LanceDB, in a folder."""

from collections.abc import Iterator
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from quantdrift_databases import lancedb as engine
from quantdrift_databases.collection.place import Place, Reader, field_of_ids, only
from quantdrift_databases.database import Hits, nearness


class InFolder:
    """A table with a column of ids and one of vectors, searched by its index as it is."""

    def __init__(self, place: Place) -> None:
        import lancedb
        import pyarrow as pa

        self._table = table = lancedb.connect(str(place.folder)).open_table(place.name)
        self._field = field_of_ids(table.schema.names, place)
        vectors = {column.name: column.type for column in table.schema if pa.types.is_fixed_size_list(column.type)}
        self._column, kind = only(vectors, place)
        self.dim = int(kind.list_size)
        self.count, self.library = int(table.count_rows()), f"lancedb {version('lancedb')}"
        indexed = [index.name for index in table.list_indices() if self._column in index.columns]
        stats = table.index_stats(indexed[0]) if indexed else None
        self._distance = "l2" if stats is None else stats.distance_type  # LanceDB's own default
        self.metric = {"l2": "euclidean"}.get(self._distance, self._distance)

    def ids(self) -> Iterator[str]:
        """Ids of all documents."""
        for batch in self._table.search().select([self._field]).to_batches():
            yield from map(str, batch[self._field].to_pylist())

    def ask(self, query: NDArray[np.float32], k: int) -> Hits:
        """What a search finds."""
        search = self._table.search(query, vector_column_name=self._column).distance_type(self._distance)
        found = search.limit(k).select([self._field, "_distance"]).to_arrow()
        scores = nearness(found["_distance"].to_numpy(), euclidean=self._distance == "l2")
        return list(map(str, found[self._field].to_pylist())), scores

    def close(self) -> None:
        """Nothing is held open."""


READER = Reader(
    what="FOLDER#TABLE of LanceDB",
    accepts=lambda place: (place.folder / f"{place.name}.lance").is_dir(),
    open=InFolder,
    packages=engine.ENGINE.packages,
)
