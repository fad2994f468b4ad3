"""Cleaning of text from outside for a terminal, for Markdown and for JSON; and all functions that print.

Names of inputs, items and slices come from other people's data, and so do specs and paths in a run folder. A terminal
executes control characters, characters that change the writing direction deceive a reader, and the log of a CI
executes lines that begin with "::".

Everything that quantdrift prints goes through `say`, `note`, `complain` or `print_json`, or through the console of
`quantdrift.base.console`, which clean it. A name is also cleaned where it is put into a line (`clean`, `shown`,
`prose`), because there it may not contain a line break.
"""

import json
import os
import pickle
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from quantdrift.base.errors import QuantDriftError, UnsupportedError
from quantdrift.base.registry import blamed

NAME = 60
"""Most characters of a name that are shown."""

# control characters, half surrogates, direction marks, invisible characters, code points without a character
_HIDDEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    r"\u3164\ud800-\udfff\ufe00-\ufe0d\ufeff\uffa0\ufff0-\uffff\U000e0000-\U000e0fff]"
    r"|#(?=#\w*\[)"  # "##[error]" and "##vso[" are commands to GitHub and Azure, anywhere in a line
)
_HIDDEN_IN_LINES = re.compile(rf"(?![\n\t])(?:{_HIDDEN.pattern})")
_COMMAND = re.compile(r"(?m)^([^\S\n]*):(?=:)")
"""The start of a command to GitHub in its log: "::error::", at the start of a line."""


def clean(text: str) -> str:
    """Put text on one line, with hidden characters replaced by the replacement character.

    >>> clean("two\\nlines \\x1b[31mred")
    'two lines �[31mred'
    """
    return _HIDDEN.sub("�", " ".join(text.split()))


def shorten(text: str, limit: int) -> str:
    """Shorten text to a length by leaving out its middle, as names often differ at their end.

    >>> shorten("abcdefghij", 5)
    'ab…ij'
    """
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[-tail:]}"


def shown(name: str | None, limit: int = NAME) -> str:
    """A name for a table; "-" if there is none."""
    if name is None:
        return "-"
    return shorten(clean(name), limit) or "(empty)"


def printable(text: str) -> str:
    """Replace every character that a terminal or a CI would act on; line breaks and tabs stay.

    >>> printable("red: \\x1b[31m\\n::error::no")
    'red: �[31m\\n�:error::no'
    """
    return without_commands(_HIDDEN_IN_LINES.sub("�", text))


def without_commands(text: str) -> str:
    """Make commands to a CI harmless; styles of a terminal stay."""
    return _COMMAND.sub(r"\1�", text)


def one_line(text: str) -> str:
    """Replace line breaks and tabs by spaces, except for the line breaks at the start.

    Unlike `clean` it keeps spaces, and so a path as it is.
    """
    body = text.lstrip("\n")
    return "\n" * (len(text) - len(body)) + " ".join(body.replace("\t", " ").splitlines())


