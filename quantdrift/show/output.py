"""The output of a command, printed as tables and sentences, as JSON or as Markdown."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from quantdrift.base.display import clean, markdown_table, print_json, prose, say
from quantdrift.base.errors import QuantDriftError
from quantdrift.show.tables import Grid

if TYPE_CHECKING:
    from rich.table import Table

    from quantdrift.base.console import Console

Form = Literal["table", "json", "markdown"]
_STYLES = {
    **dict.fromkeys(("pass", "no worse", "better"), "green"),
    **dict.fromkeys(("fail", "error", "worse"), "red"),
    **dict.fromkeys(("incomparable", "underpowered"), "yellow"),
}
"""Styles of verdicts in the last column of a table."""
_FIRST = 24
"""Characters of a terminal's width that are kept for the words of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The output of a command.

    Attributes:
        data: the JSON.
        title: the first line.
        about: lines above the tables.
        grids: the tables.
        lines: sentences below the tables.
        next: lines on a terminal alone, which are not wrapped: the files written and the commands to type next.
        text: printed in place of all of these in every format but JSON.
        markdown: printed in place of them as Markdown.
        code: the exit code.
    """

    data: Any = None
    title: str = ""
    about: Sequence[str] = ()
    grids: Sequence[Grid] = ()
    lines: Sequence[str] = ()
    next: Sequence[str] = ()
    text: str = ""
    markdown: str = ""
    code: int = 0


def form_of(asked: Sequence[str]) -> Form:
    """The format that the options ask for; by default a table."""
    if len(asked) > 1:
        raise QuantDriftError(f"expected {' or '.join(f'--{name}' for name in asked)}; got both")
    return cast(Form, asked[0]) if asked else "table"


def emit(shown: Output, form: Form = "table") -> None:
    """Print the output of a command."""
    if form == "json":
        print_json(shown.data)
    elif text := shown.text or (shown.markdown if form == "markdown" else ""):
        say(text.removesuffix("\n"))
    elif form == "markdown":
        _emit_markdown(shown)
    else:
        _emit_tables(shown)


def _emit_markdown(shown: Output) -> None:
    blocks = [grid_markdown(grid) for grid in shown.grids]
    blocks += ["\n".join(f"- {prose(line)}" for line in shown.lines)] if shown.lines else []
    say("\n\n".join(blocks))


def grid_markdown(grid: Grid, *, names: Collection[str] = (), most: int | None = None) -> str:
    """A table with its title and lines as Markdown, at most `most` rows; the columns in `names` are shown as code."""
    more = [] if most is None or len(grid.rows) <= most else [f"and {len(grid.rows) - most:,} more rows"]
    lines = "\n".join(f"- {prose(line)}" for line in (*more, *grid.lines))
    title = f"**{prose(grid.title)}**" if grid.title else ""
    return "\n\n".join(filter(None, [title, markdown_table(grid.head, grid.rows[:most], names=names), lines]))


def _emit_tables(shown: Output) -> None:
    from rich.text import Text

    from quantdrift.base.console import console

    out = console()
    if shown.title:
        out.print(Text(clean(shown.title), "bold"), soft_wrap=True)
    for line in shown.about:
        out.print(line)
    for grid in (shown_grid.on_terminal or shown_grid for shown_grid in shown.grids):
        if grid.plain or not grid.rows:
            out.print(Text(clean(grid.title), "bold"), soft_wrap=True)
            for line in (*grid.plain, ""):
                out.print(line, soft_wrap=True)
        else:
            _print_table(grid, out)
        for line in (*grid.lines, *([""] if grid.plain and grid.lines else [])):
            out.print(line, soft_wrap=bool(grid.plain))
    for line in shown.lines:
        out.print(line)
    for line in shown.next:
        out.print(line, style=_STYLES.get(line.partition(":")[0]), soft_wrap=True)


def _print_table(grid: Grid, out: Console) -> None:
    """Print a table; if the terminal is too narrow for its numbers, the table is wider, and numbers stay whole."""
    from rich.text import Text

    from quantdrift.base.console import console

    numbers = {column for column, name in enumerate(grid.head) if column and name not in grid.words}
    cells = [[_on_terminal(cell, grid) for cell in row] for row in (grid.head, *grid.rows)]
    needed = _FIRST + sum(max(len(part) for row in cells for part in row[column].split("\n")) + 3 for column in numbers)
    place = out if needed <= out.width else console(wide=True)
    if grid.title:
        place.print(Text(clean(grid.title), "italic"), soft_wrap=True)
    place.print(_table(grid, cells, numbers if needed <= place.width else set()))


def _on_terminal(cell: str, grid: Grid) -> str:
    text = clean(cell)
    return text.replace(" (", "\n(") if grid.stacked else text


def _table(grid: Grid, cells: Sequence[Sequence[str]], unbroken: Collection[int]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=grid.stacked)
    for column, name in enumerate(cells[0]):
        words = column == 0 or grid.head[column] in grid.words
        table.add_column(name, justify="left" if words else "right", overflow="fold", no_wrap=column in unbroken)
    before = ""
    for *row, last in cells[1:]:
        if grid.ruled and before and (row or [last])[0] != before:
            table.add_section()
        before = (row or [last])[0]
        table.add_row(*row, Text(last, _STYLES.get(last, "")))
    return table
