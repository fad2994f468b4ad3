"""Requests to one model on a server: sent again where that can help, else an error of one line.

A server may be slow, broken or hostile. So an answer has a time in which all of it has to come, a size, and no more
than some of its fields are kept or shown.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.display import NAME, clean, shorten
from quantdrift.errors import MissingExtraError, ServerError, UnsupportedError
from quantdrift.extras import version_of
from quantdrift.records import parse_json
from quantdrift.spec import Endpoint

if TYPE_CHECKING:
    import httpx

    _Answer = tuple[httpx.Response, bytes]

ATTEMPTS = 8
ATTEMPTS_TO_CONNECT = 3
"""Before anything was answered: more likely a wrong address than a server that is busy."""
LONGEST_WAIT = 60.0
"""Seconds between two attempts where the server asks for none."""
LONGEST_ASKED, LONGEST_BELIEVED = 600.0, 1e9
"""Seconds that a server may ask to wait before that is an error, and that are repeated there."""
TOLD_WAIT = 5.0
"""Seconds of a wait from which the user is told."""

_EMBEDDING = 500_000
"""Bytes of an embedding in an answer: 16,384 numbers of 30 characters."""
_LIST, _COMPLAINT, _PAGE = 8_000_000, 65_536, 4096
"""Bytes that are read of a list of models, of an answer that is no success, of what is no JSON."""
_LISTED, _TOLD = 12, 300
"""Models that are named, and characters of an error about an answer, what it quotes included."""
_KEPT = {"id": str, "owned_by": str, "root": str, "created": int, "max_model_len": int}
"""What is kept of an entry in a list of models."""
_AGAIN, _NEVER, _FEWER = {408, 409, 425, 429}, {501, 505}, {400, 413, 422}
"""HTTP statuses: the same may succeed later; the server cannot do this at all; fewer inputs may do."""
_TOO_MUCH = re.compile(r"too (large|long|many|big)|exceed", re.IGNORECASE)  # of llama.cpp, with HTTP 500
_GO_ON = "What was finished is kept: the same command goes on from there"


class StoppedError(Exception):
    """The run was given up while a request waited; nobody is there to hear of it."""


class OneInputError(ServerError):
    """The input at position `number` of those sent cannot be embedded; whoever knows its name says it."""

    def __init__(self, number: int, reason: str) -> None:
        self.number, self.reason, self.where = number, reason, ""
        super().__init__(f"input {number}: {reason}")


class TooMuchError(ServerError):
    """The server refuses these inputs, with `reason`; some of them alone may do."""

    def __init__(self, url: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{url} {reason}")


class _TransientError(ServerError):
    """The same request may succeed later, after the seconds in `asked` if the server names any."""

    def __init__(self, reason: str, *, asked: float | None = None, unreached: bool = False) -> None:
        self.reason, self.asked, self.unreached = reason, asked, unreached
        super().__init__(reason)


# --- when the next request may start --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long is waited, for what, and who is told.

    Attributes:
        requests_per_minute: that may start at most; None for no limit.
        timeout: seconds to wait for an answer; the first request may load the model.
        say: called with a line where a wait is long.
        now: seconds since any moment, never going back.
        sleep: waits so many seconds.
        date: seconds since 1970.
        transport: of httpx, in place of the network.
    """

    requests_per_minute: float | None = None
    timeout: float = 120.0
    say: Callable[[str], None] = lambda _line: None
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    date: Callable[[], float] = time.time
    transport: Any = None


