"""Which key a server gets: one that was meant for it, and no other."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from quantdrift.display import clean, shorten
from quantdrift.errors import UnsupportedError

__all__ = ["Key", "find_key", "told"]

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
