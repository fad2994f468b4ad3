"""Requests to one model on a server: they are repeated where that can help, else they fail with one line.

A server may be slow, broken or hostile. So time and size of an answer are limited, and its text is shortened and shown
without the key.
"""

from __future__ import annotations

import itertools
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from quantdrift.base.errors import ServerError, UnsupportedError
from quantdrift.base.extras import extras_named, version_of
from quantdrift.base.keys import Key, is_loopback, key_from, without_key
from quantdrift.base.records import Whole
from quantdrift.base.text import counted, some
from quantdrift.spec.grammar import Endpoint

if TYPE_CHECKING:
    import httpx

ATTEMPTS = 8
ATTEMPTS_TO_CONNECT = 3
"""Attempts before the first answer: a wrong address is then more likely than a busy server."""
LONGEST_WAIT, LONGEST_ASKED = 60.0, 600.0
"""Longest wait in seconds between two attempts, and longest wait that a server may ask for."""
TOLD_WAIT = 5.0
"""Seconds of a wait from which on the user is informed."""

_EMBEDDING, _COMPLAINT = 500_000, 65_536
"""Most bytes that are read of an embedding (16,384 numbers of 30 characters) and of an error's text."""
_AGAIN, _NEVER, _FEWER = {408, 409, 425, 429}, {501, 505}, {400, 413, 422}
"""HTTP statuses after which the same request may succeed later, can never succeed, or may succeed with fewer inputs."""
_TOO_MUCH = re.compile(r"too (large|long|many|big)|exceed", re.IGNORECASE)  # of llama.cpp, with HTTP 500
_GO_ON = "What was finished is kept: the same command goes on from there"


class OneInputError(ServerError):
    """The server at `where` cannot embed the input at position `number`; a caller that knows its name adds it."""

    def __init__(self, number: int, reason: str, where: str) -> None:
        self.number, self.reason, self.where = number, reason, where
        super().__init__(f"{where}: input {number}: {reason}")


class TooMuchError(ServerError):
    """The server at `where` refuses these inputs for `reason`; it may accept fewer of them."""

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(f"{where} {reason}")


