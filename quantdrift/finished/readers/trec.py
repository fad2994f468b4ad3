"""TREC run files: query, Q0, document, rank, score and tag, one line per document.

As in trec_eval the score decides and the rank is not read: beir writes 0 for every rank. Where the
ranks are there, they tell whether a higher score is better.
"""

from __future__ import annotations

from pathlib import Path

from quantdrift.datasets.beir_files import excerpt
from quantdrift.errors import DataError
from quantdrift.finished.readers.contents import FinishedRun, Ranked
from quantdrift.finished.readers.files import digest, read_text

__all__ = ["looks_like_trec", "read_trec"]

_COLUMNS = 6
_EXPECTED = "expected 6 columns (query, Q0, document, rank, score, tag)"


def looks_like_trec(line: str) -> bool:
    """Whether a line is one of a TREC run file."""
    columns = line.split()
    return len(columns) == _COLUMNS and _is_number(columns[3]) and _is_number(columns[4])


def read_trec(path: Path) -> FinishedRun:
    """Read a TREC run file, plain or gzipped.

    Raises:
        DataError: a line has not six columns, a score is no number, a query has a document twice,
            or the lowest scores are the best.
    """
    text = read_text(path)
    rankings: dict[str, dict[str, float]] = {}
    first: dict[str, tuple[float, float]] = {}  # the least rank of a query, and its score
    ranked: set[str] = set()  # queries with more than one rank
    for line_number, line in enumerate(text.split("\n"), start=1):
        columns = line.split(None, 5)
        if not columns:
            continue
        if len(columns) < _COLUMNS:
            where = f"{path}, line {line_number}"
            raise DataError(f"{where}: {_EXPECTED}; got {len(columns)} in {excerpt(line)}")
        query, _, document, rank, written, _ = columns
        try:
            score = float(written)
        except ValueError:
            where = f"{path}, line {line_number}"
            raise DataError(
                f"{where}: the score, column 5, must be a number; got {excerpt(written)}"
            ) from None
        own = rankings.setdefault(query, {})
        if document in own:
            where = f"{path}, line {line_number}"
            raise DataError(
                f"{where}: query {query!r} has document {document!r} twice; keep one of the lines"
            )
        own[document] = score
        try:
            place = float(rank)
        except ValueError:
            continue
        least = first.setdefault(query, (place, score))
        if place != least[0]:
            ranked.add(query)
            if place < least[0]:
                first[query] = (place, score)
    if not rankings:
        raise DataError(f"{path} is empty; {_EXPECTED} a line")
    return FinishedRun(
        path=path,
        format="trec",
        name=path.name,
        digest=digest(text),
        parts={"": Ranked(rankings=rankings)},
        notes=_order_notes(path, rankings, {query: first[query][1] for query in ranked}),
    )


def _order_notes(
    path: Path, rankings: dict[str, dict[str, float]], scores_of_first: dict[str, float]
) -> tuple[str, ...]:
    """A note if the ranks say another order than the scores; an error if they say the opposite."""
    told = {query: score for query, score in scores_of_first.items() if _spread(rankings[query])}
    lowest = sum(score == min(rankings[query].values()) for query, score in told.items())
    other = sum(score < max(rankings[query].values()) for query, score in told.items())
    if lowest > len(told) / 2:
        raise DataError(
            f"{path}: the document of the first rank has the lowest score, for {lowest:,} of "
            f"{len(told):,} queries; expected scores of which the highest is the best. If they are "
            "distances, write them with a minus sign"
        )
    if not other:
        return ()
    return (
        f"{path.name} ranks another document first than its scores do, for {other:,} of "
        f"{len(told):,} queries; the scores count, as in trec_eval",
    )


def _spread(ranking: dict[str, float]) -> bool:
    return min(ranking.values()) < max(ranking.values())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
