"""Text from outside made fit to be shown, in a terminal, in Markdown and as JSON, and the way out.

Names of inputs, items and slices come from data that others wrote, and so do specs and paths in a run folder. A
terminal obeys control characters, a reviewer is fooled by characters that turn the direction of what follows, and the
log of a CI obeys lines that begin with "::".

Everything that quantdrift prints goes through `say`, `note`, `complain` or `print_json`, or through the console of
`quantdrift.base.console`, which clean it. A name is cleaned once more where it is put into a line (`clean`, `shown`,
`prose`), as only there it is known that it may not break the line.
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
"""Characters of a name that are shown."""

# control characters, half surrogates, direction marks, invisible characters, no characters at all
_HIDDEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    r"\u3164\ud800-\udfff\ufe00-\ufe0d\ufeff\uffa0\ufff0-\uffff\U000e0000-\U000e0fff]"
    r"|#(?=#\w*\[)"  # "##[error]" and "##vso[" are commands to GitHub and Azure, anywhere in a line
)
_HIDDEN_IN_LINES = re.compile(rf"(?![\n\t])(?:{_HIDDEN.pattern})")
_COMMAND = re.compile(r"(?m)^([^\S\n]*):(?=:)")
"""What begins a command to GitHub in its log: "::error::", at the start of a line."""


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
    """A name for a table; "-" if there is none."""
    if name is None:
        return "-"
    return shorten(clean(name), limit) or "(empty)"


def printable(text: str) -> str:
    """Text in which nothing is obeyed, character for character; line breaks and tabs stay.

    >>> printable("red: \\x1b[31m\\n::error::no")
    'red: �[31m\\n�:error::no'
    """
    return without_commands(_HIDDEN_IN_LINES.sub("�", text))


def without_commands(text: str) -> str:
    """Text that gives a CI no commands; styles of a terminal stay."""
    return _COMMAND.sub(r"\1�", text)


def one_line(text: str) -> str:
    """Text without line breaks, but for those it begins with, and without tabs.

    Unlike `clean` it keeps spaces, and so a path as it is.
    """
    body = text.lstrip("\n")
    return "\n" * (len(text) - len(body)) + " ".join(body.replace("\t", " ").splitlines())


# --- JSON -------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(4000)
    '1 h 7 min'
    """
    if seconds < 90:  # noqa: PLR2004 -- then minutes are told
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"  # noqa: PLR2004 -- an hour


def json_text(value: Any) -> str:
    """A value as indented JSON, in printable ASCII: all else is escaped, so that it reads the same.

    >>> json_text("\\u202e\\x7f")
    '"\\\\u202e\\\\u007f"'
    """
    text = json.dumps(value, indent=2, allow_nan=False).replace("\x7f", "\\u007f")
    return re.sub(r"#(?=#\w*\[)", r"\\u0023", text)  # "##vso["; and no line begins with "::"


# --- Markdown ---------------------------------------------------------------------------------

_PLAIN = re.compile(r"(?!(?i:www)(?:\W|$))[^\W_](?:[^\W_]|[.,'%/+-])*|[<>]?[+-]?\d[\d.,]*%?|<=|>=|[%≤≥∞±+/<>=-]")
"""A word that Markdown leaves alone: it starts with a letter or digit, and no sign in it marks up
text, starts a link, a mention or a reference."""

_WORD = re.compile(r"""(?P<before>["'(]*)(?P<core>.*?)(?P<after>["').,;:]*)""")
_BLOCK = re.compile(r"\d+[.)]|(?![+-]\d)[^\w\"'(].*")
"""What at the start of a line would begin a list, a quotation, a heading or a rule."""


def code(text: str) -> str:
    """Text as code, in a table too: nothing in it is taken for Markdown, HTML or a link.

    It goes into a code span, where only backticks have a meaning, and in a table also `|`. What holds one of these
    goes into a `<code>` element, every sign in it as a character reference.

    >>> code("doc_7"), code("a|b")
    ('`doc_7`', '<code>a&#124;b</code>')
    """
    line = clean(text)
    if not line:
        return ""
    if "`" not in line and "|" not in line:
        return f"`{line}`"
    signs = (
        sign if sign.isalnum() or sign == " " else f"&#{ord(sign)};"  # no sign is left to mark up
        for sign in line
    )
    # an address would become a link even so; a tag in it, which shows nothing, keeps it apart
    return "<code>" + "".join(signs).replace("&#64;", "&#64;<wbr>") + "</code>"


def prose(text: str, *, cell: bool = False) -> str:
    """A sentence of ours with text from outside in it: words that could mean something are code.

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
    """A Markdown table; nothing in its cells is taken for Markdown."""
    lines = [[prose(title, cell=True) for title in head]]
    for row in rows:
        pairs = zip(head, row, strict=True)
        lines.append(
            [code(text) if title in names and text != "-" else prose(text, cell=True) for title, text in pairs]
        )
    first, *others = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([first, "|" + "---|" * len(head), *others])


# --- what libraries say -----------------------------------------------------------------------

_MESSAGE = 400
"""Characters of what a library says that are repeated."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text; its kind where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def said_by(error: BaseException) -> str:
    """What a library's error says, in one line, with its kind."""
    if isinstance(error, pickle.UnpicklingError):
        return (
            "its weights are pickled Python, which could run anything; expected safetensors, as "
            "save_pretrained of transformers writes them"
        )
    return shorten(clean(f"{type(error).__name__}: {first_line(error)}"), _MESSAGE)


@contextmanager
def in_one_line(problem: str, then: str = "", *, kind: type[QuantDriftError] = UnsupportedError) -> Iterator[None]:
    """Inside, whatever goes wrong in a library becomes one line: the problem, what the library says, and what to do."""
    try:
        yield
    except (QuantDriftError, MemoryError):
        raise
    except BaseException as error:  # libraries have dozens of errors of their own
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # Rust's
            raise
        raise kind(f"{problem}: {said_by(error).rstrip('.')}{then}") from error


# --- the way out ------------------------------------------------------------------------------


def say(text: str = "", *, error: bool = False) -> None:
    """Print lines."""
    write(sys.stderr if error else sys.stdout, f"{printable(text)}\n")


def note(text: str) -> None:
    """Something to know, in one line on standard error."""
    say(f"note: {one_line(text)}", error=True)


def complain(text: str) -> None:
    """Print what went wrong on standard error."""
    say(f"quantdrift: {text}", error=True)


def error_line(error: BaseException) -> str:
    """An error in one line; one that is not ours is told with its kind, and whose part it was raised in."""
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
    """Write to standard output or error, where there is one."""
    if stream is None:  # closed when Python started
        return
    try:
        stream.write(text)
    except (OSError, ValueError):  # the latter of a stream that was closed
        if stream is not sys.stderr:
            raise
        let_go(stream)


def flush() -> None:
    """See that standard output is written."""
    if sys.stdout is not None:
        sys.stdout.flush()


def let_go(stream: TextIO | None) -> None:
    """Give up a stream that cannot be written: what is left in it would fail again at the end."""
    with suppress(OSError, ValueError, AttributeError):  # of a stream without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # type: ignore[union-attr]
