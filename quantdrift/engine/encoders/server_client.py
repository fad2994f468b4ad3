"""Requests to one model on a server: sent again where that can help, else an error of one line.

A server may be slow, broken or hostile. So an answer has a time in which all of it has to come, a
size, and no more than some of its fields are kept or shown.
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.display import clean, shorten
from quantdrift.errors import ServerError, UnsupportedError
from quantdrift.records import parse_json

if TYPE_CHECKING:
    from tenacity import RetryCallState, Retrying
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, TypeVar, cast

from quantdrift.display import NAME
from quantdrift.errors import MissingExtraError
from quantdrift.spec import Endpoint

if TYPE_CHECKING:
    import httpx

    _Answer = tuple[httpx.Response, bytes]

# --- When the next request may start: so many a minute, and none while the server asks to wait ----

LONGEST = 1e9
"""Seconds of a wait that are believed."""


class StoppedError(Exception):
    """The run was given up while a request waited; nobody is there to hear of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How time is told and spent.

    Attributes:
        now: seconds since any moment, never going back.
        sleep: waits so many seconds.
        date: seconds since 1970.
    """

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    date: Callable[[], float] = time.time


class Pace:
    """Spaces out the requests to one server; several threads may ask.

    Requests start evenly, a minute over the limit apart, so no minute has more of them.
    """

    def __init__(self, per_minute: float | None, clock: Clock) -> None:
        """Start with a request allowed at once.

        Args:
            per_minute: requests that may start in any minute, at most; None for no limit.
            clock: how time passes.
        """
        self._interval = 0.0 if per_minute is None else 60.0 / per_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._next = self._held = clock.now()
        self._stopped = False

    def wait(self) -> None:
        """Return when a request may start.

        Raises:
            StoppedError: the run was given up.
        """
        while True:
            with self._lock:
                now = self._clock.now()
                start = max(now, self._next)
                self._next = start + self._interval
            self.pause(start - now)
            if self._held <= start:  # else the server asked to wait for longer in the meantime
                return

    def pause(self, seconds: float) -> None:
        """Wait.

        Args:
            seconds: how long; nothing happens if it is not positive.

        Raises:
            StoppedError: the run was given up.
        """
        if seconds > 0:
            self._clock.sleep(seconds)
        if self._stopped:
            raise StoppedError

    def hold(self, seconds: float) -> None:
        """Let no request start for a while, of any thread: the server asks for it.

        Args:
            seconds: how long.
        """
        with self._lock:
            self._held = max(self._held, self._clock.now() + seconds)
            self._next = max(self._next, self._held)

    def stop(self) -> None:
        """Give up: whoever waits raises `StoppedError` when it wakes up."""
        self._stopped = True


def seconds_asked(retry_after: str | None, clock: Clock) -> float | None:
    """The seconds that a Retry-After header asks to wait; None where it says nothing.

    Args:
        retry_after: a number of seconds, or an HTTP date.
        clock: tells what date it is.
    """
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - clock.date()
        except ValueError:
            return None
    if seconds != seconds:  # noqa: PLR0124 -- NaN is no number
        return None
    return min(max(0.0, seconds), LONGEST)


# --- A server's answer to a request for embeddings, as a matrix, or what is wrong with it ---------

_PAGE = 4096
"""Bytes of what is no JSON that are looked at."""
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


class OneInputError(ServerError):
    """One input cannot be embedded; whoever knows its name says it.

    Attributes:
        number: position of the input among those that were sent.
        reason: what is wrong with it, or what the server says of it.
    """

    def __init__(self, number: int, reason: str) -> None:
        self.number = number
        self.reason = reason
        super().__init__(f"input {number}: {reason}")


def read_json(content: bytes, content_type: str) -> Any:
    """What a server answered, as JSON values.

    Args:
        content: the body.
        content_type: as the server calls it.

    Raises:
        ServerError: it is something else.
    """
    try:
        return parse_json(content)
    except ValueError as error:
        kind = content_type.partition(";")[0].strip() or "no content type"
        raise ServerError(f"expected JSON; got {kind}: {_text(content) or 'nothing'}") from error


def complaint_of(content: bytes) -> str:
    """What a server says is wrong: `error.message`, `error`, `detail`, or the text.

    Args:
        content: the body of its answer.
    """
    try:
        said = parse_json(content)
    except ValueError:
        return _text(content)
    for name in ("error", "message", "detail"):
        while isinstance(said, Mapping) and said.get(name):
            said = said[name]
    return said if isinstance(said, str) else json.dumps(said)


def read_embeddings(answer: Any, n: int, dimensions: int | None) -> NDArray[np.float32]:
    """The embeddings of an answer in the order of the inputs, whatever order they came in.

    Args:
        answer: JSON values; each embedding is a list of numbers, or little-endian float32 in
            base64.
        n: number of inputs that were sent.
        dimensions: of the model as far as it is known; None for the first answer.

    Returns:
        float32 [n, dim].

    Raises:
        OneInputError: an embedding is missing, empty, or not of finite numbers.
        ServerError: the answer is no list of n embeddings, or they are not all of one length.
    """
    entries = answer.get("data") if isinstance(answer, Mapping) else None
    if not isinstance(entries, list) or not all(isinstance(one, Mapping) for one in entries):
        got = json.dumps(answer)
        raise ServerError(f'expected {{"data": [{{"embedding": ...}}, ...]}}; got {got}')
    if len(entries) != n:
        raise ServerError(f"expected {n} embeddings for {n} inputs; got {len(entries)}")
    rows: list[NDArray[np.float32] | None] = [None] * n
    for place, entry in zip(_places(entries), entries, strict=True):
        rows[place] = _vector(entry.get("embedding"), place)
    vectors = [row for row in rows if row is not None]
    for place, row in enumerate(vectors):
        wanted = len(vectors[0]) if dimensions is None else dimensions
        if len(row) != wanted:
            raise ServerError(
                f"embeddings are of different lengths: {wanted} numbers and {len(row)} (input "
                f"{place}); expected one model to answer all the time"
            )
    return np.stack(vectors)


def _places(entries: Sequence[Mapping[str, Any]]) -> list[int]:
    """The input that each entry is of."""
    said = [entry.get("index") for entry in entries]
    if all(index is None for index in said):
        return list(range(len(entries)))
    if sorted(index for index in said if type(index) is int) != list(range(len(entries))):
        raise ServerError(f"expected each index from 0 to {len(entries) - 1} once; got {said}")
    return [int(index) for index in said if index is not None]


def _vector(embedding: Any, place: int) -> NDArray[np.float32]:
    if embedding is None:
        raise OneInputError(place, "the server gave no embedding of it")
    try:
        if isinstance(embedding, str):
            vector = np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4")
        else:
            with np.errstate(over="ignore"):  # what is too large is infinite, and refused below
                vector = np.asarray([*embedding], dtype=np.float64).astype(np.float32)
    except (TypeError, ValueError, OverflowError) as error:  # base64's own error is a ValueError
        got = json.dumps(embedding)
        raise OneInputError(place, f"its embedding is no list of numbers: {got}") from error
    if vector.size == 0:
        raise OneInputError(place, "the server gave no embedding of it")
    if vector.ndim != 1:
        raise OneInputError(
            place,
            f"the server gave {len(vector)} vectors for it; expected one. Start the server with "
            "pooling (llama-server --pooling mean, or what the model was trained with)",
        )
    if not np.isfinite(vector).all():
        raise OneInputError(place, "its embedding holds null, NaN or infinity")
    return np.asarray(vector, dtype=np.float32)


def _text(content: bytes) -> str:
    text = content[:_PAGE].decode(errors="replace").strip()
    title = _TITLE.search(text)
    return title[1] if title else text


# --- Which key a server gets: one that was meant for it, and no other -----------------------------

VARIABLE = "QUANTDRIFT_OPENAI_KEY"
OPENAI_VARIABLE = "OPENAI_API_KEY"
OPENAI_HOST = "api.openai.com"
_SHORTEST = 4
"""Characters: fewer are no secret, and stand in many a word."""
_PIECE = 12
"""Characters of half a key: less may be a word."""
_LOOSE = re.IGNORECASE | re.DOTALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What is sent as a bearer token.

    Attributes:
        value: the key; never shown, not even by repr.
        variable: of the environment, where it was found.
    """

    value: str = field(repr=False)
    variable: str


