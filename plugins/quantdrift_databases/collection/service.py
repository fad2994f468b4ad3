"""JSON from a server over HTTP, which is not trusted: its answers are bounded, and its errors become one line."""

import json
from collections.abc import Callable
from time import monotonic
from typing import Any

from quantdrift.parts import KeyNames, Package, ServerError, find_key, is_loopback, without_key
from quantdrift_databases.collection.place import Place

PACKAGES = (Package(name="httpx", module="httpx", extra="openai", note="asks servers"),)
_MOST, _COMPLAINT = 1 << 26, 1 << 16
"""Bytes of an answer, and characters of an error message, at most."""
_TIMEOUT, _LONGEST = 60.0, 300.0
"""Seconds that a server may be silent, and that one answer may take, at most."""
_OK, _NO_RIGHTS = 200, {401, 403}


def over_http(prefix: str = "") -> Callable[[Place], bool]:
    """A function that returns whether a place is a URL after a prefix for the kind of server."""
    return lambda place: place.at.startswith((f"{prefix}http://", f"{prefix}https://"))


class Service:
    """A server at a URL; it gets the key that the environment has for its host in one header."""

    def __init__(
        self, place: Place, url: str, *, keys: KeyNames, header: str = "Authorization", before: str = ""
    ) -> None:
        import httpx

        at = httpx.URL(url.rstrip("/"))  # the address as httpx reads it is the one that is asked
        self._place, self._keys, self._url = place, keys, str(at)
        self._key = find_key(keys, self._url)
        headers = {"accept-encoding": "identity"} | ({header: before + self._key.value} if self._key else {})
        # requests to this machine must not go to a proxy
        direct = is_loopback(at.host)
        self._client = httpx.Client(base_url=at, timeout=_TIMEOUT, headers=headers, trust_env=not direct)

    def asked(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the JSON of the answer; an error status is a ServerError of one line."""
        content, started = bytearray(), monotonic()
        with self._client.stream(method, path, json=body) as answer:
            for piece in answer.iter_raw():
                content += piece
                if len(content) > _MOST or monotonic() - started > _LONGEST:
                    limits = f"{_MOST:,} bytes or takes more than {_LONGEST:.0f} seconds"
                    raise ServerError(f"{self._place}: the answer is larger than {limits}")
        if answer.status_code != _OK:
            keys = f" (a key is taken from {self._keys.at(self._url)})" if answer.status_code in _NO_RIGHTS else ""
            raise self.refused(f"HTTP {answer.status_code}{keys}: {content.decode('utf-8', 'replace')}")
        return json.loads(content)

    def refused(self, said: str) -> ServerError:
        """The error for a server's message, without the key."""
        return ServerError(f"{self._place}: {without_key(said[:_COMPLAINT], self._key)}")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
