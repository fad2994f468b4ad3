"""Rankings as JSON: query to document to score, as beir's search returns them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quantdrift.datasets.beir_files import excerpt
from quantdrift.errors import DataError
from quantdrift.finished.readers.contents import FinishedRun, Ranked
from quantdrift.finished.readers.files import digest, number, parse_json, read_text

__all__ = ["as_rankings", "is_rankings", "means_only", "read_json_rankings"]

_MEANS = frozenset({"ndcg", "map", "recall", "precision"})


def read_json_rankings(path: Path) -> FinishedRun:
    """Read rankings that were written as JSON, plain or gzipped.

    Raises:
        DataError: it is not JSON, holds other things than rankings, or means only.
    """
    text = read_text(path)
    content = parse_json(text, path)
    if means_only(content):
        raise DataError(
            f"{path} holds the mean scores that beir's save_results writes, not the ranking of "
            "every query. Save what the search returned: beir.util.save_runfile(FILE, results), "
            "or json.dump(results, file)"
        )
    return FinishedRun(
        path=path,
        format="json",
        name=path.name,
        digest=digest(text),
        parts={"": Ranked(rankings=as_rankings(content, str(path)))},
    )


def is_rankings(content: Any) -> bool:
    """Whether a JSON value is query to document to score, as far as its first list tells."""
    if not isinstance(content, dict) or not content:
        return False
    if not all(isinstance(own, dict) for own in content.values()):
        return False
    first: dict[str, Any] = next((own for own in content.values() if own), {})
    return all(number(score) for score in first.values())


def means_only(content: Any) -> bool:
    """Whether it is a file of beir's save_results."""
    return isinstance(content, dict) and content.keys() >= _MEANS


def as_rankings(content: Any, where: str) -> dict[str, dict[str, float]]:
    """Rankings out of a JSON value.

    Args:
        content: what is expected to be query to document to score.
        where: file and place, for the message.

    Raises:
        DataError: it is something else.
    """
    if not isinstance(content, dict) or not content:
        raise DataError(
            f"{where}: expected an object of query to document to score; got {excerpt(content)}"
        )
    for query, own in content.items():
        if not isinstance(own, dict):
            raise DataError(
                f"{where}: expected document to score for query {query!r}; got {excerpt(own)}"
            )
        wrong = next((name for name, score in own.items() if not number(score)), None)
        if wrong is not None:
            raise DataError(
                f"{where}: expected a number as the score of {wrong!r} for query {query!r}; got "
                f"{excerpt(own[wrong])}"
            )
    return content
