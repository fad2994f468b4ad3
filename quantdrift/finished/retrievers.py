"""Two retrievers as functions from a query to its answers: they are asked, and compared like finished runs."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice, pairwise
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.base.errors import DataError
from quantdrift.data.retrieval import check_string, excerpt
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Noise
from quantdrift.finished.contents import FinishedRun, Part, digest
from quantdrift.finished.diff import Diff, diff_runs
from quantdrift.finished.rankings import Qrels, evidence_of_rankings

Search = Callable[[str], Iterable[Any]]
"""From a query to ids, best first, or to pairs of id and score, where higher is better."""
_EXPECTED = "ids (texts or whole numbers), best first, or pairs of id and score"


def diff_of_searches(
    a: Search, b: Search, queries: Mapping[str, str], *, data: str, qrels: Qrels | None, k: int, noise: bool
) -> Diff:
    """Ask two retrievers the same queries, and compare their answers.

    Args:
        a: the reference.
        b: the candidate.
        queries: id to text.
        data: name of the data.
        qrels: relevance labels.
        k: most answers of a query that count.
        noise: whether the reference is asked a second time.

    Raises:
        DataError: a retriever fails for a query, or returns something else than answers.
    """
    runs = [_asked(search, queries, data, k) for search in (a, b)]
    diff = diff_runs(*runs, qrels=qrels)
    (part,) = diff.parts
    if noise and part.evidence is not None:
        once, again = runs[0].parts[""], _asked(a, queries, data, k).parts[""]
        twice = evidence_of_rankings(once.content, again.content, scored=once.scored, ordered=True)
        epsilon = np.maximum(np.abs(twice.delta_min), np.abs(twice.delta_max))
        floor = Noise(flips=np.asarray(perturbation.flips(twice), dtype=np.bool_), epsilon=epsilon)
        part = replace(part, evidence=replace(part.evidence, noise=floor))
    texts = digest(*(text for item in queries.items() for text in item))
    return replace(diff, parts=(replace(part, asked=texts),))


def _asked(search: Search, queries: Mapping[str, str], data: str, k: int) -> FinishedRun:
    """Ask a retriever all queries."""
    name = getattr(search, "__name__", type(search).__name__)
    rankings: dict[str, dict[str, float]] = {}
    for query, text in queries.items():
        where = f"{name}, of the query {query!r}"
        try:
            given = search(text)
            answers = None if isinstance(given, str | bytes | Mapping) else list(islice(given, k))
        except Exception as error:  # whatever it is, it is the retriever's own
            raise DataError(f"{where}: expected {_EXPECTED}; it failed: {type(error).__name__}: {error}") from error
        if answers is None:
            raise DataError(f"{where}: expected {_EXPECTED}; got {excerpt(given)}")
        rankings[query] = _ranking(answers, where)
    marks = [math.isnan(score) for ranking in rankings.values() for score in ranking.values()]
    if any(marks) and not all(marks):
        raise DataError(f"{name}: expected scores of all answers, or of none; got some")
    longest = max(map(len, rankings.values()), default=0)
    short = sum(len(ranking) < longest for ranking in rankings.values())
    notes = (f"{name} returned fewer than {longest:,} answers to {short:,} of {len(queries):,} queries",)
    part = Part(kind="rankings", content=rankings, depth=k, ordered=True, scored=not any(marks))
    return FinishedRun(
        path=Path(name),
        format="function",
        name=name,
        digest=digest(json.dumps(rankings)),
        parts={"": part},
        data=data,
        notes=notes if short else (),
    )


def _ranking(answers: Iterable[Any], where: str) -> dict[str, float]:
    """The answers to one query: id to score, NaN where there are no scores."""
    ranking: dict[str, float] = {}
    for answer in answers:
        pair = answer if isinstance(answer, tuple | list) and len(answer) == 2 else (answer, math.nan)  # noqa: PLR2004
        item, score = pair
        if not isinstance(item, str | Integral) or isinstance(item, bool) or not isinstance(score, Real):
            raise DataError(f"{where}: expected {_EXPECTED}; got {excerpt(answer)}, a {type(answer).__name__}")
        if pair is answer and not math.isfinite(score):
            raise DataError(f"{where}: expected finite scores; that of {excerpt(item)} is {score}")
        check_string(str(item), where)
        if str(item) in ranking:
            raise DataError(
                f"{where}: {str(item)!r} is there twice; expected each id once, such as its best chunk alone"
            )
        ranking[str(item)] = float(score)
    if any(before < after for before, after in pairwise(ranking.values())):
        raise DataError(f"{where}: scores rise along the list; expected the best first (distances: with a minus sign)")
    return ranking
