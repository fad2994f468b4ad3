"""Searches of other kinds, which run once per arm: the drift is between the two lists."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from quantdrift.engine.run import now
from quantdrift.engine.search import Settings, not_calibrated_on
from quantdrift.evidence import Evidence
from quantdrift.finished.rankings import evidence_of_rankings
from quantdrift.patching import is_replaced
from quantdrift_beir.arms import KEPT, arms_of, batch_size_of, calibrate, watch
from quantdrift_beir.inputs import digest_of_data, ids_and_rows
from quantdrift_beir.pairs import QuantizedPair, refuse_unchosen
from quantdrift_beir.record import Made, made_by
from quantdrift_beir.results import DEPTH, Drift, PairedResults, Results, say

_LEAST = -3.4e38
"""What faiss fills up lists with that are longer than the index; the document beside is random."""

_BOUND = "epsilon is over the documents that both arms returned: a lower bound"

Search = Callable[[Any], Mapping[str, Mapping[str, float]]]


def retrieve_both(
    original: Callable[..., Any], evaluator: Any, pair: QuantizedPair, given: Mapping[str, Any]
) -> Results:
    """EvaluateRetrieval.retrieve with a search that holds a pair.

    beir's own exact search measures both arms itself. Any other runs once per arm.

    Args:
        original: beir's own method.
        evaluator: an EvaluateRetrieval.
        pair: the model that its retriever holds.
        given: the arguments of the call, by name.
    """
    retriever = evaluator.retriever
    if is_replaced(type(retriever).search):  # by ours, which measures both arms
        results: Results = original(evaluator, **given)
        return results

    def search(one: Any) -> Any:
        asking = copy.copy(evaluator)
        asking.retriever = one
        return original(asking, **given)

    return search_twice(pair, retriever, given, search)


def search_twice(pair: QuantizedPair, searcher: Any, given: Mapping[str, Any], search: Search) -> PairedResults:
    """Run a search once per arm.

    Args:
        pair: the model that it holds.
        searcher: the search object; it is left as the candidate's search leaves it.
        given: corpus and queries, by name.
        search: runs a search object.

    Raises:
        UnsupportedError: a criterion would have to choose widths, or the search holds an index
            already.
        QuantDriftError: the scheme cannot be made.
    """
    corpus, queries = given["corpus"], given["queries"]
    kind = type(searcher).__name__
    refuse_unchosen(pair, f"{kind} is another kind of search")
    arms = arms_of(searcher, pair)
    started, clock = now(), [time.perf_counter()]
    fingerprint = pair.pair.fingerprint
    with pair.both_arms() as choose:
        watch(pair, corpus)
        first = search(arms[0])
        reference = _kept(first, queries)
        clock.append(time.perf_counter())
        calibrate(pair, corpus, searcher)
        clock.append(time.perf_counter())
        choose("candidate")
        found = search(arms[1])
        clock.append(time.perf_counter())
    vars(searcher).update({**vars(arms[1]), KEPT: arms})
    stages = ("reference: search", "calibration", "candidate: search")
    made = made_by(
        pair.pair,
        pair.spec,
        fingerprint,
        settings=Settings(k=DEPTH, batch_size=batch_size_of(searcher), noise_floor=False),
        reading={"search": kind},
        started=started,
        seconds=dict(zip(stages, np.diff(clock).round(3).tolist(), strict=True)),
    )
    measured = _measured(first, found, corpus, queries)
    if measured is not None:
        drift = replace(measured, reference=reference)
    else:
        drift = drift_of_lists(reference, found, corpus, queries, made, pair=pair)
    say(pair.spec, drift.evidence, shown=getattr(searcher, "show_progress_bar", True))
    return PairedResults({query: dict(one) for query, one in found.items()}, drift)


def _measured(first: Any, found: Any, corpus: Any, queries: Any) -> Drift | None:
    """The drift that beir's exact search measured, where a search asks that one once.

    Other texts in either arm, such as queries made longer by what was found, are two measurements,
    and parts of the corpus are several: neither is of what comes out in the end.
    """
    if not isinstance(found, PairedResults) or found.drift is not getattr(first, "drift", None):
        return None
    data = found.drift.made.data
    sizes = (data.get("n_queries"), data.get("n_documents"))
    return found.drift if sizes == (len(queries), len(corpus)) else None


def drift_of_lists(
    reference: Results,
    candidate: Mapping[str, Mapping[str, float]],
    corpus: Any,
    queries: Any,
    made: Made,
    *,
    pair: QuantizedPair,
) -> Drift:
    """The drift between two results.

    Args:
        reference: of every query.
        candidate: of every query.
        corpus: what was searched.
        queries: what was searched for.
        made: how; what is known of the data is added.
        pair: its layers may have been measured on some queries.

    Raises:
        RunError: nothing was found, or a score is not finite.
    """
    evidence = evidence_of_lists(reference, candidate, corpus, queries)
    n = evidence.n_inputs
    rest = not_calibrated_on(pair.pair, evidence.input_ids.tolist())
    evidence = evidence if len(rest) == n else evidence.part(rest)
    warnings = [] if evidence.exact else [_BOUND]
    told = replace(
        made,
        data={
            "n_queries": n,
            "n_documents": len(corpus),
            "fingerprint": digest_of_data(queries, corpus),
            "warnings": warnings,
        },
        left_out=n - evidence.n_inputs,
    )
    return Drift(evidence=evidence, reference=reference, made=told)


def evidence_of_lists(
    reference: Mapping[str, Mapping[str, float]],
    candidate: Mapping[str, Mapping[str, float]],
    corpus: Any,
    queries: Any,
) -> Evidence:
    """Evidence of two results; exact where every list holds the whole corpus.

    Args:
        reference: of every query.
        candidate: of every query.
        corpus: what was searched.
        queries: what was searched for.

    Raises:
        RunError: nothing was found, or a score is not finite.
    """
    names = ids_and_rows(corpus)[0]
    position = {name: number for number, name in enumerate(names)}
    arms = [
        {query: _counted(query, arm.get(query, {})) for query in ids_and_rows(queries)[0]}
        for arm in (reference, candidate)
    ]
    complete = all(len(found) == len(names) - (query in position) for arm in arms for query, found in arm.items())
    return evidence_of_rankings(
        *arms,
        complete=complete,
        # a document of another corpus, in an index that was there before, comes last
        position=lambda name: (position.get(name, len(names)), name),
        depth=DEPTH,
    )


def _counted(query: str, found: Mapping[str, float]) -> dict[str, float]:
    """What counts of a result: not the document of the query's own id, nor what fills it up."""
    return {name: score for name, score in found.items() if name != query and (score > _LEAST or math.isnan(score))}


def _kept(results: Mapping[str, Mapping[str, float]], queries: Any) -> Results:
    """Results as they are now: the next search may change them."""
    return {query: dict(results.get(query, {})) for query in ids_and_rows(queries)[0]}
