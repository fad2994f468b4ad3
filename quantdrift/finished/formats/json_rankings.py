"""Rankings as JSON: query to document to score, as beir's search returns them."""

from typing import Any

from quantdrift.base.errors import DataError
from quantdrift.data.retrieval import excerpt
from quantdrift.finished import formats
from quantdrift.finished.contents import FinishedRun, Part, digest, number
from quantdrift.finished.formats import Format, Source

_MEANS = frozenset({"ndcg", "map", "recall", "precision"})
"""The keys of a file that beir's save_results writes."""


def _read(source: Source) -> FinishedRun:
    path, content = source.path, source.whole
    if content.keys() >= _MEANS:
        raise DataError(
            f"{path} holds the mean scores that beir's save_results writes, not the ranking of every query. Save what "
            "the search returned: beir.util.save_runfile(FILE, results), or json.dump(results, file)"
        )
    for query, ranking in content.items():
        if not is_ranking(ranking):
            entries = ranking.items() if isinstance(ranking, dict) else ()
            wrong = next(((name, score) for name, score in entries if not number(score)), ranking)
            raise DataError(f"{path}: expected document to score, a number, for query {query!r}; got {excerpt(wrong)}")
    if not content:
        raise DataError(f"{path}: expected {formats.expected()}; got an empty object")
    part = Part(kind="rankings", content=content)
    return FinishedRun(path=path, format="json", name=path.name, digest=digest(source.text), parts={"": part})


def is_ranking(value: Any) -> bool:
    """Whether a JSON value maps documents to scores."""
    return isinstance(value, dict) and all(map(number, value.values()))


def _accepts(source: Source) -> bool:
    return not source.path.is_dir() and source.text.lstrip().startswith("{")


FORMAT = Format(
    expected="rankings as JSON, query to document to score (what beir's search returns)",
    accepts=_accepts,
    read=_read,
    place=91,
)
