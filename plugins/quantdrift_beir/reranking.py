"""beir's reranking with a paired cross-encoder: both arms score the same shortlists."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.engine.calibration.sample import calibration_texts, draw_sample
from quantdrift.engine.encoders.cross_encoder import activation_of, raw_scores
from quantdrift.engine.inputs import Inputs
from quantdrift.engine.rerank import OPENING, opening_of
from quantdrift.engine.run import now
from quantdrift.engine.scoring.state import ScoreState
from quantdrift.engine.scoring.streamed import score_ragged
from quantdrift.engine.search import (
    NOISE_DEPTH,
    Settings,
    assemble,
    noise_of_scores,
    not_calibrated_on,
    other_batch_size,
)
from quantdrift.engine.store import default_store, digest_of
from quantdrift.errors import DataError, UnsupportedError
from quantdrift.evidence import Noise
from quantdrift.progress import Terminal
from quantdrift_beir.inputs import description_of, digest_of_data
from quantdrift_beir.pairs import QuantizedPair, refuse_unchosen
from quantdrift_beir.record import made_by
from quantdrift_beir.results import DEPTH, Drift, PairedResults, Results, say

PROBE = 2
"""Pairs of texts that are run with an eye on which layers they reach."""

_NOTHING = "nothing to rerank: none of {n} queries has a document in its results"

Rerank = Callable[..., Mapping[str, Mapping[str, float]]]


def rerank_both(original: Rerank, reranker: Any, pair: QuantizedPair, given: Mapping[str, Any]) -> PairedResults:
    """Rerank.rerank, with both arms on the same pairs of query and document.

    Args:
        original: beir's own method.
        reranker: the Rerank object.
        pair: the cross-encoder that it holds.
        given: the arguments of the call, by name.

    Returns:
        The candidate's results, with the drift over the shortlists.

    Raises:
        UnsupportedError: `+query`, or a criterion that would have to choose widths.
        DataError: no query has a document, or layers were measured on all that have one.
        QuantDriftError: the scheme cannot be made, or a score is not finite.
    """
    if pair.pair.query_only:
        raise UnsupportedError(
            f"+query keeps the index at full precision, and a cross-encoder has none: it reads "
            f"query and document together. Leave +query out of {pair.spec.scheme}"
        )
    refuse_unchosen(pair, "a cross-encoder reads query and document together")
    corpus, queries, shortlists = given["corpus"], given["queries"], given["results"]
    listed = [query for query, names in shortlists.items() if any(n != query for n in names)]
    if not listed:
        raise DataError(_NOTHING.format(n=len(shortlists)))
    not_calibrated_on(pair.pair, listed)  # refuses before hours go into it
    started, clock = now(), [time.perf_counter()]
    fingerprint = pair.pair.fingerprint
    activation = activation_of(pair.pair.modules)
    with raw_scores(pair.pair.modules, "beir") as activated, pair.both_arms() as choose:
        _watch(pair, given)
        reference = _kept(original(reranker, **given))
        clock.append(time.perf_counter())
        _calibrate(pair, corpus, int(reranker.batch_size))
        clock.append(time.perf_counter())
        choose("candidate")
        candidate = _kept(original(reranker, **given))
        clock.append(time.perf_counter())
        choose("reference")
        position = {name: number for number, name in enumerate(corpus)}
        counted = _counted(reference, position)
        if not counted:  # a short list may end before the first document that counts
            raise DataError(_NOTHING.format(n=len(shortlists)))
        rows = [
            (
                np.array([position[name] for name in names], dtype=np.int64),
                np.array([reference[query][name] for name in names], dtype=np.float32),
                np.array([candidate[query][name] for name in names], dtype=np.float32),
            )
            for query, names in counted.items()
        ]
        state = score_ragged(rows, k=DEPTH)
        noise = _noise(pair, list(counted), state, given, int(reranker.batch_size))
        clock.append(time.perf_counter())
    evidence = assemble(state, input_ids=list(counted), item_ids=list(position), noise=noise, depth=DEPTH)
    rest = not_calibrated_on(pair.pair, list(counted))
    left_out = len(counted) - len(rest)
    evidence = evidence.part(rest) if left_out else evidence
    stages = ("reference: reranking", "calibration", "candidate: reranking", "noise floor")
    made = made_by(
        pair.pair,
        pair.spec,
        fingerprint,
        settings=Settings(k=DEPTH, batch_size=int(reranker.batch_size)),
        reading={
            "search": "reranking",
            "scores": "as the model gives them" if activation is None else f"raw, before the {activation}",
            "top_k": int(given["top_k"]),
            "shortlist": {"digest": _digest_of_lists(counted)},
        },
        data={
            "n_queries": len(counted),
            "n_documents": len(corpus),
            "fingerprint": digest_of_data(
                {query: queries[query] for query in counted},
                {name: corpus[name] for names in counted.values() for name in names},
            ),
            "warnings": [],
        },
        left_out=left_out,
        started=started,
        seconds=dict(zip(stages, np.diff(clock).round(3).tolist(), strict=True)),
    )
    say(pair.spec, evidence)
    reranker.rerank_results = PairedResults(
        activated(candidate), Drift(evidence=evidence, reference=activated(reference), made=made)
    )
    results: PairedResults = reranker.rerank_results
    return results


def _kept(results: Mapping[str, Mapping[str, float]]) -> Results:
    return {query: dict(scores) for query, scores in results.items()}


def _counted(results: Results, position: Mapping[str, int]) -> dict[str, list[str]]:
    """Per query its documents, in the order of the corpus; not itself, which beir leaves out."""
    names = {
        query: sorted((name for name in scores if name != query), key=position.__getitem__)
        for query, scores in results.items()
    }
    return {query: listed for query, listed in names.items() if listed}


def _digest_of_lists(counted: Mapping[str, list[str]]) -> str:
    """A digest of which documents each query has, in whatever order they were ranked."""
    return digest_of(text for query in sorted(counted) for text in (query, *sorted(counted[query]), ""))


def _noise(
    pair: QuantizedPair, queries: Sequence[str], state: ScoreState, given: Mapping[str, Any], batch_size: int
) -> Noise:
    """Score again, in another order and batch size, what could be first; compare."""
    positions, once, _ = (part[:, :NOISE_DEPTH] for part in state.reference_top())
    names = list(given["corpus"])
    places = [(row, names[positions[row, at]], at) for row, at in np.argwhere(positions >= 0)]
    places.sort(reverse=True)
    texts = [[given["queries"][queries[row]], _text(given["corpus"][name])] for row, name, _ in places]
    scores = pair.base.predict(texts, batch_size=other_batch_size(batch_size), **_quiet(pair))
    again = np.zeros(once.shape, dtype=np.float32)
    for (row, _, at), score in zip(places, scores, strict=True):
        again[row, at] = float(score)
    return noise_of_scores(once.astype(np.float64), again.astype(np.float64), positions)


def _watch(pair: QuantizedPair, given: Mapping[str, Any]) -> None:
    """Score a few pairs with an eye on which layers they reach."""
    found = ((query, name) for query, names in given["results"].items() for name in names)
    texts = [[given["queries"][query], _text(given["corpus"][name])] for query, name in islice(found, PROBE)]
    with pair.pair.observed():
        pair.base.predict(texts, batch_size=PROBE, **_quiet(pair))


def _calibrate(pair: QuantizedPair, corpus: Mapping[str, Any], batch_size: int) -> None:
    """Calibrate on documents that are each asked for by their own first words."""
    if not pair.pair.needs_calibration:
        return
    texts = calibration_texts(pair.spec.scheme) or [_text(one) for one in corpus.values()]

    def run(rows: NDArray[np.int64], size: int) -> NDArray[np.float32]:
        part = [texts[row] for row in rows.tolist()]
        pairs = [[opening_of(text), text] for text in part]  # no query is ever used
        pair.base.predict(pairs, batch_size=size, **_quiet(pair))
        return np.zeros((len(rows), 0), dtype=np.float32)

    described = description_of(pair.base)
    inputs = Inputs(
        role="document",
        ids=[str(number) for number in range(len(texts))],
        encode=run,
        key=None
        if described is None
        else {"harness": ["beir", version("beir")], "model": described, "texts": digest_of(texts), "opening": OPENING},
        lengths=np.array([len(text) for text in texts], dtype=np.int64),
    )
    sample = draw_sample(inputs, pair.spec.scheme, batch_size)
    pair.pair.prepare(sample, root=default_store().root, progress=Terminal())


def _text(document: Mapping[str, str]) -> str:
    """As beir joins title and text for a cross-encoder."""
    return (document.get("title", "") + " " + document.get("text", "")).strip()


def _quiet(pair: QuantizedPair) -> dict[str, bool]:
    """The argument that leaves out progress bars, where the model takes it."""
    parameters = inspect.signature(pair.base.predict).parameters.values()
    takes = any(one.name == "show_progress_bar" or one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    return {"show_progress_bar": False} if takes else {}
