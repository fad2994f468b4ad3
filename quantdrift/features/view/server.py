"""A server of pages for the browser on this machine: reads only, answers nobody else, and no path of a file is asked.

It listens on the loopback address alone. A request whose Host is another name is refused, as a page of the web could
have a name that leads here (DNS rebinding). What a request names is looked up among what was found below the folder;
it never becomes a path.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from quantdrift.base.errors import QuantDriftError
from quantdrift.base.records import DIGEST
from quantdrift.features.view.found import Found, find
from quantdrift.features.view.pages import overview, page_for, pair_page, refusal
from quantdrift.report.page import Page, render

ADDRESS = "127.0.0.1"
_KEPT = 32
"""Pages that are kept, each of a megabyte."""
_LONGEST = 8_000
"""Characters of a request's target."""
_SECONDS = 30
"""A request takes no longer to come in."""
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(slots=True, eq=False, kw_only=True)
class Site:
    """The pages of a folder; one is made at a time, and made anew where its run is another one.

    Attributes:
        folder: what is looked through, at every request.
        beside: the folder of the gate's baseline and of results of gates.
    """

    folder: Path
    beside: Path
    _made: OrderedDict[tuple[Any, ...], str] = field(default_factory=OrderedDict)
    _one: threading.Lock = field(default_factory=threading.Lock)

    def html(self, target: str) -> tuple[HTTPStatus, str]:
        """The page of a request's target, with its status."""
        parts = urlsplit(target)
        names = [unquote(name) for name in parts.path.split("/")[1:]]
        with self._one:
            found = find(self.folder, self.beside.glob("*.json"))
            try:
                page = self._page(found, names, parse_qs(parts.query))
            except QuantDriftError as error:
                return HTTPStatus.UNPROCESSABLE_ENTITY, render(refusal(error))
            if page is None:
                return HTTPStatus.NOT_FOUND, render(refusal(QuantDriftError("there is no page of this name")))
            return HTTPStatus.OK, page

    def _page(self, found: Found, names: list[str], asked: dict[str, list[str]]) -> str | None:
        if names == [""]:
            return render(overview(self.folder, found, self.beside))
        if len(names) != 2:  # noqa: PLR2004 -- a kind and a name
            return None
        kind, name = names
        if kind == "pair":
            a, b = found.runs.get(name), found.runs.get(asked.get("b", [""])[0])
            if a is None or b is None:
                return None
            return self._kept([kind, *((run.path, run.record.get(DIGEST)) for run in (a, b))], lambda: pair_page(a, b))
        if kind == "run" and name in found.runs:
            key = [kind, name, found.runs[name].record.get(DIGEST), *found.runs]
            return self._kept(key, lambda: page_for(found, kind, name))
        page = page_for(found, kind, name)
        return None if page is None else render(page)

    def _kept(self, parts: list[Any], make: Callable[[], Page]) -> str:
        key = tuple(parts)
        html = self._made.pop(key, None) or render(make())
        self._made[key] = html
        while len(self._made) > _KEPT:
            self._made.popitem(last=False)
        return html


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of the browser on this machine."""

    server: Server
    server_version, sys_version, timeout = "quantdrift", "", _SECONDS

    def do_GET(self) -> None:
        """Answer with a page."""
        if self.headers.get_all("Host", []) not in self.server.hosts:
            return self._refused(HTTPStatus.FORBIDDEN, "expected this machine's own address as Host")
        if self.headers.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"}:
            return self._refused(HTTPStatus.FORBIDDEN, "expected to be asked by a person or by a page of this server")
        if len(self.path) > _LONGEST or not self.path.startswith("/"):
            return self._refused(HTTPStatus.NOT_FOUND, "expected a page of this server")
        return self._send(*self.server.site.html(self.path))

    do_HEAD = do_GET  # noqa: N815 -- the library's name

    def _refused(self, status: HTTPStatus, why: str) -> None:
        self._send(status, f"<!doctype html><title>{status.phrase}</title><p>{why}</p>")

    def _send(self, status: HTTPStatus, html: str) -> None:
        content = html.encode()
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *values: Any) -> None:
        """Say nothing of requests."""


class Server(ThreadingHTTPServer):
    """The server of a site, on the loopback address."""

    daemon_threads = True

    def __init__(self, site: Site, port: int = 0) -> None:
        self.site = site
        super().__init__((ADDRESS, port), _Handler)
        names = [f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")]
        self.hosts = [[name] for name in names]
        self.url = f"http://{names[0]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave a browser that went away alone."""
