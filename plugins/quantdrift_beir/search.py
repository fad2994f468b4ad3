"""beir's searches by both arms of a pair: the exact one over embeddings, and any other once per arm."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from quantdrift.engine.inputs import Settings
from quantdrift.errors import UnsupportedError
from quantdrift.evidence import Evidence
from quantdrift.finished.rankings import evidence_of_rankings
from quantdrift.harness import (
    DEPTH,
    PROBE,
    Found,
    Results,
    calibrate,
    progress_if,
    run_twice,
    search_embedded,
    similarity_of,
)
from quantdrift.patching import is_replaced
from quantdrift.runs import now
from quantdrift_beir.pairs import (
    QuantizedPair,
    calibration_corpus,
    digest_of_data,
    document_inputs,
    query_inputs,
    refuse_unchosen,
)
from quantdrift_beir.results import PairedResults, paired_results

_LEAST = -3.4e38
"""What faiss fills up lists with that are longer than the index; the document beside is random."""
_BOUND = "epsilon is over the documents that both arms returned: a lower bound"

Original = Callable[..., Any]


def search_by_pair(original: Original, searcher: Any, pair: QuantizedPair, given: Mapping[str, Any]) -> Any:
    """DenseRetrievalExactSearch.search, measured for both arms by embedding and streaming."""
    score = searcher.score_functions.get(given["score_function"])
    if score is None or pair.arms.session:
        return original(searcher, **given)
    similarity = similarity_of(score)
    if similarity is None:
        return search_twice(pair, searcher, given, lambda one: original(one, **given))
    started = now()
    corpus, queries = given["corpus"], given["queries"]
    options = {"convert_to_tensor": searcher.convert_to_tensor}
    shown = getattr(searcher, "show_progress_bar", True)
    texts = calibration_corpus(pair.spec.scheme)
    found = search_embedded(
        pair.pair,
        query_inputs(pair, queries, options),
        document_inputs(pair, corpus, options),
        similarity=similarity,
        top_k=int(given["top_k"]),
        batch_size=int(searcher.batch_size),
        progress=progress_if(shown),
        skip_same_id=True,
        calibration=None if texts is None else document_inputs(pair, texts, options, role="calibration"),
    )
    if n := len(queries.keys() & corpus.keys()):
        who = "1 query has" if n == 1 else f"{n:,} queries have"
        found = replace(found, notes=[f"{who} the id of a document, which beir leaves out", *found.notes])
    searcher.results = paired_results(pair, found, digest_of_data(queries, corpus), started=started, shown=shown)
    return searcher.results


def retrieve_both(original: Original, evaluator: Any, pair: QuantizedPair, given: Mapping[str, Any]) -> Any:
    """EvaluateRetrieval.retrieve with a search that holds a pair; beir's exact search measures both arms itself."""
    if is_replaced(type(evaluator.retriever).search) or pair.arms.session:
        return original(evaluator, **given)

    def search(one: Any) -> Any:
        asking = copy.copy(evaluator)
        asking.retriever = one
        return original(asking, **given)

    return search_twice(pair, evaluator.retriever, given, search)


def search_twice(
    pair: QuantizedPair, searcher: Any, given: Mapping[str, Any], search: Callable[[Any], Any]
) -> PairedResults:
    """Run a search once per arm, each with a search object of its own; the drift is between the two lists."""
    corpus, queries, kind = given["corpus"], given["queries"], type(searcher).__name__
    refuse_unchosen(pair, f"{kind} is another kind of search")
    if getattr(searcher, "faiss_index", None) is not None and not pair.pair.query_only:
        raise UnsupportedError(
            f"this {kind} holds an index already, and which arm embedded it cannot be told. Search with a new one, or "
            f"keep the index at full precision with {pair.spec.scheme}+query"
        )
    started, shown = now(), getattr(searcher, "show_progress_bar", True)
    batch_size = int(getattr(searcher, "batch_size", None) or 32)

    def run() -> Results:
        one = copy.copy(searcher)
        for name in ("mapping", "rev_mapping", "results"):  # dicts that a search changes in place
            if isinstance(vars(one).get(name), dict):
                setattr(one, name, {} if name == "results" else dict(vars(one)[name]))
        return {query: dict(scores) for query, scores in search(one).items()}

    def watch() -> None:
        few = dict(list(corpus.items())[:PROBE])
        with suppress(Exception), pair.pair.observed():  # it is for the record only
            document_inputs(pair, few, {}, wanted=False).run(np.arange(len(few)), PROBE)

    reference, candidate, seconds = run_twice(
        pair.arms,
        run,
        watch=watch,
        calibrate=lambda: calibrate(
            pair.pair,
            lambda: document_inputs(pair, calibration_corpus(pair.spec.scheme) or corpus, {}, wanted=False),
            batch_size=batch_size,
            progress=progress_if(shown),
        ),
    )
    evidence = evidence_of_lists(reference, candidate, corpus, queries)
    found = Found.of(
        pair.pair,
        evidence,
        settings=Settings(k=DEPTH, batch_size=batch_size, noise_floor=False),
        reading={"search": kind},
        n_items=len(corpus),
        results=lambda arm: reference if arm == "reference" else candidate,
        seconds=seconds,
        notes=[] if evidence.exact else [_BOUND],
    )
    return paired_results(pair, found, digest_of_data(queries, corpus), started=started, shown=shown)


def evidence_of_lists(
    reference: Mapping[str, Mapping[str, float]],
    candidate: Mapping[str, Mapping[str, float]],
    corpus: Mapping[str, Any],
    queries: Mapping[str, Any],
) -> Evidence:
    """Evidence of two results; exact where every list holds the whole corpus.

    Neither the document of the query's own id counts, nor what fills up a list.
    """
    position = {name: number for number, name in enumerate(corpus)}
    arms = [
        {
            query: {
                name: score
                for name, score in arm.get(query, {}).items()
                if name != query and (score > _LEAST or math.isnan(score))
            }
            for query in queries
        }
        for arm in (reference, candidate)
    ]
    return evidence_of_rankings(
        *arms,
        complete=all(len(found) == len(corpus) - (query in corpus) for arm in arms for query, found in arm.items()),
        # a document of another corpus, in an index that was there before, comes last
        position=lambda name: (position.get(name, len(corpus)), name),
        depth=DEPTH,
    )
