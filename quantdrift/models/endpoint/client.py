"""Requests to one model on a server: sent again where that can help, else an error of one line."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import MissingExtraError, ServerError, UnsupportedError
from quantdrift.models.endpoint.address import Endpoint
from quantdrift.models.endpoint.answers import OneInputError, read_embeddings, read_json
from quantdrift.models.endpoint.key import Key, variables, without_key
from quantdrift.models.endpoint.pace import Pace, seconds_asked
from quantdrift.models.endpoint.refusals import Refusal, TransientError, refusal_of
from quantdrift.models.endpoint.retries import Patience, retrying

if TYPE_CHECKING:
    import httpx

__all__ = ["EndpointClient"]

ATTEMPTS_TO_CONNECT = 3
"""Before anything was answered: more likely a wrong address than a server that is busy."""
LONGEST_ASKED = 600.0
"""Seconds a server may ask to wait before that is an error, which says how long."""
NOT_FOUND = 404
_LISTED = 12


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
        self._failed: tuple[type[Exception], ...] = (httpx.RequestError,)
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
        response = self._ask("POST", self.endpoint.embeddings, body)
        try:
            answer = read_json(response.content, response.headers.get("content-type", ""))
            vectors = read_embeddings(answer, len(texts), self._dimensions)
        except OneInputError as error:
            raise OneInputError(error.number, without_key(error.reason, self._key)) from None
        except ServerError as error:
            said = without_key(str(error), self._key)
            raise ServerError(f"{self.endpoint.embeddings}: {said}") from None
        self._dimensions = vectors.shape[1]
        return vectors

    def listed(self) -> list[dict[str, Any]] | None:
        """The models that the server lists; None where it has no list, or gives none."""
        try:
            response = self._once("GET", self.endpoint.models, None)
            entries = read_json(response.content, "")["data"]
            return [dict(entry) for entry in entries if isinstance(entry["id"], str)]
        except (ServerError, KeyError, TypeError, ValueError):
            return None

    def other_models(self) -> str:
        """What to add to an error where the model may be what is wrong; empty where it is not."""
        listed = self.listed()
        names = [entry["id"] for entry in listed or []]
        if listed is None or self.endpoint.model in names:
            return ""
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        return f"; the server lists {', '.join(names[:_LISTED]) or 'no model'}{more}"

    def stop(self) -> None:
        """Give up what is under way: nothing is sent any more."""
        self._pace.stop()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _ask(self, method: str, url: str, body: object) -> httpx.Response:
        try:
            return self._retrying(self._once, method, url, body)
        except TransientError as error:
            hint = error.hint or (
                "What was finished is kept: the same command goes on from there later"
            )
            raise ServerError(
                f"{url} {error.reason} ({error.attempts} attempts). {hint}"
            ) from error

    def _once(self, method: str, url: str, body: object) -> httpx.Response:
        self._pace.wait()
        try:
            response = self._http.request(method, url, json=body)
        except self._failed as error:
            raise self._unanswered(error) from error
        if response.is_success:
            self._answered = True
            return response
        asked = seconds_asked(response.headers.get("retry-after"), self._patience.clock)
        refusal = Refusal(
            url=url,
            status=response.status_code,
            content=response.content,
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

    def _unanswered(self, error: Exception) -> TransientError:
        what = " ".join(str(error).split()) or type(error).__name__
        unreached = isinstance(error, self._unreached)
        if "Timeout" in type(error).__name__ and not unreached:
            what = f"no answer within {self._patience.timeout:g} s"
        reason = f"cannot be reached: {what}" if unreached else f"broke off: {what}"
        if unreached and not self._answered:
            hint = "Is the server running, and is that its address?"
            return TransientError(reason, hint=hint, attempts=ATTEMPTS_TO_CONNECT)
        return TransientError(reason)


def _connections(endpoint: Endpoint, key: Key | None, patience: Patience) -> httpx.Client:
    import httpx  # noqa: PLC0415 -- an extra, and slow to import

    headers = {"User-Agent": f"quantdrift/{_own_version()}"}
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
