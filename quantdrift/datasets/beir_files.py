"""Reading the files of the BEIR layout line by line, so that every error names its line.

JSON lines hold the corpus and the queries, tab-separated lines the relevance judgements (qrels).
Nothing here knows what the texts are for; `quantdrift.datasets.retrieval` puts them together.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from quantdrift.errors import DataError
from quantdrift.records import parse_json

__all__ = [
    "LAYOUT",
    "check_string",
    "excerpt",
    "find_file",
    "find_qrels",
    "read_lines",
    "read_qrels",
    "read_texts",
    "some",
]

LAYOUT = (
    'corpus.jsonl ({"_id": "d1", "title": "...", "text": "..."} a line; the title is optional), '
    'queries.jsonl ({"_id": "q1", "text": "..."} a line) and, for relevance metrics, '
    "qrels/<split>.tsv (query id, document id and score, tab-separated, or TREC's four columns); "
    "each may end in .gz"
)

_N_COLUMNS = 3
_OF_TREC = 4
_HEADER_SCORES = frozenset({"score", "relevance", "rel", "label", "grade"})
# At most nine digits, because mteb keeps scores as int32; "1.0" is what a data frame writes.
_WHOLE_NUMBER = re.compile(r"([+-]?[0-9]{1,9})(\.0*)?")
_SHOWN = 5
_EXCERPT = 60


def find_file(folder: Path, name: str) -> Path:
    """The file of that name, plain or gzipped; raises DataError telling what is there instead."""
    for file in (folder / name, folder / f"{name}.gz"):
        if file.is_file():
            return file
    there = some(sorted(entry.name for entry in folder.iterdir())) or "nothing"
    raise DataError(f"{folder} has no {name}; it holds {there}. Expected {LAYOUT}")


def find_qrels(folder: Path, split: str) -> Path | None:
    """The qrels file of a split, or None when the folder has labels of no split at all.

    Args:
        folder: the qrels folder, which need not exist.
        split: the split that is wanted.

    Raises:
        DataError: there are labels, but not of this split; names the splits that exist.
    """
    # Gzipped ones first, so that a plain file of the same split replaces them.
    files = {
        file.name.removesuffix(ending): file
        for ending in (".tsv.gz", ".tsv")
        for file in folder.glob(f"*{ending}")
    }
    if files and split not in files:
        raise DataError(f"{folder} has no split {split!r}; it has {some(sorted(files))}")
    return files.get(split)


def read_texts(file: Path, *, titled: bool) -> dict[str, str]:
    """The text of every id of a JSON lines file, in the order of the file.

    Args:
        file: lines of {"_id", "text"}; an id that is an integer becomes a string.
        titled: whether a "title" goes before the text and the whole is stripped, which is what
            mteb and beir do with documents and not with queries.

    Raises:
        DataError: the file is empty, a line is broken, or an id occurs twice.
    """
    texts: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, line in read_lines(file):
        where = f"{file}, line {number}"
        identifier, text = _parse_record(line, where, titled=titled)
        if identifier in texts:
            first = f"{identifier!r} is already on line {lines[identifier]}"
            raise DataError(f"{where}: every _id must be unique; {first}; rename or remove one")
        texts[identifier], lines[identifier] = text, number
    if not texts:
        raise DataError(f"{file} is empty; at least one line was expected. Expected {LAYOUT}")
    return texts


def read_qrels(file: Path) -> tuple[dict[str, dict[str, int]], list[str]]:
    """The judgements of a qrels file of either form, which its first line tells.

    BEIR has three columns with tabs between, with or without a header line; TREC four, query, 0,
    document and grade, with any whitespace between.

    Returns:
        (query id to document id to score, the ids of queries that judge a document twice with
        different scores); of such scores the last one counts, as it does in mteb and beir.

    Raises:
        DataError: there is no judgement, or a line has not the columns of the first or no whole
            score.
    """
    qrels: dict[str, dict[str, int]] = {}
    conflicting: list[str] = []
    separator: str | None = "\t"
    n_columns = _N_COLUMNS
    for position, (number, line) in enumerate(read_lines(file)):
        where = f"{file}, line {number}"
        if position == 0 and line.count("\t") != _N_COLUMNS - 1 and len(line.split()) == _OF_TREC:
            separator, n_columns = None, _OF_TREC
        columns = line.split(separator)
        if len(columns) != n_columns:
            expected = "expected 3 tab-separated columns (query id, document id, score)"
            if separator is None:
                expected = "expected 4 columns, as line 1 has (query, 0, document, grade)"
            elif position == 0:
                expected += ", or TREC's 4 (query, 0, document, grade)"
            raise DataError(f"{where}: {expected}; got {len(columns)} in {excerpt(line)}")
        query, document, score = columns[0], columns[-2], columns[-1]
        if position == 0 and score.strip().lower() in _HEADER_SCORES:
            continue
        whole = _WHOLE_NUMBER.fullmatch(score.strip())
        if whole is None:
            expected = f"the score, column {n_columns}, must be a whole number"
            raise DataError(f"{where}: {expected}; got {excerpt(score)}; round or regrade it")
        documents = qrels.setdefault(query, {})
        if documents.get(document, int(whole[1])) != int(whole[1]):
            conflicting.append(query)
        documents[document] = int(whole[1])
    if not qrels:
        raise DataError(f"{file} holds no judgement; remove it to measure drift without labels")
    return qrels, conflicting


def check_string(value: object, what: str) -> None:
    """Raise DataError unless `value` is a string that UTF-8, and so a tokenizer, can represent."""
    if not isinstance(value, str):
        raise DataError(f"{what} must be a string; got {type(value).__name__} {excerpt(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x} at character {error.start + 1}"
        raise DataError(f"{what} holds half of a surrogate pair, {half}; remove it") from error


def some(names: Iterable[str]) -> str:
    """The first few names, comma-separated, with "..." where there are more."""
    shown = list(islice(names, _SHOWN + 1))
    return ", ".join(shown[:_SHOWN] + ["..."] * (len(shown) > _SHOWN))


def excerpt(value: object) -> str:
    """The beginning of what was found, for a message."""
    shown = value[:_EXCERPT] if isinstance(value, str) else value
    return repr(shown)[: _EXCERPT + 2] + "..." * (isinstance(value, str) and shown != value)


def _parse_record(line: str, where: str, *, titled: bool) -> tuple[str, str]:
    """The id and the text of one line."""
    try:
        record = parse_json(line)
    except json.JSONDecodeError as error:
        at = f"{where}, column {error.colno}"
        found = excerpt(line[error.pos :]) if line[error.pos :] else "the end of the line"
        raise DataError(f"{at}: expected a JSON object; {error.msg} at {found}") from error
    except ValueError as error:  # a huge integer, or very deep nesting
        raise DataError(f"{where}: expected a JSON object; {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected a JSON object; got {excerpt(line)}")
    for key in ("_id", "text"):
        if key not in record:
            keys = some(record) or "none"
            raise DataError(f'{where}: "{key}" is missing; the keys are {keys}. Expected {LAYOUT}')
    identifier, text, title = record["_id"], record["text"], record.get("title")
    if isinstance(identifier, int) and not isinstance(identifier, bool):
        identifier = str(identifier)
    title = title if titled and title is not None else ""
    for key, value in (("_id", identifier), ("title", title), ("text", text)):
        check_string(value, f'{where}: "{key}"')
    if not identifier:
        raise DataError(f'{where}: "_id" is empty; every line needs an id')
    if titled:
        text = (f"{title} {text}" if title else text).strip()
    return identifier, text


def read_lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, numbered from 1; only a newline byte ends a line."""
    number = 0
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            for number, raw in enumerate(stream, start=1):
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if line.strip():
                    yield number, line
    except UnicodeDecodeError as error:
        byte = f"0x{error.object[error.start]:02x}, byte {error.start + 1} of the line, is not"
        message = f"{file}, line {number}: expected UTF-8; {byte}; save the file as UTF-8"
        raise DataError(message) from error
    except (OSError, EOFError, zlib.error) as error:
        message = f"{file} cannot be read beyond line {number}: {error}; copy it here again"
        raise DataError(message) from error
