"""The output of a command, and the one way to print it: as tables and sentences, as JSON or as Markdown."""

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
"""Styles of verdicts, which stand in a table's last column."""
_FIRST = 24
"""Columns that the words of a table need beside its numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """All that a command says: `data` is the JSON; `about` stands above the tables and `lines` below.

    `next`, on a terminal only, is where something lies and what to type next: lines that are not broken. `text` is
    printed as it is, whatever the format but JSON, and `markdown` as Markdown. `code` is the exit code.
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
    """The format that was asked for; a table if none was."""
    if len(asked) > 1:
        raise QuantDriftError(f"expected {' or '.join(f'--{name}' for name in asked)}; got both")
    return cast(Form, asked[0]) if asked else "table"


def emit(shown: Output, form: Form = "table") -> None:
    """Print what a command found."""
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
    """A table with its title and its lines, as Markdown: its first rows, if so many are told; `names` are code."""
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
        for line in grid.lines:
            out.print(line, soft_wrap=bool(grid.plain))  # below what is not broken
    for line in shown.lines:
        out.print(line)
    for line in shown.next:
        out.print(line, style=_STYLES.get(line.partition(":")[0]), soft_wrap=True)


def _print_table(grid: Grid, out: Console) -> None:
    """Numbers are not broken: where the terminal is too narrow for them, the table is wider."""
    from quantdrift.base.console import console

    numbers = {column for column, name in enumerate(grid.head) if column and name not in grid.words}
    cells = [[_on_terminal(cell, grid) for cell in row] for row in (grid.head, *grid.rows)]
    needed = _FIRST + sum(max(len(part) for row in cells for part in row[column].split("\n")) + 3 for column in numbers)
    place = out if needed <= out.width else console(wide=True)
    place.print(_table(grid, cells, numbers if needed <= place.width else set()))


def _on_terminal(cell: str, grid: Grid) -> str:
    text = clean(cell)
    return text.replace(" (", "\n(") if grid.stacked else text


def _table(grid: Grid, cells: Sequence[Sequence[str]], unbroken: Collection[int]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=clean(grid.title) or None, title_justify="left", show_lines=grid.stacked)
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