class Pace:
    """Spaces out the requests to one server evenly, a minute over the limit apart; several threads may ask."""

    def __init__(self, patience: Patience) -> None:
        per_minute = patience.requests_per_minute
        self._interval = 0.0 if per_minute is None else 60.0 / per_minute
        self._patience = patience
        self._lock = threading.Lock()
        self._next = self._held = patience.now()
        self._stopped = False

    def wait(self) -> None:
        """Return when a request may start."""
        while True:
            with self._lock:
                now = self._patience.now()
                start = max(now, self._next)
                self._next = start + self._interval
            self.pause(start - now)
            if self._held <= start:  # else the server asked to wait for longer in the meantime
                return

    def pause(self, seconds: float) -> None:
        """Wait; StoppedError if the run was given up meanwhile."""
        if seconds > 0:
            self._patience.sleep(seconds)
        if self._stopped:
            raise StoppedError

    def hold(self, seconds: float) -> None:
        """Let no request start for a while, of any thread: the server asks for it."""
        with self._lock:
            self._held = max(self._held, self._patience.now() + seconds)
            self._next = max(self._next, self._held)

    def stop(self) -> None:
        """Give up: whoever waits raises `StoppedError` when it wakes up."""
        self._stopped = True


def seconds_asked(retry_after: str | None, date: float) -> float | None:
    """The seconds that a Retry-After header (a number, or an HTTP date) asks to wait; None if it says nothing."""
    try:
        seconds = float(retry_after or "nan")
    except ValueError:
        try:
            seconds = parsedate_to_datetime(str(retry_after)).timestamp() - date
        except ValueError:
            return None
    return None if np.isnan(seconds) else min(max(0.0, seconds), LONGEST_BELIEVED)


# --- what a server answers ------------------------------------------------------------------------


def read_json(content: bytes, content_type: str) -> Any:
    """What a server answered, as JSON values; ServerError for anything else."""
    try:
        return parse_json(content)
    except ValueError as error:
        kind = content_type.partition(";")[0].strip() or "no content type"
        raise ServerError(f"expected JSON; got {kind}: {_text(content) or 'nothing'}") from error


def complaint_of(content: bytes) -> str:
    """What a server says is wrong: `error.message`, `error`, `detail`, or the text."""
    try:
        said = parse_json(content)
    except ValueError:
        return _text(content)
    for name in ("error", "message", "detail"):
        while isinstance(said, Mapping) and said.get(name):
            said = said[name]
    return said if isinstance(said, str) else json.dumps(said)


def _text(content: bytes) -> str:
    text = content[:_PAGE].decode(errors="replace").strip()
    title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
    return title[1] if title else text


def read_embeddings(answer: Any, n: int, dimensions: int | None) -> NDArray[np.float32]:
    """The embeddings of an answer in the order of the inputs, whatever order they came in, float32 [n, dim]."""
    entries = answer.get("data") if isinstance(answer, Mapping) else None
    if not isinstance(entries, list) or not all(isinstance(one, Mapping) for one in entries):
        raise ServerError(f'expected {{"data": [{{"embedding": ...}}, ...]}}; got {json.dumps(answer)}')
    if len(entries) != n:
        raise ServerError(f"expected {n} embeddings for {n} inputs; got {len(entries)}")
    places = [entry.get("index") for entry in entries]
    if all(place is None for place in places):
        places = list(range(n))
    if sorted(place for place in places if type(place) is int) != list(range(n)):
        raise ServerError(f"expected each index from 0 to {n - 1} once; got {places}")
    rows = {place: _vector(entry.get("embedding"), place) for place, entry in zip(places, entries, strict=True)}
    vectors = [rows[place] for place in range(n)]
    for place, row in enumerate(vectors):
        wanted = len(vectors[0]) if dimensions is None else dimensions
        if len(row) != wanted:
            raise ServerError(
                f"embeddings are of different lengths: {wanted} numbers and {len(row)} (input {place}); expected one "
                "model to answer all the time"
            )
    return np.stack(vectors)


def _vector(embedding: Any, place: int) -> NDArray[np.float32]:
    try:
        if isinstance(embedding, str):
            vector = np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4")
        else:
            with np.errstate(over="ignore"):  # what is too large is infinite, and refused below
                vector = np.asarray([*(embedding or [])], dtype=np.float64).astype(np.float32)
    except (TypeError, ValueError, OverflowError) as error:  # base64's own error is a ValueError
        raise OneInputError(place, f"its embedding is no list of numbers: {json.dumps(embedding)}") from error
    if vector.size == 0:
        raise OneInputError(place, "the server gave no embedding of it")
    if vector.ndim != 1:
        raise OneInputError(
            place,
            f"the server gave {len(vector)} vectors for it; expected one. Start the server with pooling (llama-server "
            "--pooling mean, or what the model was trained with)",
        )
    if not np.isfinite(vector).all():
        raise OneInputError(place, "its embedding holds null, NaN or infinity")
    return np.asarray(vector, dtype=np.float32)


