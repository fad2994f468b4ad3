"""A collection of a Qdrant server, over its HTTP interface; a key is in QDRANT_API_KEY, for QDRANT_URL."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.parts import KeyNames
from quantdrift_databases.collection.place import IDS, Place, Reader, only
from quantdrift_databases.collection.service import PACKAGES, Service, over_http

_METRICS = {"Cosine": "cosine", "Dot": "dot", "Euclid": "euclidean"}
_PAGE = 1000
KEYS = KeyNames(key="QDRANT_API_KEY", address="QDRANT_URL")


class OnServer(Service):
    """A collection whose points have the documents' ids, or name them in their payload."""

    library = "Qdrant, over HTTP"

    def __init__(self, place: Place) -> None:
        super().__init__(place, place.at, keys=KEYS, header="api-key")
        self._path, self._using = f"/collections/{place.name}", dict[str, str]()
        about = self._asked("GET", "")
        vectors = about["config"]["params"]["vectors"]
        if "size" not in vectors:  # vectors that have names
            name, vectors = only(vectors, place)
            self._using = {"using": name}
        self.dim, self.count = int(vectors["size"]), int(about["points_count"])
        self.metric = _METRICS.get(vectors["distance"], str(vectors["distance"]))
        first = self._asked("POST", "/points/scroll", {"limit": 1, "with_payload": True})["points"]
        payload = (first[0].get("payload") or {}) if first else {}
        self._field = next((field for field in IDS if field in payload), None)
        self._payload = {"with_payload": False if self._field is None else [self._field]}

    def _asked(self, method: str, path: str, body: Any = None) -> Any:
        return self.asked(method, f"{self._path}{path}", body)["result"]

    def _id(self, point: Any) -> str:
        return str(point["id"] if self._field is None else point["payload"][self._field])

    def ids(self) -> Iterator[str]:
        """Ids of all documents, a page at a time."""
        listed, at = 0, dict[str, Any]()
        while listed <= self.count:  # pages may be smaller than asked for, but not without end
            page = self._asked("POST", "/points/scroll", {"limit": _PAGE, **self._payload, **at})
            yield from map(self._id, page["points"])
            listed += max(1, len(page["points"]))
            if page.get("next_page_offset") is None:
                return
            at = {"offset": page["next_page_offset"]}

    def ask(self, query: NDArray[np.float32], k: int) -> tuple[Sequence[str], Sequence[float]]:
        """What a search finds, set as the collection is."""
        body = {"query": query.tolist(), "limit": k, **self._payload, **self._using}
        points = self._asked("POST", "/points/query", body)["points"]
        sign = -1.0 if self.metric == "euclidean" else 1.0
        return [self._id(point) for point in points], [sign * float(point["score"]) for point in points]


READER = Reader(what="URL#COLLECTION of a Qdrant server", accepts=over_http(), open=OnServer, packages=PACKAGES)
