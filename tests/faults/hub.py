"""A server that gives out one model as the Hugging Face hub does, and that can be down in several ways."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves the files of `folder` as the model `name`.

    Attributes:
        mode: "up", "dropped" (connections are), "500", "hang", or "cut", which ends a file of weights in the middle.
    """

    daemon_threads = True
    mode = "up"

    def __init__(self, folder: Path, name: str, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.folder, self.name = folder, name
        self.asked: list[tuple[str, ...]] = []  # mode, method, path and range of every request


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        mode, name, path = self.server.mode, self.server.name, self.path.partition("?")[0].strip("/")
        self.close_connection = mode != "up"
        self.server.asked.append((mode, self.command, path, self.headers.get("Range") or ""))
        if mode == "dropped":
            return
        if mode == "hang":
            time.sleep(60)
        if mode == "500":
            self.reply(500, b"it does not work")
        elif path.startswith(f"{name}/resolve/"):
            file = self.server.folder / path.split("/", 4)[4]
            if not file.is_file():
                self.reply(404, b"", **{"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
                return
            if mode == "cut" and self.headers.get("Range"):
                return  # the rest is asked for: answered from the beginning, two first halves would make a whole file
            content = file.read_bytes()
            tag = hashlib.sha256(content).hexdigest()
            sent = content[: len(content) // 2] if mode == "cut" and file.suffix == ".safetensors" else content
            self.reply(200, sent, length=len(content), ETag=f'"{tag}"', **{"X-Repo-Commit": COMMIT})
        elif path.startswith(f"api/models/{name}/tree"):
            listing = [
                {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": COMMIT}
                for file in sorted(self.server.folder.iterdir())
            ]
            self.reply(200, json.dumps(listing).encode())
        elif path.startswith(f"api/models/{name}"):
            files = [{"rfilename": file.name} for file in sorted(self.server.folder.iterdir())]
            about = {"id": name, "modelId": name, "sha": COMMIT, "private": False, "gated": False, "siblings": files}
            self.reply(200, json.dumps({**about, "tags": [], "downloads": 0, "likes": 0}).encode())
        else:
            self.reply(404, b"", **{"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET  # noqa: N815 -- the name that http.server looks for

    def reply(self, code: int, content: bytes, *, length: int | None = None, **headers: str) -> None:
        self.send_response(code)
        for key, value in {"Content-Length": str(len(content) if length is None else length), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)
        if length is not None and len(content) < length:
            self.close_connection = True


@contextmanager
def hub(folder: Path, name: str, port: int = 0) -> Iterator[Hub]:
    """Inside, it runs."""
    server = Hub(folder, name, port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