# --- which key a server gets: one that was meant for it, and no other -----------------------------

VARIABLE = "QUANTDRIFT_OPENAI_KEY"
_SHORTEST, _PIECE = 4, 12
"""Characters: a shorter key is no secret, a shorter half of one may be a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What is sent as a bearer token, and the variable of the environment where it was found."""

    value: str = field(repr=False)
    variable: str


def variables(host: str, hosts: Collection[str]) -> list[str]:
    """The variables that a host's key is looked for in; of two hosts in a run, each needs a key of its own."""
    named = [f"{VARIABLE}_{re.sub('[^A-Z0-9]+', '_', host.upper()).strip('_')}"]
    return [*named, *[VARIABLE] * (set(hosts) <= {host}), *["OPENAI_API_KEY"] * (host == "api.openai.com")]


def find_key(host: str, hosts: Collection[str]) -> Key | None:
    """The key of a server, of all `hosts` that a run asks; None where there is none, as one's own servers need none."""
    for variable in variables(host, hosts):
        value = os.environ.get(variable, "").strip()
        if value and not (value.isascii() and value.isprintable() and " " not in value):
            raise UnsupportedError(
                f"the environment variable {variable} holds no key: expected letters, digits and signs on one line, "
                "without spaces"
            )
        if value:
            return Key(value=value, variable=variable)
    return None


def told(text: str, key: Key | None, limit: int = 200) -> str:
    """What a server said, fit to be shown or stored: on one line, of a length, without the key.

    The key is recognized in capitals, spaced out, in base64, and where it is long the longer of two pieces of it. So
    the text is given in full: half a key is not recognized at an end that was cut off.
    """
    if key is not None and len(key.value) >= _SHORTEST:
        text = re.sub("|".join(map(_loosely, _forms(key.value))), "***", text, flags=re.IGNORECASE | re.DOTALL)
    return shorten(clean(text), limit)


def _forms(key: str) -> Iterator[str]:
    yield key
    for shift, first in enumerate((0, 2, 3)):  # what stands before it decides its first digits
        whole = (shift + len(key)) * 8 // 6
        yield base64.b64encode(bytes(shift) + key.encode()).decode()[first:whole]
    half = len(key) // 2
    if half >= _PIECE:
        yield from (key[:half], key[half:])


def _loosely(form: str) -> str:
    """The pattern of a text whatever stands between its letters; they take all there is of that."""
    letters = [letter for letter in form if letter.isalnum()]
    between = r"(?>\\u[0-9a-f]{4}|\\.|[^\w\\]|_)*+"  # JSON's escapes as well
    return between.join(letters) if len(letters) >= _SHORTEST else re.escape(form)


# --- client ---------------------------------------------------------------------------------------


