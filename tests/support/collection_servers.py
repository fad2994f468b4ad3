"""Servers on loopback that answer as vector databases do over HTTP, by exact search, and refuse what these refuse."""

import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from numpy.typing import NDArray

KEY = "secret"
METRICS: dict[str, Any] = {
    "cosine": ("cosine", lambda x: (1 + x) / 2, "cosine", lambda x: 1 - x),
    "dot": ("max_inner_product", lambda x: x + 1 if x >= 0 else 1 / (1 - x), "dot", lambda x: -x),
    "euclidean": ("l2_norm", lambda x: 1 / (1 + x**2), "l2-squared", lambda x: x**2),
}
"""Elasticsearch's name and score of a similarity, and Weaviate's name and distance."""


@dataclass
class Collection:
    """The documents that a server holds, and what it was asked: method, path and body of each request.

    Attributes:
        metric: "cosine", "dot" or "euclidean".
        named: whether the vectors have a name.
        id_field: of the documents' ids; "" where the database's own ids are theirs.
        page: entries that a page has at most.
        changed: parts of answers by path, in place of its own.
    """

    documents: NDArray[np.float32]
    ids: Sequence[str]
    metric: str = "cosine"
    named: bool = False
    id_field: str = ""
    page: int = 150
    changed: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    open: int = 0

    def nearest(self, query: Any, k: int) -> list[tuple[int, float]]:
        """Rows and scores, best first."""
        documents, query = self.documents.astype(np.float64), np.array(query, dtype=np.float64)
        if self.metric == "cosine":
            documents, query = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (documents, query))
        scores = -np.linalg.norm(documents - query, axis=1) if self.metric == "euclidean" else documents @ query
        return [(int(row), float(scores[row])) for row in np.argsort(-scores, kind="stable")[:k]]


def qdrant(held: Collection, method: str, path: str, asked: dict[str, str], body: Any) -> Any:
    """Answer as Qdrant does, whose points have numbers; their payload names the document."""
    del asked

    def point(row: int) -> Any:
        return {"id": 1000 + row, "payload": {"_id": held.ids[row]}}

    if (method, path) == ("GET", "/collections/docs"):
        vectors = {"size": held.documents.shape[1], "distance": "Cosine"}
        params = {"vectors": {"text": vectors} if held.named else vectors}
        return {"result": {"points_count": len(held.ids), "config": {"params": params}}}
    if path.endswith("/points/scroll"):
        start = body.get("offset", 0)
        end = min(len(held.ids), start + min(held.page, body["limit"]))
        return {"result": {"points": [*map(point, range(start, end))], "next_page_offset": end % len(held.ids) or None}}
    if not path.endswith("/points/query") or (held.named and body.get("using") != "text"):
        raise LookupError(404, {"status": {"error": "Not found"}})
    return {"result": {"points": [{**point(row), "score": x} for row, x in held.nearest(body["query"], body["limit"])]}}


def elasticsearch(held: Collection, method: str, path: str, asked: dict[str, str], body: Any) -> Any:
    """Answer as Elasticsearch 9 does, by the formulas of its scores."""

    def bad(reason: str) -> NoReturn:
        raise LookupError(400, {"error": {"type": "parsing_exception", "reason": reason}, "status": 400})

    def answer(hits: list[Any], **more: Any) -> Any:
        return {"timed_out": False, "_shards": {"total": 1, "failed": 0}, "hits": {"hits": hits}, **more}

    def hit(row: int, score: float | None) -> Any:
        source = {"_source": {held.id_field: held.ids[row]}} if body["_source"] == {"includes": [held.id_field]} else {}
        return {"_index": "docs-1", "_id": f"own-{row}" if held.id_field else held.ids[row], "_score": score, **source}

    similarity, scored, _, _ = METRICS[held.metric]
    dim = held.documents.shape[1]
    match method, path:
        case "GET", "/docs/_mapping":
            vector = {"type": "dense_vector", "dims": dim, "index": True, "similarity": similarity}
            fields = {held.id_field or "body": {"type": "keyword"}, "e": vector}
            return {"docs-1": {"mappings": {"properties": fields}}}
        case "GET", "/docs/_count":
            return {"count": len(held.ids), "_shards": {"failed": 0}}
        case "POST", "/docs/_pit":
            held.open += 1 if asked.get("keep_alive") == "1m" else bad("[keep_alive] is required")
            return {"id": "a point in time"}
        case "DELETE", "/_pit":
            held.open -= body == {"id": "a point in time"}
            return {"succeeded": True, "num_freed": 1}
        case "POST", "/_search":
            if body.keys() - {"size", "pit", "sort", "search_after", "_source"}:
                bad("unknown field")
            if body["pit"] != {"id": "a point in time", "keep_alive": "1m"} or body["sort"] != [{"_shard_doc": "asc"}]:
                bad("no such search context")
            (start,) = body.get("search_after", [-1])
            rows = range(start + 1, min(len(held.ids), start + 1 + min(held.page, body["size"])))
            return answer([{**hit(row, None), "sort": [row]} for row in rows], pit_id="a point in time")
        case "POST", "/docs/_search":
            if body.keys() - {"knn", "size", "_source"} or body["knn"].keys() != {"field", "query_vector", "k"}:
                bad("unknown field")
            if body["knn"]["field"] != "e" or len(body["knn"]["query_vector"]) != dim:
                bad("the query vector has a different number of dimensions than the document vectors")
            near = held.nearest(body["knn"]["query_vector"], body["knn"]["k"])[: body["size"]]
            return answer([hit(row, float(np.float32(scored(x)))) for row, x in near])
    raise LookupError(404, {"error": {"type": "index_not_found_exception", "reason": "no such index"}, "status": 404})


