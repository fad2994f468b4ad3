"""beir's reranking with a paired cross-encoder: both arms score the same shortlists."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from quantdrift.engine.calibration.sample import calibration_texts
from quantdrift.engine.encoders.cross_encoder import activation_of
from quantdrift.engine.inputs import Settings
from quantdrift.engine.measure import not_calibrated_on, other_batch_size
from quantdrift.engine.readings import OPENING, opening_of
from quantdrift.engine.store import digest_of
from quantdrift.errors import DataError, UnsupportedError
from quantdrift.harness import DEPTH, PROBE, Results, Side, calibrate, progress_if, runs, search_lists
from quantdrift.runs import now
from quantdrift_beir.pairs import QuantizedPair, digest_of_data, key_of_texts, refuse_unchosen
from quantdrift_beir.results import PairedResults, paired_results

Rerank = Callable[..., Mapping[str, Mapping[str, float]]]


def rerank_both(original: Rerank, reranker: Any, pair: QuantizedPair, given: Mapping[str, Any]) -> PairedResults:
    """Rerank.rerank, with both arms on the same pairs of query and document."""
    if pair.pair.query_only:
        raise UnsupportedError(
            f"+query keeps the index at full precision, and a cross-encoder has none: it reads query and document "
            f"together. Leave +query out of {pair.spec.scheme}"
        )
    refuse_unchosen(pair, "a cross-encoder reads query and document together")
    corpus, queries, shortlists = given["corpus"], given["queries"], given["results"]
    listed = [query for query, names in shortlists.items() if any(name != query for name in names)]
    if not listed:
        raise DataError(f"nothing to rerank: none of {len(shortlists)} queries has a document in its results")
    not_calibrated_on(pair.pair, listed)  # refuses before hours go into it
    started, size = now(), int(reranker.batch_size)

    def scores(wanted: list[tuple[str, str]], batch_size: int) -> Any:
        return _predict(pair, [(queries[query], _text(corpus[name])) for query, name in wanted], batch_size)

    def again(contenders: Mapping[str, list[str]]) -> Results:
        wanted = [(query, name) for query, names in contenders.items() for name in names][::-1]
        found: Results = {query: {} for query in contenders}
        for (query, name), score in zip(wanted, scores(wanted, other_batch_size(size)), strict=True):
            found[query][name] = float(score)
        return found

    def watch() -> None:
        some = ((query, name) for query, names in shortlists.items() for name in names)
        with pair.pair.observed():
            scores(list(islice(some, PROBE)), PROBE)

    activation = activation_of(pair.pair.modules)
    found = search_lists(
        pair.arms,
        lambda: {query: dict(own) for query, own in original(reranker, **given).items()},
        again,
        item_ids=list(corpus),
        scorers=pair.pair.modules,
        harness="beir",
        skip_same_id=True,
        settings=Settings(k=DEPTH, batch_size=size),
        reading={
            "search": "reranking",
            "scores": "as the model gives them" if activation is None else f"raw, before the {activation}",
            "top_k": int(given["top_k"]),
        },
        what="reranking",
        watch=watch,
        calibrate=lambda: calibrate(
            pair.pair, lambda: _asked_for(pair, corpus), batch_size=size, progress=progress_if(True)
        ),
    )
    lists = {query: sorted(own.keys() - {query}) for query, own in found.results("reference").items()}
    lists = {query: names for query, names in lists.items() if names}
    shortlist = digest_of(text for query in sorted(lists) for text in (query, *lists[query], ""))
    found = replace(found, reading={**found.reading, "shortlist": {"digest": shortlist}})
    data = digest_of_data(
        {query: queries[query] for query in lists}, {name: corpus[name] for names in lists.values() for name in names}
    )
    reranker.rerank_results = results = paired_results(pair, found, data, started=started)
    return results


def _asked_for(pair: QuantizedPair, corpus: Mapping[str, Any]) -> Side:
    """Documents that are each asked for by their own first words: no query is ever used."""
    texts = calibration_texts(pair.spec.scheme) or [_text(one) for one in corpus.values()]

    def run(rows: list[int], batch_size: int) -> None:
        _predict(pair, [(opening_of(texts[row]), texts[row]) for row in rows], batch_size)

    key = key_of_texts(pair, texts, opening=OPENING)
    return runs(run, len(texts), key=key, lengths=[len(text) for text in texts])


def _text(document: Mapping[str, str]) -> str:
    """As beir joins title and text for a cross-encoder."""
    return (document.get("title", "") + " " + document.get("text", "")).strip()


def _predict(pair: QuantizedPair, texts: list[tuple[str, str]], batch_size: int) -> Any:
    """Scores by the weights that are in place, without a progress bar where the model can do without."""
    parameters = inspect.signature(pair.base.predict).parameters.values()
    takes = any(one.name == "show_progress_bar" or one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    quiet = {"show_progress_bar": False} if takes else {}
    return pair.base.predict([list(both) for both in texts], batch_size=batch_size, **quiet)
