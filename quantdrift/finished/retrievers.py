"""Two retrievers as functions from a query to its answers: they are asked, and compared like finished runs."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.base.display import one_line
from quantdrift.base.errors import DataError
from quantdrift.data.retrieval import excerpt, named
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Noise
from quantdrift.finished.contents import FinishedRun, Part, digest
from quantdrift.finished.diff import Diff, diff_runs
from quantdrift.finished.rankings import Qrels, evidence_of_rankings

Search = Callable[[str], Iterable[Any]]
"""From a query to ids, best first, or to pairs of id and score, where higher is better."""
_SCALES = (
    "scores of both are subtracted: separation, epsilon and what is at risk mean something where both score alike; "
    "where they do not, return ids alone"
)
_EXPECTED = "expected ids (texts or whole numbers), each once and best first, or pairs of id and score"


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
    once, other = (_asked(search, queries, data, k) for search in (a, b))
    diff = diff_runs(once, other, qrels=qrels)
    (part,) = diff.parts
    if all(run.parts[""].scored for run in (once, other)):
        diff = replace(diff, notes=(*diff.notes, _SCALES))
    if noise and part.evidence is not None:
        again, scored = _asked(a, queries, data, k).parts[""].content, once.parts[""].scored
        twice = evidence_of_rankings(once.parts[""].content, again, scored=scored, ordered=True)
        moved = np.maximum(np.abs(twice.delta_min), np.abs(twice.delta_max))
        floor = Noise(flips=np.asarray(perturbation.flips(twice), dtype=np.bool_), epsilon=moved)
        part = replace(part, evidence=replace(part.evidence, noise=floor))
    return replace(diff, parts=(replace(part, asked=digest(json.dumps(dict(queries)))),))


def _asked(search: Search, queries: Mapping[str, str], data: str, k: int) -> FinishedRun:
    """Ask a retriever all queries; answers without scores have NaN."""
    name, rankings = getattr(search, "__name__", type(search).__name__), dict[str, dict[str, float]]()
    for query, text in queries.items():
        try:
            rankings[query] = _ranking(search(text), k)
        except Exception as error:  # whatever it is, it is the retriever's own
            told = one_line(f"{_EXPECTED}; {type(error).__name__}: {error}")
            raise DataError(f"{name}, for the query {query!r}: {told}") from error
    without = {math.isnan(score) for ranking in rankings.values() for score in ranking.values()}
    if len(without) > 1:
        raise DataError(f"{name}: expected scores of all answers, or of none; got some")
    longest = max(map(len, rankings.values()), default=0)
    short = sum(len(ranking) < longest for ranking in rankings.values())
    told = f"{name} returned fewer than {longest:,} answers to {short:,} of {len(queries):,} queries"
    part = Part(kind="rankings", content=rankings, depth=k, ordered=True, scored=True not in without)
    about: Any = {"path": Path(name), "format": "function", "name": name, "digest": digest(json.dumps(rankings))}
    return FinishedRun(**about, parts={"": part}, data=data, notes=(told,) if short else ())


def _ranking(given: Any, k: int) -> dict[str, float]:
    """The answers to one query, id to score; NaN where there are no scores."""
    if isinstance(given, str | bytes | Mapping):
        raise DataError(f"got {excerpt(given)}")
    pairs = [one if isinstance(one, tuple | list) else (one, None) for one in islice(given, k)]
    names = [named(int(item) if isinstance(item, np.integer) else item, "an id") for item, _ in pairs]
    scores = [math.nan if score is None else float(score) for _, score in pairs]
    if len(set(names)) < len(names):
        raise DataError("an id is there twice")
    if any(map(math.isinf, scores)):
        raise DataError("a score is not finite")
    if any(before < after for before, after in pairwise(scores)):
        raise DataError("scores rise along the list (distances: give them a minus sign)")
    return dict(zip(names, scores, strict=True))