_GET = re.compile(
    r'\{ Get \{ Docs\(limit: (?P<limit>\d+)(?:, after: "(?P<after>[-0-9a-f]*)")?'
    r'(?:, nearVector: \{ vector: (?P<vector>\[[^]]*\])(?:, targetVectors: \["(?P<name>\w+)"\])? \})?\) '
    r"\{ (?P<field>\w*) _additional \{ id (?P<more>[\w {}]*) \} \} \} \}"
)


def weaviate(held: Collection, method: str, path: str, asked: dict[str, str], body: Any) -> Any:
    """Answer as Weaviate does: REST for what a collection is, GraphQL for its objects, errors of that with HTTP 200."""
    del asked
    _, _, distance, far = METRICS[held.metric]

    def found(row: int, **more: Any) -> Any:
        own = f"00000000-0000-0000-0000-{row:012x}" if held.id_field else held.ids[row]
        return {**({held.id_field: held.ids[row]} if held.id_field else {}), "_additional": {"id": own, **more}}

    if (method, path) == ("GET", "/v1/schema/Docs"):
        config = {"vectorIndexType": "hnsw", "vectorIndexConfig": {"distance": distance}}
        about = {"vectorConfig": {"text": config}} if held.named else config
        return {"class": "Docs", "properties": [{"name": held.id_field or "body", "dataType": ["text"]}], **about}
    if (method, path) != ("POST", "/v1/graphql") or body.keys() != {"query"}:
        raise LookupError(404, {"error": [{"message": "not found"}]})
    if body["query"] == "{ Aggregate { Docs { meta { count } } } }":
        return {"data": {"Aggregate": {"Docs": [{"meta": {"count": len(held.ids)}}]}}}
    got = _GET.fullmatch(body["query"])
    if got is None or got["field"] != held.id_field or (got["after"] is not None and got["vector"] is not None):
        return {"data": {"Get": None}, "errors": [{"message": "Cannot query this field on type Docs"}]}
    if got["vector"]:
        vector = json.loads(got["vector"])
        if len(vector) != held.documents.shape[1] or (got["name"] == "text") != held.named or got["more"] != "distance":
            return {"errors": [{"message": "vector lengths don't match"}]}
        rows = [found(row, distance=float(far(x))) for row, x in held.nearest(vector, int(got["limit"]))]
    elif got["more"]:
        vector = held.documents[0].tolist()
        rows = [found(0, **({"vectors": {"text": vector}} if "{ text }" in got["more"] else {"vector": vector}))]
    else:
        own = [found(row)["_additional"]["id"] for row in range(len(held.ids))]
        start = own.index(got["after"]) + 1 if got["after"] else 0
        rows = [found(row) for row in range(start, min(len(own), start + min(held.page, int(got["limit"]))))]
    return {"data": {"Get": {"Docs": rows}}}


_HEADERS = {qdrant: ("api-key", KEY), elasticsearch: ("Authorization", f"ApiKey {KEY}")}


@contextmanager
def serving(answers: Any, held: Collection) -> Iterator[str]:
    """The URL of a server that answers so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url, length = urlsplit(self.path), int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            held.asked.append((self.command, url.path, body))
            header, key = _HEADERS.get(answers, ("Authorization", f"Bearer {KEY}"))
            status, said = 403, {"error": f"no rights with {self.headers.get(header)}"}
            if self.headers.get(header) == key:
                try:
                    status, said = 200, answers(held, self.command, url.path, dict(parse_qsl(url.query)), body)
                except LookupError as refused:
                    status, said = refused.args
            said = held.changed.get(url.path, lambda said: said)(said)
            content = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_DELETE = do_GET  # noqa: N815 -- http.server's names

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_port}"
    finally:
        running.shutdown()
