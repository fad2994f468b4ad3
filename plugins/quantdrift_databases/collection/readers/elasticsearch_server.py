"""An index of an Elasticsearch server, over HTTP; a key is in ELASTICSEARCH_API_KEY, for ELASTICSEARCH_URL."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.parts import KeyNames, ServerError, UnsupportedError
from quantdrift_databases.collection.place import IDS, Place, Reader, only
from quantdrift_databases.collection.service import PACKAGES, Service, over_http

_AT = "elasticsearch:"
_PAGE, _KEPT = 1000, "1m"
_READ: dict[str, tuple[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]]] = {
    "cosine": ("cosine", lambda scores: 2 * scores - 1),
    "dot_product": ("dot", lambda scores: 2 * scores - 1),
    "max_inner_product": ("dot", lambda scores: np.where(scores < 1, 1 - 1 / scores, scores - 1)),
    "l2_norm": ("euclidean", lambda scores: -np.sqrt(1 / scores - 1)),
}
"""Similarity of a field to a metric, and to what its scores, which are never negative, say by that metric."""
KEYS = KeyNames(key="ELASTICSEARCH_API_KEY", address="ELASTICSEARCH_URL")


class OnServer(Service):
    """An index with one field of vectors, whose documents have the data's ids as their own or in a field."""

    library = "Elasticsearch, over HTTP"

    def __init__(self, place: Place) -> None:
        super().__init__(place, place.at.removeprefix(_AT), keys=KEYS, before="ApiKey ")
        self._path = f"/{place.name}"
        indexes = self.asked("GET", f"{self._path}/_mapping")
        if len(indexes) != 1:
            raise UnsupportedError(f"{place} names {len(indexes)} indexes; expected one")
        fields = next(iter(indexes.values()))["mappings"].get("properties") or {}
        vectors = {name: field for name, field in fields.items() if field.get("type") == "dense_vector"}
        self._vectors, about = only(vectors, place)
        kind, similarity = about.get("element_type", "float"), about.get("similarity", "cosine")
        if kind not in {"float", "bfloat16"} or similarity not in _READ:
            raise UnsupportedError(f"{place} compares vectors of {kind} by {similarity}; expected float by {[*_READ]}")
        self.metric, self._turned = _READ[similarity]
        self.count = int(self.asked("GET", f"{self._path}/_count")["count"])
        if not self.count:
            raise UnsupportedError(f"{place} is empty; expected an index of documents")
        self.dim = int(about["dims"])
        self._field = next((field for field in IDS if field in fields), None)

    def _hits(self, path: str, body: dict[str, Any]) -> list[Any]:
        source = False if self._field is None else {"includes": [self._field]}
        answer = self.asked("POST", path, {**body, "_source": source})
        if answer["timed_out"] or answer["_shards"]["failed"]:  # then it has the hits of the others alone
            raise ServerError(f"{self._place}: a part of the index did not answer in time")
        return list(answer["hits"]["hits"])

    def _id(self, hit: Any) -> str:
        return str(hit["_id"] if self._field is None else hit["_source"][self._field])

    def ids(self) -> Iterator[str]:
        """Ids of all documents, a page at a time, as the index was when the first was asked for."""
        held = {"id": self.asked("POST", f"{self._path}/_pit?keep_alive={_KEPT}")["id"]}
        listed, at = 0, dict[str, Any]()
        while listed <= self.count:  # what a server lists need not end
            body = {"size": _PAGE, "pit": {**held, "keep_alive": _KEPT}, "sort": [{"_shard_doc": "asc"}]}
            if not (hits := self._hits("/_search", {**body, **at})):
                break
            yield from map(self._id, hits)
            listed, at = listed + len(hits), {"search_after": hits[-1]["sort"]}
        self.asked("DELETE", "/_pit", held)

    def ask(self, query: NDArray[np.float32], k: int) -> tuple[Sequence[str], NDArray[np.float64]]:
        """What a search finds; how many candidates it looks at is the server's default."""
        nearest = {"field": self._vectors, "query_vector": query.tolist(), "k": k}
        hits = self._hits(f"{self._path}/_search", {"knn": nearest, "size": k})
        with np.errstate(all="ignore"):  # a score that no search gives becomes no number, which is refused
            return [self._id(hit) for hit in hits], self._turned(np.array([float(hit["_score"]) for hit in hits]))


READER = Reader(
    what=f"{_AT}URL#INDEX of an Elasticsearch server", accepts=over_http(_AT), open=OnServer, packages=PACKAGES
)
