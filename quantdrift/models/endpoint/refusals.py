"""What a server's refusal means: try again, ask for less, or tell the user what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from quantdrift.errors import ServerError
from quantdrift.models.endpoint.answers import complaint_of
from quantdrift.models.endpoint.key import VARIABLE, Key, told
from quantdrift.records import parse_json

__all__ = ["Refusal", "TooMuchError", "TransientError", "refusal_of"]

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
        self,
        reason: str,
        *,
        hint: str = "",
        attempts: int = ATTEMPTS,
        retry_after: float | None = None,
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
        among = (
            "" if VARIABLE in variables else f". {VARIABLE} is not used where a run asks two hosts"
        )
        return f"{refusal.url} wants a key (HTTP {refusal.status}): set {named}{among}"
    return (
        f"{refusal.url} refuses the key in {key.variable} (HTTP {refusal.status}); keys are looked "
        f"for in {named}"
    )


def _code_of(content: bytes) -> str:
    try:
        said = parse_json(content)
        return str(said["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""
