"""Text from outside inside Markdown: nothing in it is taken for Markdown, HTML or a link.

A name goes into a code span, where only backticks have a meaning, and in a table also `|`. A name
that holds one of these goes into a `<code>` element, every sign in it as a character reference.
"""

from __future__ import annotations

import re

from quantdrift.display import clean

__all__ = ["code", "prose"]

_PLAIN = re.compile(r"(?!(?i:www)(?:\W|$))[^\W_](?:[^\W_]|[.,'%/+-])*|<=|>=|[%≤≥∞-]")
"""A word that Markdown leaves alone: it starts with a letter or digit, and no sign in it marks up
text, starts a link, a mention or a reference."""

_WORD = re.compile(r"""(?P<before>["'(]*)(?P<core>.*?)(?P<after>["').,;:]*)""")
_BLOCK = re.compile(r"\d+[.)]|[^\w\"'(].*")
"""What at the start of a line would begin a list, a quotation, a heading or a rule."""


def code(text: str) -> str:
    """Text as code, in a table too.

    Args:
        text: anything; what cannot be shown is replaced.

    >>> code("doc_7"), code("a|b")
    ('`doc_7`', '<code>a&#124;b</code>')
    """
    line = clean(text)
    if not line:
        return ""
    if "`" not in line and "|" not in line:
        return f"`{line}`"
    signs = (
        each if each.isalnum() or each == " " else f"&#{ord(each)};"  # no sign is left to mark up
        for each in line
    )
    # an address would become a link even so; a tag in it, which shows nothing, keeps it apart
    return "<code>" + "".join(signs).replace("&#64;", "&#64;<wbr>") + "</code>"


def prose(text: str) -> str:
    """A sentence of ours with text from outside in it: words that could mean something are code.

    >>> prose("the baseline is of <b>minilm@W4</b> (with --update).")
    'the baseline is of `<b>minilm@W4</b>` (with `--update`).'
    """
    words = clean(text).split(" ")
    return " ".join(_word(word, first=place == 0) for place, word in enumerate(words))


def _word(word: str, *, first: bool) -> str:
    parts = _WORD.fullmatch(word)
    assert parts is not None  # each part may be empty
    before, core, after = parts["before"], parts["core"], parts["after"]
    if not core:
        return word
    if _PLAIN.fullmatch(core) and not (first and _BLOCK.fullmatch(word)):
        return word
    return f"{before}{code(core)}{after}"