# --- JSON -------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """A time in words, in seconds, minutes or hours.

    >>> duration(4000)
    '1 h 7 min'
    """
    if seconds < 90:  # noqa: PLR2004 -- from there on in minutes
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"  # noqa: PLR2004 -- an hour


def json_text(value: Any) -> str:
    """A value as indented JSON in printable ASCII; all other characters are escaped.

    >>> json_text("\\u202e\\x7f")
    '"\\\\u202e\\\\u007f"'
    """
    text = json.dumps(value, indent=2, allow_nan=False).replace("\x7f", "\\u007f")
    return re.sub(r"#(?=#\w*\[)", r"\\u0023", text)  # "##vso["; and no line begins with "::"


# --- Markdown ---------------------------------------------------------------------------------

_PLAIN = re.compile(r"(?!(?i:www)(?:\W|$))[^\W_](?:[^\W_]|[.,'%/+-])*|[<>]?[+-]?\d[\d.,]*%?|<=|>=|[%≤≥∞±+/<>=-]")
"""A word that Markdown leaves alone: it starts with a letter or digit, and none of its characters marks up text or
starts a link, a mention or a reference."""

_WORD = re.compile(r"""(?P<before>["'(]*)(?P<core>.*?)(?P<after>["').,;:]*)""")
_BLOCK = re.compile(r"\d+[.)]|(?![+-]\d)[^\w\"'(].*")
"""A word that would begin a list, a quotation, a heading or a rule at the start of a line."""


def code(text: str) -> str:
    """Text as Markdown code, also in a table: nothing in it acts as Markdown, HTML or a link.

    A code span is enough unless the text contains a backtick or, for tables, a `|`. Such a text goes into a `<code>`
    element, with every sign written as a character reference.

    >>> code("doc_7"), code("a|b")
    ('`doc_7`', '<code>a&#124;b</code>')
    """
    line = clean(text)
    if not line:
        return ""
    if "`" not in line and "|" not in line:
        return f"`{line}`"
    # no sign is left to mark up
    signs = (sign if sign.isalnum() or sign == " " else f"&#{ord(sign)};" for sign in line)
    # an address would still become a link; an invisible tag inside it prevents that
    return "<code>" + "".join(signs).replace("&#64;", "&#64;<wbr>") + "</code>"


def prose(text: str, *, cell: bool = False) -> str:
    """A sentence with text from outside in it as Markdown: words that could act as markup become code.

    >>> prose("the baseline is of <b>minilm@W4</b> (with --update).")
    'the baseline is of `<b>minilm@W4</b>` (with `--update`).'
    """
    words = clean(text).split(" ")
    return " ".join(_word(word, first=not (cell or place)) for place, word in enumerate(words))


def _word(word: str, *, first: bool) -> str:
    parts = _WORD.fullmatch(word)
    assert parts is not None  # each part may be empty
    before, core, after = parts["before"], parts["core"], parts["after"]
    if not core:
        return word
    if _PLAIN.fullmatch(core) and not (first and _BLOCK.fullmatch(word)):
        return word
    if after.startswith(")") and core.count("(") > core.count(")"):
        core, after = f"{core})", after[1:]
    return f"{before}{code(core)}{after}"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, names: Collection[str] = ()) -> str:
    """A Markdown table; nothing in its cells acts as Markdown, and the columns `names` are code."""
    lines = [[prose(title, cell=True) for title in head]]
    for row in rows:
        pairs = zip(head, row, strict=True)
        lines.append(
            [code(text) if title in names and text != "-" else prose(text, cell=True) for title, text in pairs]
        )
    first, *others = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([first, "|" + "---|" * len(head), *others])


# --- errors of libraries ----------------------------------------------------------------------

_MESSAGE = 400
"""Most characters of a library's error that are shown."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class if it has no text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def said_by(error: BaseException) -> str:
    """The class and text of a library's error in one line."""
    if isinstance(error, pickle.UnpicklingError):
        return (
            "its weights are pickled Python, which could run anything; expected safetensors, as "
            "save_pretrained of transformers writes them"
        )
    return shorten(clean(f"{type(error).__name__}: {first_line(error)}"), _MESSAGE)


@contextmanager
def in_one_line(problem: str, then: str = "", *, kind: type[QuantDriftError] = UnsupportedError) -> Iterator[None]:
    """Turn any error of a library inside the block into one line: the problem, the library's words, and what to do."""
    try:
        yield
    except (QuantDriftError, MemoryError):
        raise
    except BaseException as error:  # libraries raise dozens of classes
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # Rust's
            raise
        raise kind(f"{problem}: {said_by(error).rstrip('.')}{then}") from error


# --- printing ---------------------------------------------------------------------------------


def say(text: str = "", *, error: bool = False) -> None:
    """Print lines."""
    write(sys.stderr if error else sys.stdout, f"{printable(text)}\n")


def note(text: str) -> None:
    """Print a note in one line on standard error."""
    say(f"note: {one_line(text)}", error=True)


def complain(text: str) -> None:
    """Print a problem on standard error."""
    say(f"quantdrift: {text}", error=True)


def error_line(error: BaseException) -> str:
    """An error in one line; an unexpected one with its class and the package of the part that raised it."""
    if isinstance(error, QuantDriftError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f": {shorten(str(error.filename), 200)}"
        return clean(f"{error.strerror}{where}")
    return clean(f"unexpected {type(error).__name__}{blamed(error)}: {error}").removesuffix(":")


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output."""
    write(sys.stdout, f"{json_text(value)}\n")


def write(stream: TextIO | None, text: str) -> None:
    """Write to standard output or error, if it is open."""
    if stream is None:  # closed when Python started
        return
    try:
        stream.write(text)
    except (OSError, ValueError):  # the latter of a stream that was closed
        if stream is not sys.stderr:
            raise
        let_go(stream)


def flush() -> None:
    """Flush standard output, if it is open."""
    if sys.stdout is not None:
        sys.stdout.flush()


def let_go(stream: TextIO | None) -> None:
    """Redirect a stream that cannot be written to nowhere, so that its buffer does not fail again at exit."""
    with suppress(OSError, ValueError, AttributeError):  # of a stream without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # type: ignore[union-attr]


def size_words(n_bytes: float) -> str:
    """Bytes in words.

    >>> size_words(2.5e9), size_words(3e6)
    ('2.5 GB', '3 MB')
    """
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:,.0f} MB"  # noqa: PLR2004 -- a gigabyte
