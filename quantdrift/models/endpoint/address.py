"""The name of a model on a server: where it answers, and what it is called there.

ENDPOINT := "openai:" URL "#" MODEL        openai:http://localhost:8000/v1#my-model

URL is what OpenAI's own client takes as its base address; `/embeddings` follows it. It has one
canonical form: scheme and host in lower case, no port that goes without saying, no `/` and no
`/embeddings` at its end, and `/v1` where it has no path. Only a server that answers without a path
keeps its `/embeddings`, as `http://host/embeddings`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from quantdrift.errors import SpecError
from quantdrift.grammar import error_at

__all__ = ["Endpoint", "canonical_model", "is_endpoint", "read_endpoint", "refuse_endpoint"]

_PREFIX = "openai:"
_NAMED = re.compile(r"openai:", re.IGNORECASE)
_BARE = re.compile(r"https?://", re.IGNORECASE)
_SCHEME_LIKE = re.compile(r"@W[0-9][^@]*\Z")
_VERSUS = re.compile(r"\svs\s")
_PATH = "/embeddings"
_LIKE_THIS = "openai:URL#MODEL, e.g. openai:http://localhost:8000/v1#my-model"
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A model on a server that answers OpenAI's requests for embeddings.

    >>> str(read_endpoint("openai:HTTP://LocalHost:80/v1/#org/model"))
    'openai:http://localhost/v1#org/model'

    Attributes:
        url: base address, canonical.
        model: what the server calls the model.
    """

    url: str
    model: str

    @property
    def embeddings(self) -> str:
        """The address that embeds."""
        return self.url if self.url.endswith(_PATH) else self.url + _PATH

    @property
    def models(self) -> str:
        """The address that lists models, where a server has it."""
        return self.url.removesuffix(_PATH) + "/models"

    @property
    def host(self) -> str:
        """The host without its port."""
        return urlsplit(self.url).hostname or ""

    def __str__(self) -> str:
        return f"{_PREFIX}{self.url}#{self.model}"


def is_endpoint(name: str) -> bool:
    """Whether a name means a model on a server.

    Args:
        name: one side of two models.
    """
    return _NAMED.match(name) is not None


def canonical_model(name: str, text: str, start: int) -> str:
    """A model's name as it is written down: that of a server in its one form, others as they are.

    Args:
        name: one side of two models.
        text: what it is part of, for errors.
        start: where it begins there.

    Raises:
        SpecError: it is meant to name a server, and does not.
    """
    if _BARE.match(name):
        raise error_at(text, start, start, "unknown 'openai:'", _LIKE_THIS)
    return str(read_endpoint(name, text=text, start=start)) if is_endpoint(name) else name


def read_endpoint(name: str, *, text: str | None = None, start: int = 0) -> Endpoint:
    """Read the name of a model on a server.

    Args:
        name: `openai:URL#MODEL`.
        text: what it is part of, for errors; itself if not given.
        start: where it begins there.

    Raises:
        SpecError: it is none; its start and end are positions in `text`.
    """
    text = name if text is None else text
    end = start + len(name)
    at = start + len(_PREFIX)
    url, mark, model = name[len(_PREFIX) :].partition("#")
    behind = at + len(url)
    if not is_endpoint(name):
        raise error_at(text, start, start, "unknown 'openai:'", _LIKE_THIS)
    if bad := re.search(r"\s+", name):
        span = (start + bad.start(), start + bad.end())
        raise error_at(text, *span, "unexpected", "a URL and a model without spaces")
    if not url:
        raise error_at(text, at, at, "unknown URL", _LIKE_THIS)
    if not _BARE.match(url):
        raise error_at(text, at, at, "unknown scheme", f"http:// or https:// first: {_LIKE_THIS}")
    if not mark or not model:
        expected = f"# and the model's name on that server: {_LIKE_THIS}"
        raise error_at(text, end, end, "unknown #MODEL" if not mark else "unknown model", expected)
    return Endpoint(url=_canonical(url, text, at, behind), model=model)


def refuse_endpoint(text: str, start: int, end: int) -> None:
    """Refuse a model on a server where MODEL@SCHEME is expected.

    Args:
        text: what was typed.
        start: where the spec begins in it.
        end: where it ends.

    Raises:
        SpecError: it names one.
    """
    if not is_endpoint(text[start:end]) or _VERSUS.search(text, start, end):
        return
    scheme = _SCHEME_LIKE.search(text, start, end)
    if scheme is not None:
        name = text[start : scheme.start()]
        expected = "no scheme, as the weights of a server's model are not here to be quantized; "
        expected += f'run it beside another model: quantdrift run "REFERENCE vs {name}"'
        raise error_at(text, scheme.start(), end, "unexpected", expected)
    expected = "two models, as a server's is not quantized here: "
    expected += f'quantdrift run "REFERENCE vs {text[start:end]}"'
    raise error_at(text, start, start, "unknown 'REFERENCE vs'", expected)


def _canonical(url: str, text: str, start: int, end: int) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # a port that is no number, half an IPv6 address
        host, port, parts = None, None, None
    if not host or parts is None:
        expected = "a host, and where there is one a port: http://localhost:8000/v1"
        raise error_at(text, start, end, "malformed URL", expected)
    if parts.username is not None or parts.password is not None:
        message = (
            "the URL of a server holds a user or a password, which would end up in results: "
            "expected a URL without; the key of a server is taken from QUANTDRIFT_OPENAI_KEY"
        )
        raise SpecError(message, text="", start=0, end=0)  # the text is not shown again
    if parts.query or "?" in url:
        at = start + url.index("?")
        raise error_at(text, at, end, "unexpected", "a URL without parameters")
    scheme = parts.scheme.lower()
    named = f"[{host}]" if ":" in host else host
    place = named if port in {None, _PORTS[scheme]} else f"{named}:{port}"
    path = parts.path.rstrip("/")
    shorter = path.removesuffix(_PATH).rstrip("/")
    path = shorter or path or "/v1"
    return f"{scheme}://{place}{path}"
