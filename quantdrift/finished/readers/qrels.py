"""Relevance labels from a file: of the BEIR layout, as trec_eval reads them, or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quantdrift.datasets.beir_files import excerpt
from quantdrift.datasets.beir_files import read_qrels as read_lines_of_qrels
from quantdrift.errors import DataError
from quantdrift.finished.readers.files import parse_json, read_text

__all__ = ["read_qrels"]


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
    qrels, conflicting = read_lines_of_qrels(path)
    twice = f"{len(set(conflicting)):,} queries have a document twice in {path.name}, with "
    return qrels, (twice + "grades that differ; the last counts",) if conflicting else ()


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
