"""A collection of a Weaviate server, over REST and GraphQL; a key is in WEAVIATE_API_KEY, for WEAVIATE_URL."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.parts import KeyNames, UnsupportedError
from quantdrift_databases.collection.place import IDS, Place, Reader, only
from quantdrift_databases.collection.service import PACKAGES, Service, over_http
from quantdrift_databases.database import nearness

_AT = "weaviate:"
_PAGE = 1000
_METRICS = {"cosine": "cosine", "dot": "dot", "l2-squared": "euclidean"}
KEYS = KeyNames(key="WEAVIATE_API_KEY", address="WEAVIATE_URL")


class OnServer(Service):
    """A collection with one vector an object, whose objects name the documents in a property, or by their own ids."""

    library = "Weaviate, over HTTP"

    def __init__(self, place: Place) -> None:
        super().__init__(place, place.at.removeprefix(_AT), keys=KEYS, before="Bearer ")
        self._name = place.name
        about = self.asked("GET", f"/v1/schema/{self._name}")
        name, vectors = "", about
        if about.get("vectorConfig"):  # vectors that have names
            name, vectors = only(about["vectorConfig"], place)
        distance = vectors["vectorIndexConfig"]["distance"]
        self.metric = _METRICS.get(distance, str(distance))
        self._target = f", targetVectors: [{json.dumps(name)}]" if name else ""
        names = {field["name"] for field in about.get("properties") or ()}
        self._field = next((field for field in IDS if field in names), "")
        self.count = int(self._asked("Aggregate", "", "meta { count }")[0]["meta"]["count"])
        first = self._get("limit: 1", f"vectors {{ {name} }}" if name else "vector")
        if not first:
            raise UnsupportedError(f"{place} is empty; expected a collection of documents")
        held = first[0]["_additional"]
        self.dim = len(held["vectors"][name] if name else held["vector"])

    def _asked(self, kind: str, arguments: str, fields: str) -> list[Any]:
        query = f"{{ {kind} {{ {self._name}{arguments} {{ {fields} }} }} }}"
        answer = self.asked("POST", "/v1/graphql", {"query": query})
        if answer.get("errors"):  # which come with HTTP 200
            raise self.refused(str(answer["errors"][0]["message"]))
        return list(answer["data"][kind][self._name])

    def _get(self, arguments: str, more: str = "") -> list[Any]:
        return self._asked("Get", f"({arguments})", f"{self._field} _additional {{ id {more} }}")

    def _id(self, found: Any) -> str:
        return str(found[self._field] if self._field else found["_additional"]["id"])

    def ids(self) -> Iterator[str]:
        """Ids of all documents, a page at a time."""
        listed, after = 0, ""
        while listed <= self.count:  # what a server lists need not end
            if not (page := self._get(f"limit: {_PAGE}, after: {json.dumps(after)}")):
                return
            yield from map(self._id, page)
            listed, after = listed + len(page), str(page[-1]["_additional"]["id"])

    def ask(self, query: NDArray[np.float32], k: int) -> tuple[Sequence[str], NDArray[Any]]:
        """What a search finds, set as the collection is."""
        found = self._get(f"limit: {k}, nearVector: {{ vector: {query.tolist()}{self._target} }}", "distance")
        distances = [float(hit["_additional"]["distance"]) for hit in found]
        turned = int(self.metric == "dot")  # its distance is minus the product
        return [self._id(hit) for hit in found], nearness(distances, euclidean=self.metric == "euclidean") - turned


READER = Reader(
    what=f"{_AT}URL#COLLECTION of a Weaviate server", accepts=over_http(_AT), open=OnServer, packages=PACKAGES
)