def variables(host: str, hosts: Collection[str]) -> list[str]:
    """The variables that a host's key is looked for in, first come first served.

    One key is not sent to two hosts: where a run has two, the variable without a host in its name
    is for neither.

    Args:
        host: that is asked.
        hosts: all that the run asks.
    """
    named = [f"{VARIABLE}_{re.sub('[^A-Z0-9]+', '_', host.upper()).strip('_')}"]
    if set(hosts) <= {host}:
        named.append(VARIABLE)
    if host == OPENAI_HOST:
        named.append(OPENAI_VARIABLE)
    return named


def find_key(host: str, hosts: Collection[str]) -> Key | None:
    """The key of a server; None where there is none, as servers of one's own need none.

    Args:
        host: that is asked.
        hosts: all that the run asks.

    Raises:
        UnsupportedError: it holds what no header can hold.
    """
    for variable in variables(host, hosts):
        value = os.environ.get(variable, "").strip()
        if not value:
            continue
        if not (value.isascii() and value.isprintable()) or " " in value:
            raise UnsupportedError(
                f"the environment variable {variable} holds no key: expected letters, digits and "
                "signs on one line, without spaces"
            )
        return Key(value=value, variable=variable)
    return None


def told(text: str, key: Key | None, limit: int = 200) -> str:
    """What a server said, fit to be shown or stored: on one line, of a length, without the key.

    The key is recognized in capitals, spaced out, in base64, and where it is long the longer of two
    pieces of it.

    Args:
        text: as it came, in full: half a key is not recognized at an end that was cut off.
        key: that was sent.
        limit: characters.
    """
    if key is not None and len(key.value) >= _SHORTEST:
        text = re.sub("|".join(map(_loosely, _forms(key.value))), "***", text, flags=_LOOSE)
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


