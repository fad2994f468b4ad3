"""Tables and styled lines on a terminal: nothing in a cell or a line is obeyed or taken for markup.

Markup, emoji codes and highlighting are off: a style is given with `style=` or in a `rich.text.Text`.
"""

import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console as RichConsole  # noqa: TID251 -- what is made clean here
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from quantdrift.base.display import one_line, printable, without_commands, write

WIDE = 110
"""Columns that tables of numbers need: narrower, they would lose digits."""


def console(*, wide: bool = False, error: bool = False) -> "Console":
    """Standard output; wide enough for the tables where nothing says how wide it is.

    A terminal does, and so does the variable COLUMNS.
    """
    plain = Console(error=error)
    has_width = plain.is_terminal or os.environ.get("COLUMNS", "").isdecimal()
    if error or (has_width and (not wide or plain.width >= WIDE)):
        return plain
    return Console(error=error, width=WIDE)


class _Stream:
    """A stream whose lines give a CI no commands, wherever a long line was broken."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        write(self._stream, without_commands(text))


class Console(RichConsole):
    """Cleans what it prints."""

    def __init__(self, *, error: bool, width: int | None = None) -> None:
        stream: Any = sys.stderr if error else sys.stdout
        super().__init__(
            file=None if stream is None else _Stream(stream),  # type: ignore[arg-type] # like one
            width=width,
            markup=False,
            emoji=False,
            highlight=False,
        )

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does; a string is one line, below the empty lines that it begins with."""
        super().print(*(one_line(part) if isinstance(part, str) else part for part in objects), **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Clean a string, then do as rich does: cells, titles, and strings that are printed."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Clean a text, then do as rich does: all else."""
        if isinstance(renderable, Text):
            renderable = renderable.copy()
            renderable.plain = printable(renderable.plain)
        return super().render(renderable, options)
