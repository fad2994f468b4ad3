"""Which key a server gets: one that was meant for it, and no other."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass, field

from quantdrift.errors import UnsupportedError

__all__ = ["Key", "find_key", "without_key"]

VARIABLE = "QUANTDRIFT_OPENAI_KEY"
OPENAI_VARIABLE = "OPENAI_API_KEY"
OPENAI_HOST = "api.openai.com"
_SHORTEST = 4
"""Characters: fewer are no secret, and stand in many a word."""


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


def without_key(text: str, key: Key | None) -> str:
    """What a server said, without the key that it may have repeated.

    Args:
        text: may end early, in "...", in the middle of the key.
        key: that was sent.
    """
    if key is None or len(key.value) < _SHORTEST:
        return text
    text = text.replace(key.value, "***")
    said, dots, rest = text.rpartition("...")
    for n in range(len(key.value) - 1, _SHORTEST - 1, -1):
        if said.endswith(key.value[:n]):
            return f"{said[:-n]}***{dots}{rest}"
    return text