# --- What a server's refusal means: try again, ask for less, or tell the user what to do ----------

ATTEMPTS = 8
_AGAIN = frozenset({408, 409, 425, 429})
_NEVER = frozenset({501, 505})
"""Of the server's own errors those that stay: it cannot do this at all."""
_FEWER = frozenset({400, 413, 422})
_TOO_MUCH = re.compile(r"too (large|long|many|big)|exceed", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An answer that is no success.

    Attributes:
        url: that was asked.
        status: HTTP status.
        content: the body.
        location: where it points to, if it does.
        retry_after: seconds that it asks to wait; None if it does not.
    """

    url: str
    status: int
    content: bytes
    location: str = ""
    retry_after: float | None = None


class TransientError(ServerError):
    """The same request may succeed later.

    Attributes:
        reason: what happened.
        hint: what to do if it goes on.
        attempts: after how many it is given up.
        retry_after: seconds to wait before the next; None if nobody said.
    """

    def __init__(
        self, reason: str, *, hint: str = "", attempts: int = ATTEMPTS, retry_after: float | None = None
    ) -> None:
        self.reason, self.hint = reason, hint
        self.attempts, self.retry_after = attempts, retry_after
        super().__init__(reason)


class TooMuchError(ServerError):
    """The server refuses these inputs; some of them alone may do.

    Attributes:
        reason: what it says.
    """

    def __init__(self, message: str, reason: str) -> None:
        self.reason = reason
        super().__init__(message)


def refusal_of(refusal: Refusal, *, key: Key | None, variables: Sequence[str]) -> ServerError:
    """What a refusal means, as the error to raise.

    Args:
        refusal: what came.
        key: that was sent; never part of a message.
        variables: where a key is looked for.
    """
    status, url = refusal.status, refusal.url
    if status in {401, 403}:  # what it says of a key is not passed on
        return ServerError(_about_key(refusal, key, variables))
    said = told(complaint_of(refusal.content), key)
    reason = f"answered HTTP {status}" + (f" ({said})" if said else "")
    own = status >= 500  # noqa: PLR2004 -- the server's own errors
    if status in _FEWER or (own and _TOO_MUCH.search(said)):  # the latter from llama.cpp
        return TooMuchError(f"{url} {reason}", reason)
    spent = _code_of(refusal.content) == "insufficient_quota"
    if not spent and (status in _AGAIN or (own and status not in _NEVER)):
        return TransientError(reason, retry_after=refusal.retry_after)
    if refusal.location:
        place = told(refusal.location.partition("?")[0], key)
        reason += f" and points to {place}: give its address there"
    elif status == 404:  # noqa: PLR2004 -- not found
        reason += ": expected a server with that path and that model"
    return ServerError(f"{url} {reason}")


def _about_key(refusal: Refusal, key: Key | None, variables: Sequence[str]) -> str:
    named = " or ".join(variables)
    if key is None:
        among = "" if VARIABLE in variables else f". {VARIABLE} is not used where a run asks two hosts"
        return f"{refusal.url} wants a key (HTTP {refusal.status}): set {named}{among}"
    return f"{refusal.url} refuses the key in {key.variable} (HTTP {refusal.status}); keys are looked for in {named}"


def _code_of(content: bytes) -> str:
    try:
        said = parse_json(content)
        return str(said["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""


# --- retries --------------------------------------------------------------------------------------

LONGEST_WAIT = 60.0
TOLD_WAIT = 5.0
"""Seconds of a wait from which the user is told."""


def _silent(_line: str) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long is waited, for what, and who is told.

    Attributes:
        requests_per_minute: that may start at most; None for no limit.
        timeout: seconds to wait for an answer; the first request may load the model.
        clock: how time passes.
        say: called with a line where a wait is long.
        transport: of httpx, in place of the network.
    """

    requests_per_minute: float | None = None
    timeout: float = 120.0
    clock: Clock = field(default_factory=Clock)
    say: Callable[[str], None] = _silent
    transport: Any = None


def retrying(url: str, pace: Pace, patience: Patience) -> Retrying:
    """What calls a function again for as long as that raises a `TransientError`.

    Between two calls it waits the seconds that the error carries; where it carries none, half a
    second, one, two and so on up to a minute, each with up to a second of chance, so that requests
    that failed together do not come back together.

    Args:
        url: that is asked, for messages.
        pace: waits.
        patience: who is told.

    Raises:
        ImportError: tenacity is not installed.
    """
    import tenacity  # noqa: PLC0415 -- an extra

    backoff = tenacity.wait_exponential(multiplier=0.5, max=LONGEST_WAIT)
    backoff_with_chance = backoff + tenacity.wait_random(0, 1)

    def wait(state: RetryCallState) -> float:
        asked = _error(state).retry_after
        return asked if asked is not None else float(backoff_with_chance(state))

    def tell(state: RetryCallState) -> None:
        seconds = state.next_action.sleep if state.next_action else 0.0
        if seconds >= TOLD_WAIT:
            patience.say(f"{url} {_error(state).reason}; next try in {seconds:.0f} s")

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(TransientError),
        wait=wait,
        stop=lambda state: state.attempt_number >= _error(state).attempts,
        sleep=pace.pause,
        before_sleep=tell,
        reraise=True,
    )