class EndpointClient:
    """Asks a server for embeddings; may be used from several threads.

    Attributes:
        endpoint: the model.
    """

    def __init__(self, endpoint: Endpoint, *, key: Key | None, patience: Patience, hosts: Sequence[str] = ()) -> None:
        """Nothing is sent yet."""
        try:
            import httpx  # noqa: F401, PLC0415 -- an extra, and slow to import
        except ImportError as error:
            raise MissingExtraError("httpx", "openai", needed_for=str(endpoint)) from error
        self.endpoint = endpoint
        self._key, self._patience, self._pace = key, patience, Pace(patience)
        self._variables = variables(endpoint.host, hosts or (endpoint.host,))
        self._answered = False
        self._dimensions: int | None = None
        self._http = _connections(endpoint, key, patience)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The embeddings of one request, float32 [n, dim]."""
        url = self.endpoint.embeddings
        body = {"model": self.endpoint.model, "input": list(texts), "encoding_format": "float"}
        response, content = self._ask(url, body, (1 + len(texts)) * _EMBEDDING)
        try:
            answer = read_json(content, response.headers.get("content-type", ""))
            vectors = read_embeddings(answer, len(texts), self._dimensions)
        except OneInputError as error:
            raise OneInputError(error.number, told(error.reason, self._key, _TOLD)) from None
        except ServerError as error:
            raise ServerError(f"{url}: {told(str(error), self._key, _TOLD)}") from None
        self._dimensions = vectors.shape[1]
        return vectors

    def listed(self) -> dict[str, dict[str, str | int]] | None:
        """What the server says of each model that it lists, by id; None where it has no list."""
        try:
            _, content = self._once(self.endpoint.models, None, _LIST)
            return {entry["id"]: self._kept(entry) for entry in read_json(content, "")["data"] if "id" in entry}
        except (ServerError, KeyError, TypeError):
            return None

    def _kept(self, entry: Mapping[str, Any]) -> dict[str, str | int]:
        found = {name: entry[name] for name, kind in _KEPT.items() if type(entry.get(name)) is kind}
        return {
            name: told(value, self._key) if isinstance(value, str) else value
            for name, value in found.items()
            if isinstance(value, str) or 0 <= value < 1 << 53
        }

    def other_models(self) -> str:
        """What to add to an error where the model may be what is wrong; empty where it is not."""
        listed = self.listed()
        if listed is None or self.endpoint.model in listed:
            return ""
        names = [told(str(name), self._key, NAME) for name in list(listed)[:_LISTED]]
        more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
        return f"; the server lists {', '.join(names) or 'no model'}{more}"

    def stop(self) -> None:
        """Give up what is under way: nothing is sent any more."""
        self._pace.stop()

    def _ask(self, url: str, body: object, limit: int) -> _Answer:
        """An answer after as many attempts as it takes; requests that failed together do not come back together."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._once(url, body, limit)
            except _TransientError as error:
                early = error.unreached and not self._answered
                if attempt >= (ATTEMPTS_TO_CONNECT if early else ATTEMPTS):
                    hint = "Is the server running, and is that its address?" if early else f"{_GO_ON} later"
                    raise ServerError(f"{url} {error.reason} ({attempt} attempts). {hint}") from error
                backoff = min(2.0 ** (attempt - 2), LONGEST_WAIT) + random.random()
                seconds = backoff if error.asked is None else error.asked
                if seconds >= TOLD_WAIT:
                    self._patience.say(f"{self.endpoint.url} {error.reason}; next try in {seconds:.0f} s")
            self._pace.pause(seconds)

    def _once(self, url: str, body: object, limit: int) -> _Answer:
        import httpx  # noqa: PLC0415 -- an extra, and slow to import

        self._pace.wait()
        try:
            response, content = self._within(lambda given_up: self._exchange(url, body, limit, given_up))
        except (httpx.RequestError, TimeoutError) as error:
            what = told(str(error), self._key) or type(error).__name__
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                raise _TransientError(f"cannot be reached: {what}", unreached=True) from error
            if isinstance(error, httpx.TimeoutException | TimeoutError):
                what = f"no answer within {self._patience.timeout:g} s"
            raise _TransientError(f"broke off: {what}") from error
        if not response.is_success:
            raise self._refusal(url, response, content)
        self._answered = True
        return response, content

    def _exchange(self, url: str, body: object, limit: int, given_up: threading.Event) -> _Answer:
        """An answer, and of its content no more than it takes to see that it is too large."""
        with self._http.stream("GET" if body is None else "POST", url, json=body) as response:
            if response.headers.get("content-encoding", "identity").lower() not in {"", "identity", "gzip"}:
                raise ServerError(f"{url} packs its answer in a way that was not asked for; expected gzip, once")
            limit = limit if response.is_success else _COMPLAINT
            content = bytearray()
            for chunk in response.iter_bytes():
                content += chunk[: limit + 1 - len(content)]  # a chunk is of some 70 MB at most
                if len(content) > limit or given_up.is_set():
                    break
        if response.is_success and len(content) > limit:
            raise ServerError(
                f"{url}: the answer is larger than {limit:,} bytes; expected one vector of each input (of "
                "llama-server: --pooling mean)"
            )
        return response, bytes(content)

    def _within(self, exchange: Callable[[threading.Event], _Answer]) -> _Answer:
        """What an exchange gives; where it takes longer, nobody waits for it, and it is told to give up.

        A thread of its own, as a limit on each step of a request is none on all of them together.
        """
        done: SimpleQueue[_Answer | BaseException] = SimpleQueue()
        given_up = threading.Event()

        def work() -> None:
            try:
                done.put(exchange(given_up))
            except BaseException as error:  # raised again where it is waited for
                done.put(error)

        threading.Thread(target=work, daemon=True).start()
        try:
            answer = done.get(timeout=self._patience.timeout)
        except Empty:
            raise TimeoutError from None
        finally:
            given_up.set()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _refusal(self, url: str, response: httpx.Response, content: bytes) -> ServerError:
        """What an answer that is no success means: try again, ask for less, or tell the user what to do."""
        status, key = response.status_code, self._key
        if status in {401, 403}:  # what it says of a key is not passed on
            return ServerError(self._about_key(url, status))
        said = told(complaint_of(content), key)
        reason = f"answered HTTP {status}" + (f" ({said})" if said else "")
        its_own = status >= 500  # noqa: PLR2004 -- the server's errors
        if status in _FEWER or (its_own and _TOO_MUCH.search(said)):
            return TooMuchError(url, reason)
        if (status in _AGAIN or (its_own and status not in _NEVER)) and not _quota_spent(content):
            asked = seconds_asked(response.headers.get("retry-after"), self._patience.date())
            if asked is not None and asked > LONGEST_ASKED:
                return ServerError(f"{url} {reason}, and asks to wait {asked:,.0f} s. {_GO_ON} then")
            if asked is not None:
                self._pace.hold(asked)
            return _TransientError(reason, asked=asked)
        if location := response.headers.get("location"):
            reason += f" and points to {told(location.partition('?')[0], key)}: give its address there"
        elif status == 404:  # noqa: PLR2004 -- not found
            others = self.other_models() if url == self.endpoint.embeddings else ""
            reason += f": expected a server with that path and that model{others}"
        return ServerError(f"{url} {reason}")

    def _about_key(self, url: str, status: int) -> str:
        named = " or ".join(self._variables)
        if self._key is not None:
            return f"{url} refuses the key in {self._key.variable} (HTTP {status}); keys are looked for in {named}"
        among = "" if VARIABLE in self._variables else f". {VARIABLE} is not used where a run asks two hosts"
        return f"{url} wants a key (HTTP {status}): set {named}{among}"


