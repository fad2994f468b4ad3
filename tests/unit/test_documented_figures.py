"""Figures of the pages are those of their tables: docs/measured/figures.yaml says which, and how to add one.

README.md and the tutorials are held to every figure they state, and so is every table that has an entry.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.places import ROOT

LIST = ROOT / "docs" / "measured" / "figures.yaml"
TABLES = LIST.parent / "tables"
ENTRIES: dict[str, Any] = yaml.safe_load(LIST.read_text(encoding="utf-8"))
WHOLE = {"README.md", *(f"docs/tutorials/{page.name}" for page in (ROOT / "docs" / "tutorials").glob("*.md"))}
"""Pages whose every figure has an entry."""
NUMBER = r"(?<![\d.,])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?!\d)"
MEASURED = re.compile(r"\d[\d,]*(?:\.\d+)+|\d[\d,]*(?= %)")
"""What looks measured: a decimal, or a percentage."""
ASIDE = re.compile(r"^```(\w*)$.*?^```$|^    .*?$|`[^`\n]*`|\]\([^)\s]*\)", re.MULTILINE | re.DOTALL)
"""Blocks of code, code in a line, and the targets of links."""
HOLE = re.compile(r"\{(?:([^{}]*?): )?(?:(-?[\d.]+) \* )?([^{}]+?)(?:#(\d+))?\}")
"""CELLS: FACTOR * COLUMN#NTH in braces, of which the column alone is always there."""
Entry = Mapping[str, Any]
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What an entry covers of a page, from start to end; a figure also has its value in the table, and the place."""

    start: int
    end: int
    value: Decimal | None = None
    place: str = ""


def value_of(number: str) -> Decimal:
    return Decimal(number.replace(",", ""))


def agrees(printed: str, value: Decimal) -> bool:
    """Whether a figure is a value, rounded to as many digits as are printed."""
    shown = value_of(printed)
    return abs(shown - value) <= Decimal((0, (5,), int(shown.as_tuple().exponent) - 1))


def plain(text: str) -> str:
    """Text without commas in its numbers."""
    return re.sub(r"(?<=\d),(?=\d{3})", "", text)


@cache
def rows_of(table: str) -> list[tuple[Row, set[str]]]:
    """The rows of a table, each with the ways in which its cells can be named."""
    with (TABLES / table).open(encoding="utf-8", newline="") as file:
        head, *lines = csv.reader(file)
    assert len({*head}) == len(head), f"tables/{table} has two columns of one name"
    rows = [dict(zip(head, line, strict=True)) for line in lines]
    return [(row, {plain(said) for name, cell in row.items() for said in (cell, f"{name}={cell}")}) for row in rows]


def row_of(table: str, cells: str) -> Row:
    """The one row that has all these cells."""

    def has(said: set[str], words: Sequence[str]) -> bool:
        # a cell can be several words, as it may have a comma in it
        ends = range(1, len(words) + 1)
        return not words or any(", ".join(words[:n]) in said and has(said, words[n:]) for n in ends)

    rows = [row for row, said in rows_of(table) if has(said, plain(cells).split(", "))]
    assert len(rows) == 1, f"tables/{table} has {len(rows)} rows with the cells {cells!r}; one was expected"
    return rows[0]


def literally(text: str) -> str:
    """Text as a pattern; a line may end at any of its spaces."""
    return r"\s+".join(map(re.escape, re.split(r"\s+", text)))


def filled(template: str, table: str, cells: str) -> tuple[str, list[tuple[Decimal, str]]]:
    """The pattern of a template, and for each of its groups the value that the table gives, and where."""
    pattern, given, end = "", [], 0
    for hole in HOLE.finditer(template):
        more, factor, column, nth = hole.groups()
        wanted = ", ".join(filter(None, (cells, more)))
        row = row_of(table, wanted)
        assert column in row, f"tables/{table} has no column {column!r}"
        parts = re.split(f"({NUMBER})", row[column])
        assert int(nth or 0) <= len(parts) // 2, f"tables/{table} ({wanted}: {column}) has only {row[column]!r}"
        parts = ["", parts[2 * int(nth) - 1], ""] if nth else parts
        given += [(value_of(n) * Decimal(factor or 1), f"tables/{table} ({wanted}: {column})") for n in parts[1::2]]
        inside = "".join(f"({NUMBER})" if number % 2 else literally(part) for number, part in enumerate(parts))
        pattern += literally(template[end : hole.start()]) + (inside or "-?")
        end = hole.end()
    return pattern + literally(template[end:]), given


def table_after(words: str, text: str) -> tuple[range, list[dict[str, slice]]]:
    """Where the first table after some words is, and where the cells of its rows are, by column."""
    assert text.count(words) == 1, f"{words!r} stands there {text.count(words)} times; once was expected"
    start = place = text.index("\n|", text.index(words)) + 1
    lines: list[list[slice]] = []
    for line in text[start:].partition("\n\n")[0].splitlines(keepends=True):
        cells = re.finditer(r"\| *([^|\n]*?) *(?=\|)", line)
        lines.append([slice(place + cell.start(1), place + cell.end(1)) for cell in cells])
        place += len(line)
    head = [text[cell] for cell in lines[0]]
    return range(start, place), [dict(zip(head, line, strict=True)) for line in lines[2:]]


def asked(text: str, entry: Entry) -> Iterator[tuple[str, str, slice | None]]:
    """Each template of an entry, the cells of its row, and the cell of the page that it is, if it is one."""
    for template in entry.get("texts", ()):
        yield template, entry.get("row", ""), None
    for line in table_after(entry["table after"], text)[1] if "table after" in entry else ():
        row = entry["row"]
        for column, cell in line.items():
            row = row.replace(f"{{{column}}}", text[cell].strip("`"))
        yield from ((entry["cells"][column], row, line[column]) for column in entry["cells"] if text[line[column]])


def found_in(text: str, entry: Entry) -> Iterator[Found | str]:
    """What an entry covers of a page; a sentence where the page says other words."""
    for words in entry.get("not measured", ()):
        there = [*re.finditer(literally(words), text)]
        yield from (Found(start=match.start(), end=match.end()) for match in there)
        if not there:
            yield f"{words!r} stands there no longer. Take it out of {LIST.name}."
    for template, row, cell in asked(text, entry):
        pattern, given = filled(template, entry["from"], row)
        whole = cell and re.compile(pattern).fullmatch(text, cell.start, cell.stop)
        there = [whole] if whole else [] if cell else [*re.finditer(pattern, text)]
        if not there:
            said = f"{text[cell]!r} is not" if cell else "nowhere stands"
            values = "; ".join(f"{value} in {place}" for value, place in given)
            yield f"{said} {template!r}, with {values}. Correct the page, or its entry in {LIST.name}."
        for match in there:
            for group, (value, place) in enumerate(given, start=1):
                yield Found(start=match.start(group), end=match.end(group), value=value, place=place)


def problems(text: str, entries: Sequence[Entry], *, whole: bool) -> list[str]:
    """What is wrong with the figures of a page: where, what its table gives, and what to do."""

    def line_at(place: int) -> str:
        return f"line {text.count(chr(10), 0, place) + 1}"

    results = [result for entry in entries for result in found_in(text, entry)]
    told = [result for result in results if isinstance(result, str)]
    found = [result for result in results if isinstance(result, Found)]
    for figure in found:
        printed = text[figure.start : figure.end]
        if figure.value is not None and not agrees(printed, figure.value):
            told.append(f"{line_at(figure.start)}: {printed} is {figure.value} in {figure.place}. Correct the page.")
    after = [entry["table after"] for entry in entries if "table after" in entry]
    parts = [range(len(text))] if whole else [table_after(words, text)[0] for words in after]
    covered = {place for one in found for place in range(one.start, one.end)}
    # blocks of text show what commands print, and are read
    read = ASIDE.sub(lambda match: match[0] if match[1] == "text" else " " * len(match[0]), text)
    wanted = {place for part in parts for place in part} - covered
    bare = [figure for figure in MEASURED.finditer(read) if figure.start() in wanted]
    for line, ones in groupby(bare, lambda one: line_at(one.start())):
        told += [f"{line}: {', '.join(one[0] for one in ones)}: of no table. {LIST.name} says how to add its entry."]
    return told


@pytest.mark.parametrize("page", sorted(WHOLE | {*ENTRIES}))
def test_the_figures_of_a_page_are_those_of_their_tables(page: str) -> None:
    told = problems((ROOT / page).read_text(encoding="utf-8"), ENTRIES.get(page, ()), whole=page in WHOLE)
    if told:
        pytest.fail("\n".join([f"{page}:", *told]), pytrace=False)


PAGE = """\
At 4 bits 12.3 % of 1,190 answers change,
which 2.0 % of `0.5` would not; see [0.7](to-0.9).

