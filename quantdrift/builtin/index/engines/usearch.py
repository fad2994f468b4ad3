"""usearch: a graph over the documents as they are stored."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.extras import version_of
from quantdrift.base.registry import Package
from quantdrift.builtin.index.engine import Engine, Order, read_numbers
from quantdrift.scoring.indexes import Found, SearchIndex

_KINDS = {None: "f32", "fp16": "f16", "bf16": "bf16", "int8": "i8", "binary": "b1", "ubinary": "b1"}
"""Precision to usearch's name of it."""
_SEARCH = {"expansion": (1, 1 << 16), "expansion_add": (1, 1 << 16)}
_CONNECTIVITY = (2, 256)


class Usearch(SearchIndex):
    """A graph of usearch."""

    def __init__(self, order: Order) -> None:
        connectivity, given = _read(order.name, order.search)
        if order.precision not in _KINDS:
            raise UnsupportedError(f"+index=usearch holds no {order.precision}; expected +emb=int8, or faiss")
        from usearch.index import Index

        self._told = {"name": order.name, "search": order.search}
        self._kind = _KINDS[order.precision]
        similar = "l2sq" if order.similarity == "euclidean" else "ip"
        self._graph: Any = Index(
            ndim=int(order.documents.shape[1]),
            metric="hamming" if self._kind == "b1" else similar,
            dtype=self._kind,
            connectivity=connectivity,
            expansion_add=given.get("expansion_add"),
            expansion_search=given.get("expansion"),
        )
        self._graph.add(np.arange(len(order.documents)), self._of(order.documents), threads=1)

    def _of(self, vectors: NDArray[Any]) -> NDArray[Any]:
        """Return vectors as usearch takes them: bits of -1 and 1 in bytes [n, dim / 8 rounded up]."""
        if self._kind == "b1":
            return np.packbits(vectors > 0, axis=1)
        return vectors.astype(np.int8) if self._kind == "i8" else vectors

    def search(self, queries: NDArray[Any], k: int) -> Found:
        """Search the index."""
        matches = self._graph.search(self._of(queries), min(k, len(self._graph)), threads=1)
        positions = np.atleast_2d(np.asarray(matches.keys)).astype(np.int64)
        counts = np.reshape(getattr(matches, "counts", positions.shape[1]), (-1, 1))
        return Found(np.where(np.arange(positions.shape[1]) < counts, positions, -1))

    def describe(self) -> dict[str, Any]:
        """Describe the index for run.json."""
        size = int(self._graph.serialized_length)
        return {**self._told, "library": f"usearch {version_of('usearch')}", "bytes": size}


def _read(name: str, search: str | None) -> tuple[int | None, dict[str, int]]:
    """Read the connectivity from a name, and the numbers of the search."""
    match = re.fullmatch(r"usearch([0-9]{1,9})?", name, re.IGNORECASE)
    least, most = _CONNECTIVITY
    if match is None or not least <= int(match[1] or least) <= most:
        raise UnsupportedError(
            f"+index={name}: usearch is written +index=usearch, or with its connectivity, {least} to {most}, as "
            "+index=usearch32"
        )
    return int(match[1]) if match[1] else None, read_numbers(f"+search={search}", search, _SEARCH)


def _wider(name: str, search: str | None) -> str:
    """Return the `+search=` of four times as many candidates; usearch' default is 64."""
    given = _read(name, search)[1]
    return ",".join(f"{key}={value}" for key, value in {**given, "expansion": 4 * given.get("expansion", 64)}.items())


ENGINE = Engine(
    what="usearch: a graph over what +emb= stores",
    build=Usearch,
    packages=(Package(name="usearch", module="usearch", extra="usearch", note="approximate indexes, +index=usearch"),),
    codes=True,
    check=_read,
    wider=_wider,
    reads=lambda index: index.lower().startswith("usearch"),
)
