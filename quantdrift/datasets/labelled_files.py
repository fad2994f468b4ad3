"""Reading labelled texts line by line, so that every error names its line.

A line is a JSON object with a text and a label. What the labels are for is known to
`quantdrift.datasets.classification`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantdrift.datasets.beir_files import (
    check_string,
    excerpt,
    read_lines,  # the same reader, so that both layouts have the same errors
    some,
)
from quantdrift.errors import DataError
from quantdrift.records import parse_json

__all__ = ["LabelledLines", "label_of", "read_labelled"]

_EXPECTED = '{"text": "...", "label": "..."}'


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledLines:
    """The lines of one file.

    Attributes:
        ids: names, all different.
        texts: one a line.
        labels: one a line, or None where the file has none at all.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    labels: tuple[str, ...] | None


def read_labelled(file: Path, part: str) -> LabelledLines:
    """The texts and labels of a JSON lines file, plain or gzipped, in the order of the file.

    Args:
        file: lines of {"text", "label"}, with "id" or "_id" where inputs have names.
        part: what inputs without a name are called after: line 17 of "test" is "test-17".

    Raises:
        DataError: the file is empty, a line is broken, an id occurs twice, or some lines have a
            label and others none.
    """
    ids: dict[str, int] = {}
    texts: list[str] = []
    labels: list[str] = []
    for number, line in read_lines(file):
        where = f"{file}, line {number}"
        record = _parsed(line, where)
        if "text" not in record:
            keys = some(record) or "none"
            raise DataError(
                f'{where}: "text" is missing; the keys are {keys}. Expected {_EXPECTED}'
            )
        check_string(record["text"], f'{where}: "text"')
        name = _name(record, f"{part}-{number}", where)
        if name in ids:
            first = f"{name!r} is already on line {ids[name]}"
            raise DataError(f"{where}: every id must be unique; {first}; rename or remove one")
        label = record.get("label")
        if texts and (label is None) != (not labels):
            this, others = ("none", "one") if label is None else ("one", "none")
            raise DataError(
                f"{where}: expected a label on every line or on none; this line has {this}, and "
                f"those before have {others}"
            )
        ids[name] = number
        texts.append(record["text"])
        if label is not None:
            labels.append(label_of(label, f'{where}: "label"'))
    if not texts:
        raise DataError(f"{file} is empty; at least one line was expected: {_EXPECTED}")
    return LabelledLines(ids=tuple(ids), texts=tuple(texts), labels=tuple(labels) or None)


def label_of(value: object, what: str) -> str:
    """A label as a string; a whole number becomes one.

    Args:
        value: what was found.
        what: it is, for the message.

    Raises:
        DataError: it is neither a string nor a whole number, or empty.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        expected = "must be a string or a whole number"
        raise DataError(f"{what} {expected}; got {type(value).__name__} {excerpt(value)}")
    check_string(value, what)
    if not value:
        raise DataError(f"{what} is empty; leave it out on every line, or name a class")
    return value


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        record = parse_json(line)
    except json.JSONDecodeError as error:
        # its own message ends in a place, which counts from the start of this line
        what = error.msg.removesuffix(" at").removesuffix(" starting")
        raise DataError(
            f"{where}, column {error.colno}: expected a JSON object, {_EXPECTED}; {what}"
        ) from error
    except ValueError as error:  # a huge integer, or very deep nesting
        raise DataError(f"{where}: expected a JSON object, {_EXPECTED}; {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected a JSON object, {_EXPECTED}; got {excerpt(line)}")
    return record


def _name(record: dict[str, Any], default: str, where: str) -> str:
    name = record.get("id", record.get("_id", default))
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    check_string(name, f'{where}: "id"')
    if not name:
        raise DataError(f'{where}: "id" is empty; leave it out, or name the input')
    return str(name)