class _TransientError(ServerError):
    """An error after which the same request may succeed; `asked` are the seconds that the server asks to wait."""

    def __init__(self, reason: str, *, asked: float | None = None, unreached: bool = False) -> None:
        self.asked, self.unreached = asked, unreached
        super().__init__(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Rules of waiting and of sending again.

    Attributes:
        timeout: seconds to wait for an answer; the first request may have to load the model.
        total: seconds that a request may take, including failed attempts.
        say: called with a line when a wait is long.
        sleep: function that waits a number of seconds.
        transport: transport of httpx, in place of the network.
    """

    timeout: float = 120.0
    total: float = inf
    say: Callable[[str], None] = lambda _line: None
    sleep: Callable[[float], None] = time.sleep
    transport: Any = None


# --- answers of a server --------------------------------------------------------------------------


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True)

    embedding: list[float | None] | None = None
    index: Whole | None = None


class _Embeddings(BaseModel):
    data: list[_Entry]


def read_embeddings(
    content: bytes, n: int, dimensions: int | None, where: str, key: Key | None = None
) -> NDArray[np.float32]:
    """Read the embeddings of an answer, float32 [n, dim], in the order of the inputs."""
    try:
        entries = _Embeddings.model_validate_json(content).data
    except ValidationError:
        raise ServerError(
            f'{where}: expected {{"data": [{{"embedding": [NUMBER, ...]}}, ...]}}, one vector for each input (of '
            f"llama-server: --pooling mean); got {without_key(content.decode(errors='replace'), key) or 'nothing'}"
        ) from None
    places = [at if entry.index is None else entry.index for at, entry in enumerate(entries)]
    if sorted(places) != list(range(n)):
        got = f"{len(places)}: {some(places)}"
        raise ServerError(f"{where}: expected embeddings of {n} inputs, each index once; got {got}")
    vectors: list[NDArray[np.float32]] = []
    for place in range(n):
        with np.errstate(over="ignore"):  # a number that is too large becomes infinite, and is refused
            vector = np.array(entries[places.index(place)].embedding or [], dtype=np.float32)
        if not vector.size or not np.isfinite(vector).all():
            raise OneInputError(place, "the server gave no embedding of finite numbers for it", where)
        dimensions = dimensions or len(vector)
        if len(vector) != dimensions:
            raise ServerError(
                f"{where}: embeddings are of different lengths: {dimensions} numbers and {len(vector)} (input "
                f"{place}); expected one model to answer all the time"
            )
        vectors.append(vector)
    return np.stack(vectors)


# --- client ---------------------------------------------------------------------------------------


class EndpointClient:
    """Requests embeddings from a server; several threads may use it.

    Attributes:
        endpoint: the model.
    """

    def __init__(self, endpoint: Endpoint, *, key: Key | None, retry_policy: RetryPolicy) -> None:
        """Prepare the connection; nothing is sent yet."""
        with extras_named(needed_for=str(endpoint)):
            import httpx  # noqa: PLC0415 -- an extra, and slow to import
        self.endpoint = endpoint
        self._key, self._policy = key, retry_policy
        self._dimensions: int | None = None  # unknown until the first answer
        # a few bytes of a compressed answer could fill the memory
        headers = {"User-Agent": f"quantdrift/{version_of('quantdrift') or '0'}", "Accept-Encoding": "identity"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key.value}"
        try:
            httpx.URL(endpoint.embeddings)
            self._http = httpx.Client(
                headers=headers,
                timeout=httpx.Timeout(retry_policy.timeout, connect=10.0),
                transport=retry_policy.transport,
                follow_redirects=False,  # so the key stays with the host that it was meant for
                trust_env=not is_loopback(endpoint.host),  # a proxy could not reach it
            )
        except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
            raise UnsupportedError(
                f"{endpoint.url} cannot be asked ({error}); expected an address, and proxies and certificates in the "
                "environment (HTTP_PROXY, SSL_CERT_FILE, ...) that can be used"
            ) from error

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Send one request and return its embeddings, float32 [n, dim].

        Waits are random, so that requests that failed together are not repeated together.
        """
        url = self.endpoint.embeddings
        body = {"model": self.endpoint.model, "input": list(texts), "encoding_format": "float"}
        end = time.monotonic() + self._policy.total
        for attempt in itertools.count(1):
            try:
                content = self._once(body, (1 + len(texts)) * _EMBEDDING)
                break
            except _TransientError as error:
                early = error.unreached and self._dimensions is None
                seconds = min(2.0 ** (attempt - 2), LONGEST_WAIT) + random.random()
                seconds = seconds if error.asked is None else error.asked
                late = time.monotonic() + seconds > end
                if late or attempt >= (ATTEMPTS_TO_CONNECT if early else ATTEMPTS):
                    hint = "Is the server running, and is that its address?" if late or early else f"{_GO_ON} later"
                    raise ServerError(f"{url} {error} ({counted(attempt, 'attempt')}). {hint}") from error
                if seconds >= TOLD_WAIT:
                    self._policy.say(f"{self.endpoint.url} {error}; next try in {seconds:.0f} s")
            self._policy.sleep(seconds)
        vectors = read_embeddings(content, len(texts), self._dimensions, url, self._key)
        self._dimensions = vectors.shape[1]
        return vectors

    def _once(self, body: object, limit: int) -> bytes:
        """Return an answer that came in time.

        It runs in a thread that is abandoned after the timeout, as limits on each step of a request would not limit
        all.
        """
        import httpx  # noqa: PLC0415 -- an extra, and slow to import

        answer: Future[bytes] = Future()

        def work() -> None:
            try:
                answer.set_result(self._exchange(body, limit))
            except BaseException as error:  # raised again by `result`
                answer.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        try:
            return answer.result(self._policy.timeout)
        except (httpx.TimeoutException, TimeoutError) as error:
            unreached = isinstance(error, httpx.ConnectTimeout)
            raise _TransientError(f"gave no answer within {self._policy.timeout:g} s", unreached=unreached) from error
        except httpx.RequestError as error:
            what = without_key(str(error), self._key) or type(error).__name__
            raise _TransientError(f"broke off: {what}", unreached=isinstance(error, httpx.ConnectError)) from error

    def _exchange(self, body: object, limit: int) -> bytes:
        """Return the content of an answer, or raise; reading stops once it is too large."""
        url = self.endpoint.embeddings
        with self._http.stream("POST", url, json=body) as response:
            if response.headers.get("content-encoding", "identity").lower() not in {"", "identity"}:
                raise ServerError(f"{url} compresses its answer, which was not asked for; expected it uncompressed")
            content = bytearray()
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > (limit if response.is_success else _COMPLAINT):
                    break
        if not response.is_success:
            raise self._refusal(response, content.decode(errors="replace"))
        if len(content) > limit:
            raise ServerError(
                f"{url}: the answer is larger than {limit:,} bytes; expected one vector of each input (of "
                "llama-server: --pooling mean)"
            )
        return bytes(content)

    def _refusal(self, response: httpx.Response, content: str) -> ServerError:
        """Return the error for an answer that is no success: to retry, to send fewer inputs, or to end with advice."""
        url, status = self.endpoint.embeddings, response.status_code
        if status in {401, 403}:  # its text may repeat the key, and is not shown
            what = "wants a key" if self._key is None else f"refuses the key in {self._key.variable}"
            return ServerError(f"{url} {what} (HTTP {status}); it is taken from {key_from(url)}")
        said = without_key(content, self._key)
        reason = f"answered HTTP {status}" + (f" ({said})" if said else "")
        its_own = status >= 500  # noqa: PLR2004 -- the server's errors
        if status in _FEWER or (its_own and _TOO_MUCH.search(said)):
            return TooMuchError(url, reason)
        if status in _AGAIN or (its_own and status not in _NEVER):
            wait = response.headers.get("retry-after", "")
            asked = float(wait) if wait.isdecimal() and wait.isascii() else None
            if asked is not None and asked > LONGEST_ASKED:
                return ServerError(f"{url} {reason}, and asks to wait longer than {LONGEST_ASKED:.0f} s. {_GO_ON} then")
            return _TransientError(reason, asked=asked)
        if response.has_redirect_location:
            return ServerError(f"{url} {reason}: it redirects, and redirects are not followed; give the new address")
        return ServerError(f"{url} {reason}: expected a server with that path and that model")
