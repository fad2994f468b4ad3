"""Tables and styled lines on a terminal, in which no text acts as a control sequence or as markup.

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
"""Width in columns below which tables of numbers would lose digits."""


def console(*, wide: bool = False, error: bool = False) -> "Console":
    """Return a console on standard output, or on standard error.

    Its width is that of the terminal or of the variable COLUMNS; without either it is wide enough for the tables.
    """
    plain = Console(error=error)
    has_width = plain.is_terminal or os.environ.get("COLUMNS", "").isdecimal()
    if error or (has_width and (not wide or plain.width >= WIDE)):
        return plain
    return Console(error=error, width=WIDE)


class _Stream:
    """A stream whose lines are never commands to a CI, also where rich has broken a long line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        write(self._stream, without_commands(text))


class Console(RichConsole):
    """A console of rich that cleans what it prints."""

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
        """Print as rich does; a string becomes one line, but keeps the empty lines that it begins with.

        A word that is wider than the terminal, mostly a path, is not broken: it has to be whole to be copied.
        """
        lines = [one_line(part) if isinstance(part, str) else part for part in objects]
        if any(len(word) > self.width for line in lines if isinstance(line, str) for word in line.split()):
            options["soft_wrap"] = True
        super().print(*lines, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Clean a string (a cell, a title, a printed line), then render it as rich does."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Clean a `Text`, then render as rich does."""
        if isinstance(renderable, Text):
            renderable = renderable.copy()
            renderable.plain = printable(renderable.plain)
        return super().render(renderable, options)