def _quota_spent(content: bytes) -> bool:
    try:
        return bool(parse_json(content)["error"]["code"] == "insufficient_quota")
    except (ValueError, KeyError, TypeError):
        return False


def _connections(endpoint: Endpoint, key: Key | None, patience: Patience) -> httpx.Client:
    import httpx  # noqa: PLC0415 -- an extra, and slow to import

    # httpx unpacks more than gzip, and one thing in another: a small answer could fill the memory at once
    headers = {"User-Agent": f"quantdrift/{version_of('quantdrift') or '0'}", "Accept-Encoding": "gzip"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key.value}"
    here = endpoint.host in {"localhost", "127.0.0.1", "::1"}  # a proxy could not reach it
    try:
        httpx.URL(endpoint.embeddings)
    except httpx.InvalidURL as error:
        raise UnsupportedError(f"{endpoint.url} is no address that can be asked: {error}") from error
    try:
        return httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(patience.timeout, connect=10.0),
            transport=patience.transport,
            follow_redirects=False,  # so the key stays with the host that it was meant for
            mounts=dict.fromkeys(("http://", "https://")) if here else None,
            trust_env=not here or endpoint.url.startswith("https:"),
        )
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
        raise UnsupportedError(
            f"{endpoint.url} cannot be asked, as what the environment says of proxies or certificates (HTTP_PROXY, "
            f"HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE, SSL_CERT_DIR) cannot be used: {error}"
        ) from error
