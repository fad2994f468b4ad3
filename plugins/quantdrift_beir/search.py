"""beir's exact search and its reranking, by both arms of a pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from quantdrift.base.errors import UnsupportedError
from quantdrift.engine.calibration.sample import calibration_texts
from quantdrift.engine.encoders.cross_encoder import activation_of
from quantdrift.engine.inputs import Settings
from quantdrift.engine.readings import OPENING, opening_of
from quantdrift.engine.store import digest_of
from quantdrift.harness import (
    DEPTH,
    Results,
    Side,
    calibrate,
    progress_if,
    refuse_without_search,
    runs,
    search_embedded,
    search_lists,
    similarity_of,
)
from quantdrift.runs.folder import now
from quantdrift_beir.pairs import QuantizedPair, digest_of_data, inputs_of, key_of_texts
from quantdrift_beir.results import PairedResults, paired_results

Original = Callable[..., Any]


def search_both(original: Original, searcher: Any, pair: QuantizedPair, given: Mapping[str, Any]) -> Any:
    """DenseRetrievalExactSearch.search, measured for both arms by embedding and streaming."""
    name = given["score_function"]
    score = searcher.score_functions.get(name)
    if score is None:  # beir says so
        return original(searcher, **given)
    similarity = similarity_of(score)
    if similarity is None:
        raise UnsupportedError(
            f"{name!r} is no score function that quantdrift computes; expected a cosine, a dot product or a Euclidean "
            "distance. Else search with each model, save both results as JSON, and compare them: quantdrift diff A B"
        )
    started = now()
    corpus, queries = given["corpus"], given["queries"]
    options = {"convert_to_tensor": searcher.convert_to_tensor}
    shown = getattr(searcher, "show_progress_bar", True)
    calibration = None
    if (texts := calibration_texts(pair.spec.scheme)) is not None:
        documents = {f"calibration-{number}": {"title": "", "text": text} for number, text in enumerate(texts)}
        calibration = inputs_of(pair, "calibration", documents, options)
    found = search_embedded(
        pair.pair,
        inputs_of(pair, "query", queries, options),
        inputs_of(pair, "document", corpus, options),
        similarity=similarity,
        top_k=int(given["top_k"]),
        batch_size=int(searcher.batch_size),
        progress=progress_if(shown),
        skip_same_id=True,
        calibration=calibration,
    )
    if n := len(queries.keys() & corpus.keys()):
        who = "1 query has" if n == 1 else f"{n:,} queries have"
        found = replace(found, notes=[f"{who} the id of a document, which beir leaves out", *found.notes])
    searcher.results = paired_results(pair, found, digest_of_data(queries, corpus), started=started, shown=shown)
    return searcher.results


# --- a cross-encoder: both arms score the same shortlists -----------------------------------------


def rerank_both(original: Original, reranker: Any, pair: QuantizedPair, given: Mapping[str, Any]) -> PairedResults:
    """Rerank.rerank, with both arms on the same pairs of query and document."""
    why = "a cross-encoder reads query and document together"
    refuse_without_search(pair.pair, why, named='QuantizedPair(model, "allocation.json")')
    corpus, queries, shortlists = given["corpus"], given["queries"], given["results"]
    started, size = now(), int(reranker.batch_size)

    def score(wanted: Mapping[str, list[str]], batch_size: int) -> Results:
        pairs = [(query, name) for query, names in wanted.items() for name in names]
        texts = [[queries[query], _text(corpus[name])] for query, name in pairs]
        scores: Results = {query: {} for query in wanted}
        predicted = pair.base.predict(texts, batch_size=batch_size, show_progress_bar=False)
        for (query, name), value in zip(pairs, predicted, strict=True):
            scores[query][name] = float(value)
        return scores

    activation = activation_of(pair.pair.modules)
    reading = {
        "search": "reranking",
        "scores": "as the model gives them" if activation is None else f"raw, before the {activation}",
        "top_k": int(given["top_k"]),
    }
    found = search_lists(
        pair.arms,
        lambda: {query: dict(own) for query, own in original(reranker, **given).items()},
        score,
        shortlists=shortlists,
        item_ids=list(corpus),
        scorers=pair.pair.modules,
        harness="beir",
        skip_same_id=True,
        settings=Settings(k=DEPTH, batch_size=size),
        reading=reading,
        what="reranking",
        calibrate=lambda: calibrate(
            pair.pair, lambda: _asked_for(pair, corpus), batch_size=size, progress=progress_if(True)
        ),
    )
    lists = {query: sorted(own.keys() - {query}) for query, own in found.results("reference").items()}
    lists = {query: names for query, names in lists.items() if names}
    shortlist = digest_of(text for query in sorted(lists) for text in (query, *lists[query], ""))
    data = digest_of_data(
        {query: queries[query] for query in lists}, {name: corpus[name] for names in lists.values() for name in names}
    )
    found = replace(found, reading={**reading, "shortlist": {"digest": shortlist}})
    reranker.rerank_results = results = paired_results(pair, found, data, started=started)
    return results


def _asked_for(pair: QuantizedPair, corpus: Mapping[str, Any]) -> Side:
    """Documents that are each asked for by their own first words: no query is ever used."""
    texts = calibration_texts(pair.spec.scheme) or [_text(one) for one in corpus.values()]

    def run(rows: list[int], batch_size: int) -> None:
        asked = [[opening_of(texts[row]), texts[row]] for row in rows]
        pair.base.predict(asked, batch_size=batch_size, show_progress_bar=False)

    key = key_of_texts(pair, texts, opening=OPENING)
    return runs(run, len(texts), key=key, lengths=[len(text) for text in texts])


def _text(document: Mapping[str, str]) -> str:
    """As beir joins title and text for a cross-encoder."""
    return (document.get("title", "") + " " + document.get("text", "")).strip()
