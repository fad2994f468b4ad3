"""A server on loopback that answers OpenAI's requests for embeddings, and can misbehave."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from numpy.typing import NDArray

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
Answer = Callable[["Request"], None]
"""Answers a request in place of the model."""


class Request(BaseHTTPRequestHandler):
    """One request; `body` is what was sent."""

    server: "Server"
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for the client to say that it has the headers
    body: dict[str, Any]

    def do_POST(self) -> None:
        self.body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            self.server.asked.append(self.body["input"])
            self.server.headers.append({k.lower(): v for k, v in self.headers.items()})
        if self.path != "/v1/embeddings":
            self.reply(404, {"detail": "Not Found"})
        elif self.body["model"] not in self.server.models:
            self.reply(404, {"error": {"message": f"The model `{self.body['model']}` does not exist.", "code": 404}})
        elif misbehave := self.server.next_answer():
            misbehave(self)
        else:
            self.embed()

    def embed(self) -> None:
        with self.server.lock:  # one model, many threads
            vectors = self.server.models[self.body["model"]](self.body["input"])
        entries = [{"index": at, "embedding": vector} for at, vector in enumerate(vectors.tolist())]
        self.reply(200, {"object": "list", "data": entries})

    def reply(self, status: int, content: Any, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"content_type": "application/json", "content_length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Serves models by name; `asked` holds what was sent, one entry a request."""

    daemon_threads = True
    # of a test that broke off a connection on purpose nothing is printed
    handle_error = staticmethod(lambda *_: None)  # type: ignore[assignment]

    def __init__(self, **models: Embed) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.models = dict(models)
        self.asked: list[list[str]] = []
        self.headers: list[dict[str, str]] = []
        self.lock = threading.RLock()
        self._answers: list[Answer | None] = []
        self.always: Answer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def name(self, model: str) -> str:
        return f"openai:{self.url}#{model}"

    def answer(self, *answers: Answer | None) -> None:
        """The next requests are answered so, one each; None is the model."""
        self._answers.extend(answers)

    def next_answer(self) -> Answer | None:
        with self.lock:
            return self._answers.pop(0) if self._answers else self.always

    def texts(self) -> list[str]:
        return [text for request in self.asked for text in request]

    def forget(self) -> None:
        self.asked.clear()
        self.headers.clear()


@contextmanager
def serving(**models: Embed) -> Iterator[Server]:
    """A server that runs while the block does."""
    with Server(**models) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def of_model(model: Any) -> Embed:
    """A SentenceTransformer as a server runs it: no prompts, texts as they come."""

    def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        return np.asarray(model.encode(list(texts), prompt="", show_progress_bar=False), dtype=np.float32)

    return embed


def of_letters(texts: Sequence[str]) -> NDArray[np.float32]:
    """A model of no weight: how often each letter occurs, float32 [n, 26], of length 1."""
    counts = np.array([[text.lower().count(chr(97 + letter)) + 0.1 for letter in range(26)] for text in texts])
    return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)


def of_odd_letters(texts: Sequence[str]) -> NDArray[np.float32]:
    """Another one: every second letter."""
    return of_letters([text[::2] for text in texts])


def no_long_texts(request: Request) -> None:
    """Refuses a long text as llama.cpp does, to the word."""
    if max(map(len, request.body["input"])) > 300:
        said = "input (602 tokens) is too large to process. increase the physical batch size (current batch size: 512)"
        request.reply(500, {"error": {"code": 500, "message": said, "type": "server_error"}})
    else:
        request.embed()