## By scheme

| scheme | changed |
|---|---|
| `W4` | 12.3 % (10 to 15) |
| `W3, by channel` | |
"""
TABLE = """\
scheme,n,flips,range
W4,1190,0.12345,10.4 to 14.6
"W3, by channel",1190,0.5,47.1 to 52.9
"""
ASKED: list[Entry] = [
    {"from": "t.csv", "row": "W4", "texts": ["{100 * flips} % of {n} answers change, which"]},
    {"not measured": {"2.0 % of": "a limit"}},
    {
        "from": "t.csv",
        "table after": "## By",
        "row": "{scheme}",
        "cells": {"changed": "{100 * flips} % ({range#1} to {range#2})"},
    },
    {"not measured": {"[0.7]": "a word"}},
]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", None),
        ("12.3 % of 1,190", "12.4 % of 1,190", "1: 12.4 is 12.34500 in tables/t.csv (W4: flips). Correct the page."),
        ("12.3 % of 1,190", "12.35 % of 1,190", None),  # rounded to more digits
        ("1,190", "1,191", "line 1: 1,191 is 1190"),
        ("answers change", "replies change", "nowhere stands '{100 * flips} % of {n} answers change, which'"),
        ("(10 to", "(11 to", "line 8: 11 is 10.4"),
        ("(10 to 15)", "(10, 15)", "'12.3 % (10, 15)' is not"),
        ("2.0 % of", "3.0 % of", "'2.0 % of' stands there no longer"),
        ("would not", "would not, nor 6 %", "line 2: 6: of no table"),
        ("| |", "| 50 % |", "'50 %' is not"),
    ],
)
def test_a_figure_that_is_wrong_or_of_no_table_is_named(
    old: str, new: str, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    monkeypatch.setitem(globals(), "TABLES", tmp_path)
    told = problems(PAGE.replace(old, new, 1), ASKED, whole=True)
    assert told == [] if said is None else any(said in one for one in told), told
