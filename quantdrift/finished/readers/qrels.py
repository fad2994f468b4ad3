"""Relevance labels from a file: of the BEIR layout, as trec_eval reads them, or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quantdrift.datasets.beir_files import excerpt
from quantdrift.datasets.beir_files import read_qrels as read_beir_qrels
from quantdrift.errors import DataError
from quantdrift.finished.readers.files import parse_json, read_text

__all__ = ["read_qrels"]

_EXPECTED = (
    "expected lines of query, document and grade with tabs between (BEIR), of query, 0, document "
    'and grade (TREC), or JSON: {"QUERY": {"DOCUMENT": GRADE}}'
)
_TREC_COLUMNS = 4


def read_qrels(path: Path) -> tuple[dict[str, dict[str, int]], tuple[str, ...]]:
    """Relevance labels, in whichever of the three forms they are; gzipped or not.

    Returns:
        Query to document to grade, and what to know: one sentence or none.

    Raises:
        DataError: there is no such file, it is in none of these forms, or a grade is no whole
            number.
    """
    if not path.is_file():
        raise DataError(f"expected a file of relevance labels; {path} is none")
    text = read_text(path)
    if text.lstrip().startswith("{"):
        return _of_json(parse_json(text, path), path), ()
    first = next((line for line in text.split("\n") if line.strip()), "")
    if len(first.split("\t")) == _TREC_COLUMNS - 1:
        qrels, conflicting = read_beir_qrels(path)
        twice = f"{len(set(conflicting)):,} queries have a document twice in {path.name}, with "
        return qrels, (twice + "grades that differ; the last counts",) if conflicting else ()
    if len(first.split()) == _TREC_COLUMNS:
        return _of_trec(text, path), ()
    raise DataError(f"{path}: {_EXPECTED}; got {excerpt(first)}")


def _of_trec(text: str, path: Path) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        columns = line.split()
        if not columns:
            continue
        if len(columns) != _TREC_COLUMNS:
            raise DataError(
                f"{path}, line {number}: expected 4 columns (query, 0, document, grade); got "
                f"{len(columns)} in {excerpt(line)}"
            )
        query, _, document, grade = columns
        try:
            qrels.setdefault(query, {})[document] = int(grade)
        except ValueError:
            raise DataError(
                f"{path}, line {number}: the grade, column 4, must be a whole number; got "
                f"{excerpt(grade)}"
            ) from None
    return qrels


def _of_json(content: Any, path: Path) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for query, labels in content.items():
        if not isinstance(labels, dict):
            raise DataError(
                f"{path}: expected document to grade for query {query!r}; got {excerpt(labels)}"
            )
        for document, grade in labels.items():
            if isinstance(grade, float) and grade.is_integer():
                grade = int(grade)  # noqa: PLW2901 -- what a data frame writes
            if not isinstance(grade, int):
                raise DataError(
                    f"{path}: expected a whole number as the grade of {document!r} for query "
                    f"{query!r}; got {excerpt(grade)}"
                )
            qrels.setdefault(query, {})[document] = int(grade)
    if not qrels:
        raise DataError(f"{path} holds no label; leave --qrels out")
    return qrels
