"""usearch: a graph over the documents as they are stored."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.extras import version_of
from quantdrift.base.registry import Package
from quantdrift.engine.scoring.indexes import Found, SearchIndex
from quantdrift.features.index.engine import Engine, Order

_KINDS = {None: "f32", "fp16": "f16", "bf16": "bf16", "int8": "i8", "binary": "b1", "ubinary": "b1"}
"""Precision to usearch's name of it."""
_SETTING = re.compile(r"(expansion|expansion_add)=([0-9]+)")


class Usearch(SearchIndex):
    """A graph of usearch."""

    def __init__(self, order: Order) -> None:
        match = re.fullmatch(r"usearch([1-9][0-9]{0,2})?", order.name, re.IGNORECASE)
        parsed = [_SETTING.fullmatch(setting) for setting in order.search.split(",")] if order.search else []
        if match is None or not all(parsed):
            raise UnsupportedError(
                "usearch is written +index=usearch, or with its connectivity, +index=usearch32, and set by "
                f"+search=expansion=64 or expansion_add=128; got +index={order.name}"
                + (f"+search={order.search}" if order.search else "")
            )
        if order.precision not in _KINDS:
            raise UnsupportedError(f"+index=usearch holds no {order.precision}; expected +emb=int8, or faiss")
        from usearch.index import Index

        self._told = {"name": order.name, "search": order.search}
        given = {match_[1]: int(match_[2]) for match_ in parsed if match_}
        self._kind = _KINDS[order.precision]
        similar = "l2sq" if order.similarity == "euclidean" else "ip"
        self._graph: Any = Index(
            ndim=int(order.documents.shape[1]),
            metric="hamming" if self._kind == "b1" else similar,
            dtype=self._kind,
            connectivity=int(match[1]) if match[1] else None,
            expansion_add=given.get("expansion_add"),
            expansion_search=given.get("expansion"),
        )
        self._graph.add(np.arange(len(order.documents)), self._of(order.documents), threads=1)

    def _of(self, vectors: NDArray[Any]) -> NDArray[Any]:
        """Vectors as usearch takes them: bits of -1 and 1 in bytes [n, dim / 8 rounded up]."""
        if self._kind == "b1":
            return np.packbits(vectors > 0, axis=1)
        return vectors.astype(np.int8) if self._kind == "i8" else vectors

    def search(self, queries: NDArray[Any], k: int) -> Found:
        """What the index finds."""
        matches = self._graph.search(self._of(queries), min(k, len(self._graph)), threads=1)
        positions = np.atleast_2d(np.asarray(matches.keys)).astype(np.int64)
        counts = np.reshape(getattr(matches, "counts", positions.shape[1]), (-1, 1))
        return Found(np.where(np.arange(positions.shape[1]) < counts, positions, -1))

    def describe(self) -> dict[str, Any]:
        """Describe the index for run.json."""
        size = int(self._graph.serialized_length)
        return {**self._told, "library": f"usearch {version_of('usearch')}", "bytes": size}


ENGINE = Engine(
    what="usearch: a graph over what +emb= stores",
    build=Usearch,
    packages=(Package(name="usearch", module="usearch", extra="usearch", note="approximate indexes, +index=usearch"),),
    codes=True,
    reads=lambda index: index.lower().startswith("usearch"),
)
