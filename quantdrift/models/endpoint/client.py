"""Requests to one model on a server: sent again where that can help, else an error of one line.

A server may be slow, broken or hostile. So an answer has a time in which all of it has to come, a
size, and no more than some of its fields are kept or shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from quantdrift.display import NAME
from quantdrift.errors import MissingExtraError, ServerError, UnsupportedError
from quantdrift.models.endpoint.address import Endpoint
from quantdrift.models.endpoint.answers import OneInputError, read_embeddings, read_json
from quantdrift.models.endpoint.key import Key, told, variables
from quantdrift.models.endpoint.pace import Pace, seconds_asked
from quantdrift.models.endpoint.refusals import Refusal, TransientError, refusal_of
from quantdrift.models.endpoint.retries import Patience, retrying

if TYPE_CHECKING:
    import httpx

    _Answer = tuple[httpx.Response, bytes]

__all__ = ["EndpointClient"]

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

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        key: Key | None,
        patience: Patience,
        hosts: Sequence[str] = (),
    ) -> None:
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
        body = {
            "model": self.endpoint.model,
            "input": list(texts),
            "encoding_format": "float",
        }
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
            hint = error.hint or (
                "What was finished is kept: the same command goes on from there later"
            )
            raise ServerError(
                f"{url} {error.reason} ({error.attempts} attempts). {hint}"
            ) from error

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

    def _exchange(
        self, method: str, url: str, body: object, limit: int, given_up: Event
    ) -> _Answer:
        """An answer, and of its content no more than it takes to see that it is too large."""
        with self._http.stream(method, url, json=body) as response:
            if response.headers.get("content-encoding", "identity").lower() not in _PACKED:
                raise ServerError(
                    f"{url} packs its answer in a way that was not asked for; expected gzip, once"
                )
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
        raise UnsupportedError(
            f"{endpoint.url} is no address that can be asked: {error}"
        ) from error
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
