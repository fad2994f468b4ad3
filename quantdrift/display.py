"""Text from outside made fit to be shown: on one line, of a length, and without hidden characters.

Names of inputs, items and slices come from data that others wrote. A terminal obeys control
characters, and a reviewer is fooled by characters that turn the direction of what follows.
"""

from __future__ import annotations

import re

__all__ = ["NAME", "clean", "shorten", "shown"]

NAME = 60
"""Characters of a name that are shown."""

# control characters, half surrogates, direction marks, invisible characters, no characters at all
_HIDDEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    r"\u3164\ud800-\udfff\ufe00-\ufe0d\ufeff\uffa0\ufff0-\uffff\U000e0000-\U000e0fff]"
)


def clean(text: str) -> str:
    """Text on one line, with hidden characters replaced by the sign for what cannot be shown.

    >>> clean("two\\nlines \\x1b[31mred")
    'two lines �[31mred'
    """
    return _HIDDEN.sub("�", " ".join(text.split()))


def shorten(text: str, limit: int) -> str:
    """Text of a greatest length; the middle is left out, as names often differ at their end.

    >>> shorten("abcdefghij", 5)
    'ab…ij'
    """
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[-tail:]}"


def shown(name: str | None, limit: int = NAME) -> str:
    """A name for a table; "-" if there is none.

    Args:
        name: from outside.
        limit: characters.
    """
    if name is None:
        return "-"
    return shorten(clean(name), limit) or "(empty)"
