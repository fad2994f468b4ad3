"""A table as data, and as LaTeX in the paper's style: named rows, columns whose heads may share a line above them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite
from typing import Any, Literal

from quantdrift.base.display import clean

NONE = "--"
"""Stands where there is no number."""
_LATIN = 0x180
"""Letters below this are in LaTeX's usual fonts."""
_LINE = 110
"""Characters of a line of a note."""
_SIGNS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"$\pm$",
}  # fmt: skip


def escaped(text: str) -> str:
    """Return text in which LaTeX obeys nothing; signs that its usual fonts lack become question marks.

    >>> escaped("50 % of a_b & c")
    '50 \\\\% of a\\\\_b \\\\& c'
    """
    return "".join(
        _SIGNS.get(sign, sign if sign.isascii() or (sign.isalpha() and ord(sign) < _LATIN) else "?")
        for sign in clean(text)
    )


def shown(value: float | str | None, form: str = ".1%") -> str:
    """A value of a cell as LaTeX: text as it is, a number in a format; "ratio" is three digits below 1, else two."""
    if value is None or isinstance(value, str):
        return NONE if value is None else value
    if not isfinite(value):
        return NONE
    text = f"{value:{('.3f' if value < 1 else '.2f') if form == 'ratio' else form}}"
    number, percent = text.rstrip("%"), "%" if text.endswith("%") else ""
    return (f"${number}$" if form.startswith("+") else number) + percent.replace("%", r"\%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row before its cells are computed.

    Attributes:
        labels: its first cells, as LaTeX.
        of: what its cells are computed from.
        part: rows of one part stand together; a rule is between parts, and a label that the row above has is left out.
    """

    labels: tuple[str, ...]
    of: Any
    part: Any = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, as LaTeX, with what stands above it first; what its cells hold, and in which form."""

    head: str | tuple[str, ...]
    value: Callable[[Any], float | str | None]
    form: str = ".1%"

    @property
    def heads(self) -> tuple[str, ...]:
        """The head, line by line."""
        return (self.head,) if isinstance(self.head, str) else self.head


Line = tuple[tuple[str, ...], tuple[float | str | None, ...], Any]
"""Labels, values, part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with its values.

    Attributes:
        labels: heads of the columns of labels.
        columns: the others.
        lines: labels, values and part of each row.
        about: the runs that it is made of, in plain text.
        notes: what it does not show of the paper's table, or shows of something else, in plain text.
        best: which largest share is in bold: of a "column", in all of it or in each "part"; of a "row", among columns
            below one line of heads, or those of one "head".
    """

    labels: Sequence[str]
    columns: Sequence[Column]
    lines: Sequence[Line]
    about: str
    notes: Sequence[str] = ()
    best: Literal["column", "part", "row", "head"] | None = None

    @property
    def width(self) -> int:
        """How many columns it has."""
        return len(self.labels) + len(self.columns)

    @property
    def rows(self) -> list[list[str] | None]:
        """Cells as LaTeX; None is a rule."""
        rows: list[list[str] | None] = []
        before: Line | None = None
        for labels, values, part in self.lines:
            new = before is None or before[2] != part
            rows += [None] if new and before is not None else []
            same = 0 if new or before is None or part is None else _shared(labels, before[0])
            texts = [shown(value, column.form) for value, column in zip(values, self.columns, strict=True)]
            bold = [rf"\textbf{{{text}}}" if self._is_best(values, at, part) else text for at, text in enumerate(texts)]
            rows.append([*[""] * same, *labels[same:], *bold])
            before = labels, values, part
        return rows

    def to_json(self) -> dict[str, Any]:
        """Heads, labels and values, as plain numbers or LaTeX; of a row that the paper has not in this form, too."""
        return {
            "heads": [*self.labels, *(" | ".join(column.heads) for column in self.columns)],
            "rows": [[*labels, *values] for labels, values, _ in self.lines],
            "about": self.about,
            "notes": [*self.notes],
        }

    def _is_best(self, values: Sequence[float | str | None], at: int, part: Any) -> bool:
        column = self.columns[at]
        side = slice(-1) if self.best == "row" else slice(-1, None)
        beside = [place for place, other in enumerate(self.columns) if other.heads[side] == column.heads[side]]
        among = [values[place] for place in beside if self.columns[place].form == column.form]
        if self.best in {"column", "part"}:
            among = [line[1][at] for line in self.lines if self.best == "column" or line[2] == part]
        numbers = [value for value in among if isinstance(value, float)]
        return self.best is not None and len(numbers) > 1 and column.form == ".1%" and values[at] == max(numbers)

    def tabular(self) -> str:
        """The tabular environment in the paper's style."""
        depth = max(len(column.heads) for column in self.columns)
        heads = [("",) * (depth - len(column.heads)) + column.heads for column in self.columns]
        lines = [rf"\begin{{tabular}}{{{'l' * len(self.labels)}|{'c' * len(self.columns)}}}", r"\toprule"]
        for level in range(depth - 1):
            at, cells, rules = len(self.labels), [""] * len(self.labels), []
            for above, group in groupby(heads, key=lambda head: head[: level + 1]):
                n = len(list(group))
                if above[-1]:
                    cells.append(rf"\multicolumn{{{n}}}{{c}}{{{above[-1]}}}")
                    rules.append(rf"\cmidrule(lr){{{at + 1}-{at + n}}}")
                else:
                    cells += [""] * n
                at += n
            lines += [_line(cells), "".join(rules)]
        lines += [_line([*self.labels, *(head[-1] for head in heads)]), r"\midrule"]
        lines += [r"\midrule" if row is None else _line(row) for row in self.rows]
        lines.append(r"\bottomrule")
        for text in (line for note in self.notes for line in textwrap.wrap(note, _LINE)):
            lines.append(rf"\multicolumn{{{self.width}}}{{l}}{{\scriptsize {escaped(text)}}} \\")
        return "\n".join([*lines, r"\end{tabular}", ""])


def lines_of(rows: Iterable[Row], columns: Sequence[Column]) -> list[Line]:
    """The rows with their values; one without any is left out."""
    lines = [(row.labels, tuple(column.value(row.of) for column in columns), row.part) for row in rows]
    return [line for line in lines if any(value is not None for value in line[1])]


def _shared(labels: Sequence[str], before: Sequence[str]) -> int:
    """How many first labels two rows share, the last aside."""
    return next(
        (at for at, pair in enumerate(zip(labels[:-1], before, strict=False)) if pair[0] != pair[1]), len(labels) - 1
    )


def _line(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"
