"""beir's exact search over embeddings, for both arms of a pair at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.engine.pair import Arm
from quantdrift.engine.run import now
from quantdrift.engine.scoring.streamed import Similarity
from quantdrift.engine.search import Settings, measure_retrieval
from quantdrift.engine.store import default_store, key_of
from quantdrift.harness import similarity_of
from quantdrift.progress import Progress, Silent, Terminal
from quantdrift_beir.inputs import calibration_inputs, digest_of_data, document_inputs, ids_and_rows, query_inputs
from quantdrift_beir.own_search import search_twice
from quantdrift_beir.pairs import QuantizedPair
from quantdrift_beir.record import made_by
from quantdrift_beir.results import DEPTH, Drift, PairedResults, Results, say

Original = Callable[..., Any]


def search_by_pair(original: Original, searcher: Any, pair: QuantizedPair, given: Mapping[str, Any]) -> Results:
    """DenseRetrievalExactSearch.search, measured for both arms by embedding and streaming.

    Args:
        original: beir's own method.
        searcher: the search object.
        pair: the model that it holds.
        given: the arguments of the call, by name.

    Returns:
        The candidate's results with the drift; while a search is run once per arm, that arm's.

    Raises:
        ValueError: beir's own, of a score function that it does not know.
        QuantDriftError: the scheme cannot be made, or an embedding is not finite.
    """
    name = given["score_function"]
    if name not in searcher.score_functions:
        return _stock(original, searcher, given)
    similarity = similarity_of(searcher.score_functions[name])
    if similarity is None:
        if pair.in_session:
            return _stock(original, searcher, given)
        return search_twice(pair, searcher, given, lambda one: _stock(original, one, given))
    corpus, queries, top_k = given["corpus"], given["queries"], int(given["top_k"])
    if not pair.in_session:
        found = _measured(searcher, pair, corpus, queries, top_k=top_k, similarity=similarity)
        say(pair.spec, found.evidence, shown=searcher.show_progress_bar)
        searcher.results = found
        return found
    texts = digest_of_data(queries, corpus)  # a search may ask again for other texts of these ids
    asked = key_of(texts=texts, top_k=top_k, similarity=str(similarity))
    if asked not in pair.found:
        pair.restore()
        pair.found[asked] = _measured(searcher, pair, corpus, queries, top_k=top_k, similarity=similarity)
    results = searcher.results = of_arm(pair.found[asked], pair.arm)
    return results


def _measured(
    searcher: Any,
    pair: QuantizedPair,
    corpus: Mapping[str, Any],
    queries: Mapping[str, str],
    *,
    top_k: int,
    similarity: Similarity,
) -> PairedResults:
    started = now()
    options = options_of(searcher)
    document_ids, rows = ids_and_rows(corpus)
    left_out = excluded(list(queries), document_ids)
    settings = Settings(k=max(DEPTH, top_k), batch_size=int(searcher.batch_size))
    measured = measure_retrieval(
        pair.pair,
        query_inputs(pair, queries, options),
        document_inputs(pair, document_ids, rows, options),
        similarity=similarity,
        settings=settings,
        store=default_store(),
        progress=progress_of(searcher),
        excluded=left_out,
        depth=DEPTH,
        calibration=calibration_inputs(pair, options),
    )
    state = measured.state
    tops = state.reference_top()[:2], state.candidate_top()[::2]
    reference, candidate = (_results(top, list(queries), document_ids, top_k) for top in tops)
    made = made_by(
        pair.pair,
        pair.spec,
        measured.fingerprint,
        settings=settings,
        candidate_fingerprint=measured.candidate_fingerprint,
        reading={"similarity": str(similarity)},
        data={
            "n_queries": len(queries),
            "n_documents": len(document_ids),
            "fingerprint": digest_of_data(queries, corpus),
            "warnings": [*warnings_of(left_out), *measured.notes],
        },
        left_out=measured.left_out,
        started=started,
        seconds=measured.seconds,
    )
    drift = Drift(evidence=measured.evidence, reference=reference, made=made)
    return PairedResults(candidate, drift)


def options_of(searcher: Any) -> dict[str, Any]:
    """What a search gives its model beside texts and batch size."""
    return {"convert_to_tensor": searcher.convert_to_tensor}


def progress_of(searcher: Any) -> Progress:
    """As loud as the search was told to be."""
    return Terminal() if getattr(searcher, "show_progress_bar", True) else Silent()


def excluded(query_ids: Sequence[str], document_ids: Sequence[str]) -> NDArray[np.int64]:
    """Per query the position of the document of the same id, which beir leaves out; or -1."""
    wanted = set(query_ids)
    position = {name: number for number, name in enumerate(document_ids) if name in wanted}
    return np.array([position.get(name, -1) for name in query_ids], dtype=np.int64)


def warnings_of(left_out: NDArray[np.int64]) -> list[str]:
    """What to know of documents that are called as a query is, for the record.

    Args:
        left_out: from `excluded`.
    """
    n = int((left_out >= 0).sum())
    who = "1 query has" if n == 1 else f"{n:,} queries have"
    return [f"{who} the id of a document, which beir leaves out"] if n else []


def _stock(original: Original, searcher: Any, given: Mapping[str, Any]) -> Results:
    results: Results = original(searcher, **given)
    return results


def of_arm(found: PairedResults, arm: Arm) -> PairedResults:
    """One arm's results, made anew: whoever asked may change them.

    Args:
        found: of both.
        arm: whose results are wanted.

    Returns:
        They carry the same drift, the very object, whichever arm is asked for.
    """
    results = found.reference if arm == "reference" else found
    return PairedResults({query: dict(one) for query, one in results.items()}, found.drift)


def _results(top: tuple[NDArray[Any], ...], query_ids: list[str], document_ids: list[str], top_k: int) -> Results:
    positions, scores = (part[:, :top_k].tolist() for part in top)
    return {
        query: {document_ids[position]: score for position, score in zip(row, row_scores, strict=True) if position >= 0}
        for query, row, row_scores in zip(query_ids, positions, scores, strict=True)
    }
