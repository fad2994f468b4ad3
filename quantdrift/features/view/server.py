"""A server of pages for the browser on this machine: reads only, answers nobody else, and no path of a file is asked.

It listens on the loopback address alone. A request whose Host is another name is refused, as a page of the web could
have a name that leads here (DNS rebinding). What a request names is looked up among what was found below the folder;
it never becomes a path.
"""

import threading
from dataclasses import dataclass, field, replace
from html import escape
from http import HTTPStatus
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from quantdrift.base.display import clean, error_line, note
from quantdrift.base.errors import QuantDriftError
from quantdrift.features.view.found import Found, find
from quantdrift.features.view.pages import overview, page_for
from quantdrift.features.view.pair import pair_page
from quantdrift.report.page import Page, render

ADDRESS = "127.0.0.1"
_AS_BYTES = "surrogateescape"
"""How names that are no UTF-8 are read from addresses, as those of files are."""
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
    """The pages of a folder; one is made at a time, when it is asked for.

    Attributes:
        folder: what is looked through, at every request.
        beside: the folder of the gate's baseline and of results of gates.
    """

    folder: Path
    beside: Path
    _one: threading.Lock = field(default_factory=threading.Lock)

    def html(self, target: str) -> tuple[HTTPStatus, str]:
        """The page of a request's target, with its status."""
        try:
            parts = urlsplit(target)
        except ValueError as error:
            return HTTPStatus.BAD_REQUEST, _plain("This is no address of a page", clean(str(error)))
        names = [unquote(name, errors=_AS_BYTES) for name in parts.path.split("/")[1:]]
        other = parse_qs(parts.query, errors=_AS_BYTES).get("b", [""])[0]
        with self._one:
            try:
                html = self._html(
                    find(self.folder, [*self.folder.glob("*.json"), *self.beside.glob("*.json")]), names, other
                )
            except QuantDriftError as error:
                return HTTPStatus.UNPROCESSABLE_ENTITY, _plain("This page cannot be made", str(error))
            except Exception as error:  # whatever it is, the other pages go on, and somebody should know
                note(f"the page {target} cannot be made: {error_line(error)}")
                return HTTPStatus.INTERNAL_SERVER_ERROR, _plain("This page cannot be made", error_line(error))
        return (HTTPStatus.OK, html) if html else (HTTPStatus.NOT_FOUND, _plain("There is no page of this name"))

    def _html(self, found: Found, names: list[str], other: str) -> str | None:
        if len(names) != 2:  # noqa: PLR2004 -- a kind and a name
            return _rendered(overview(self.folder, found, self.beside)) if names == [""] else None
        kind, name = names
        a, b = found.runs.get(name), found.runs.get(other)
        page = page_for(found, kind, name) if kind != "pair" else pair_page(a, b) if a and b else None
        return None if page is None else _rendered(page)


def _rendered(page: Page) -> str:
    return render(replace(page, home=True))


def _plain(title: str, why: str = "") -> str:
    lines = "".join(f"<p>{escape(line)}</p>" for line in why.splitlines())
    return f'<!doctype html><meta charset="utf-8"><title>{title}</title><h1>{title}</h1>{lines}<a href="/">All runs</a>'


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of the browser on this machine."""

    server: "Server"
    server_version, sys_version, timeout = "quantdrift", "", _SECONDS

    def do_GET(self) -> None:
        """Answer with a page."""
        if [host.lower() for host in self.headers.get_all("Host", [])] not in self.server.hosts:
            return self._send(HTTPStatus.FORBIDDEN, _plain("Refused", "expected this machine's own address as Host"))
        if self.headers.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"}:
            return self._send(HTTPStatus.FORBIDDEN, _plain("Refused", "another site asked for this page"))
        return self._send(*self.server.site.html(self.path))

    do_HEAD = do_GET  # noqa: N815 -- the library's name

    def _send(self, status: HTTPStatus, html: str) -> None:
        content = html.encode(errors="replace")  # names of files may be no UTF-8
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
        # of the usual port browsers say nothing
        ports = (f":{self.server_port}", *[""] * (self.server_port == HTTP_PORT))
        self.hosts = [[f"{name}{port}"] for name in (ADDRESS, "localhost") for port in ports]
        self.url = f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave a browser that went away alone."""