def _error(state: RetryCallState) -> TransientError:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, TransientError)  # nothing else is tried again
    return error


# --- client ---------------------------------------------------------------------------------------

Result = TypeVar("Result")

ATTEMPTS_TO_CONNECT = 3
"""Before anything was answered: more likely a wrong address than a server that is busy."""
LONGEST_ASKED = 600.0
"""Seconds a server may ask to wait before that is an error, which says how long."""
NOT_FOUND = 404
_LISTED = 12
_EMBEDDING = 500_000
"""Bytes of an embedding in an answer: 16,384 numbers of 30 characters."""
_LIST = 8_000_000
"""Bytes of a list of models."""
_COMPLAINT = 65_536
"""Bytes that are read of an answer that is no success."""
_PACKED = frozenset({"", "identity", "gzip"})
_TOLD = 300
"""Characters of an error about an answer, what it quotes included."""
_TEXTS = ("id", "owned_by", "root")
_NUMBERS = ("created", "max_model_len")
"""What is kept of an entry in a list of models."""


class EndpointClient:
    """Asks a server for embeddings; may be used from several threads."""

    def __init__(self, endpoint: Endpoint, *, key: Key | None, patience: Patience, hosts: Sequence[str] = ()) -> None:
        """Nothing is sent yet.

        Args:
            endpoint: the model.
            key: what it is asked with.
            patience: how long is waited.
            hosts: all that the run asks, to say which variable a key belongs in.

        Raises:
            MissingExtraError: httpx or tenacity is not installed.
            UnsupportedError: the URL names no host, or the environment no usable proxy.
        """
        self._pace = Pace(patience.requests_per_minute, patience.clock)
        try:
            import httpx  # noqa: PLC0415 -- an extra, and slow to import

            self._retrying = retrying(endpoint.url, self._pace, patience)
        except ImportError as error:
            package = (error.name or "httpx").partition(".")[0]
            raise MissingExtraError(package, "openai", needed_for=str(endpoint)) from error
        self.endpoint = endpoint
        self._key, self._patience = key, patience
        self._variables = variables(endpoint.host, hosts or (endpoint.host,))
        self._answered = False
        self._dimensions: int | None = None
        self._failed: tuple[type[Exception], ...] = (httpx.RequestError, TimeoutError)
        self._unreached: tuple[type[Exception], ...] = (httpx.ConnectError, httpx.ConnectTimeout)
        self._http = _connections(endpoint, key, patience)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The embeddings of one request.

        Args:
            texts: what is embedded, as it is sent.

        Returns:
            float32 [n, dim].

        Raises:
            TooMuchError: the server refuses these inputs; fewer may do.
            OneInputError: an embedding is not of finite numbers.
            ServerError: it cannot be reached, refuses, or answers something else.
        """
        body = {"model": self.endpoint.model, "input": list(texts), "encoding_format": "float"}
        limit = (1 + len(texts)) * _EMBEDDING
        response, content = self._ask("POST", self.endpoint.embeddings, body, limit)
        try:
            answer = read_json(content, response.headers.get("content-type", ""))
            vectors = read_embeddings(answer, len(texts), self._dimensions)
        except OneInputError as error:
            said = told(error.reason, self._key, _TOLD)
            raise OneInputError(error.number, said) from None
        except ServerError as error:
            said = told(str(error), self._key, _TOLD)
            raise ServerError(f"{self.endpoint.embeddings}: {said}") from None
        self._dimensions = vectors.shape[1]
        return vectors

    def listed(self) -> dict[str, dict[str, str | int]] | None:
        """What the server says of each model that it lists, by id; None where it has no list."""
        try:
            _, content = self._once("GET", self.endpoint.models, None, _LIST)
            entries = read_json(content, "")["data"]
            return {entry["id"]: self._kept(entry) for entry in entries if "id" in entry}
        except (ServerError, KeyError, TypeError):
            return None

    def other_models(self) -> str:
        """What to add to an error where the model may be what is wrong; empty where it is not."""
        listed = self.listed()
        if listed is None or self.endpoint.model in listed:
            return ""
        names = [told(str(name), self._key, NAME) for name in list(listed)[:_LISTED]]
        more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
        return f"; the server lists {', '.join(names) or 'no model'}{more}"

    def _kept(self, entry: Mapping[str, Any]) -> dict[str, str | int]:
        texts = {name: entry.get(name) for name in _TEXTS}
        numbers = {name: entry.get(name) for name in _NUMBERS}
        return {
            **{name: told(it, self._key) for name, it in texts.items() if isinstance(it, str)},
            **{name: it for name, it in numbers.items() if type(it) is int and 0 <= it < 1 << 53},
        }

    def stop(self) -> None:
        """Give up what is under way: nothing is sent any more."""
        self._pace.stop()

    def _ask(self, method: str, url: str, body: object, limit: int) -> _Answer:
        try:
            return self._retrying(self._once, method, url, body, limit)
        except TransientError as error:
            hint = error.hint or ("What was finished is kept: the same command goes on from there later")
            raise ServerError(f"{url} {error.reason} ({error.attempts} attempts). {hint}") from error

    def _once(self, method: str, url: str, body: object, limit: int) -> _Answer:
        self._pace.wait()
        exchange = partial(self._exchange, method, url, body, limit)
        try:
            response, content = _within(self._patience.timeout, exchange)
        except self._failed as error:
            raise self._unanswered(error) from error
        if response.is_success:
            self._answered = True
            return response, content
        asked = seconds_asked(response.headers.get("retry-after"), self._patience.clock)
        refusal = Refusal(
            url=url,
            status=response.status_code,
            content=content,
            location=response.headers.get("location", ""),
            retry_after=asked,
        )
        found = refusal_of(refusal, key=self._key, variables=self._variables)
        if isinstance(found, TransientError) and asked is not None:
            if asked > LONGEST_ASKED:
                raise ServerError(
                    f"{url} {found.reason}, and asks to wait {asked:,.0f} s. What was finished is "
                    "kept: the same command goes on from there then"
                )
            self._pace.hold(asked)
        if method == "POST" and response.status_code == NOT_FOUND:
            raise ServerError(f"{found}{self.other_models()}")
        raise found

    def _exchange(self, method: str, url: str, body: object, limit: int, given_up: Event) -> _Answer:
        """An answer, and of its content no more than it takes to see that it is too large."""
        with self._http.stream(method, url, json=body) as response:
            if response.headers.get("content-encoding", "identity").lower() not in _PACKED:
                raise ServerError(f"{url} packs its answer in a way that was not asked for; expected gzip, once")
            if not response.is_success:
                limit = _COMPLAINT
            content = bytearray()
            for chunk in response.iter_bytes():
                content += chunk[: limit + 1 - len(content)]  # a chunk is of some 70 MB at most
                if len(content) > limit or given_up.is_set():
                    break
        if response.is_success and len(content) > limit:
            raise ServerError(
                f"{url}: the answer is larger than {limit:,} bytes; expected one vector of each "
                "input (of llama-server: --pooling mean)"
            )
        return response, bytes(content)

    def _unanswered(self, error: Exception) -> TransientError:
        what = told(str(error), self._key) or type(error).__name__
        unreached = isinstance(error, self._unreached)
        if "Timeout" in type(error).__name__ and not unreached:
            what = f"no answer within {self._patience.timeout:g} s"
        reason = f"cannot be reached: {what}" if unreached else f"broke off: {what}"
        if unreached and not self._answered:
            hint = "Is the server running, and is that its address?"
            return TransientError(reason, hint=hint, attempts=ATTEMPTS_TO_CONNECT)
        return TransientError(reason)


def _within(seconds: float, call: Callable[[Event], Result]) -> Result:
    """The result of a call; where it takes longer, nobody waits for it, and it is told to give up.

    A thread of its own, as a limit on each step of a request is none on all of them together.
    """
    done: SimpleQueue[tuple[Result | None, BaseException | None]] = SimpleQueue()
    given_up = Event()

    def work() -> None:
        try:
            done.put((call(given_up), None))
        except BaseException as error:  # raised again where it is waited for
            done.put((None, error))

    Thread(target=work, daemon=True).start()
    try:
        result, error = done.get(timeout=seconds)
    except Empty:
        raise TimeoutError from None
    finally:
        given_up.set()
    if error is not None:
        raise error
    return cast("Result", result)


def _connections(endpoint: Endpoint, key: Key | None, patience: Patience) -> httpx.Client:
    import httpx  # noqa: PLC0415 -- an extra, and slow to import

    # httpx unpacks more, and one thing in another: a small answer could fill the memory at once
    headers = {"User-Agent": f"quantdrift/{_own_version()}", "Accept-Encoding": "gzip"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key.value}"
    # Redirects are not followed, so the key stays with the host that it was meant for. A proxy
    # could not reach what runs on this machine.
    own = endpoint.host in {"localhost", "127.0.0.1", "::1"}
    try:
        httpx.URL(endpoint.embeddings)
    except httpx.InvalidURL as error:
        raise UnsupportedError(f"{endpoint.url} is no address that can be asked: {error}") from error
    try:
        return httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(patience.timeout, connect=10.0),
            transport=patience.transport,
            follow_redirects=False,
            mounts=dict.fromkeys(("http://", "https://")) if own else None,
            trust_env=not own or endpoint.url.startswith("https:"),
        )
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
        raise UnsupportedError(
            f"{endpoint.url} cannot be asked, as what the environment says of proxies or "
            "certificates (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE, SSL_CERT_DIR) cannot "
            f"be used: {error}"
        ) from error


def _own_version() -> str:
    try:
        return version("quantdrift")
    except PackageNotFoundError:
        return "0"
