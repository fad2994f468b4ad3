"""Models that search with an index of their own, and shortlists: one whole search per arm."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from mteb.models import SearchEncoderWrapper

from quantdrift.engine.encoders.cross_encoder import activation_of, raw_scores
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.scoring.state import ScoreState
from quantdrift.engine.scoring.streamed import score_ragged
from quantdrift.engine.search import Measured, Settings, assemble, not_calibrated_on, other_batch_size
from quantdrift.errors import DataError, UnsupportedError
from quantdrift.evidence import Noise
from quantdrift_mteb.calibration import prepare_search
from quantdrift_mteb.choice import refuse_unchosen
from quantdrift_mteb.search import DEPTH, Found, Results, SearchCall

MOST_SCORES = 20_000_000
"""Scores that a search by the model's own index may return, all of them being needed at once."""

OWN = "the model's own search"
"""How scores are made."""

PROBE = 2
"""Queries, and documents of each, that are run with an eye on which layers they reach."""

NOISE_DEPTH = 10
"""Ranks of the reference that are scored again for the noise floor."""


def search_by_model(pair: QuantizedPair, searcher: Any, call: SearchCall) -> Found:
    """Run the model's own search once per arm, asking for every score there is.

    Args:
        pair: the model's weights, the reference's in place.
        searcher: an mteb search model.
        call: what mteb asked for.

    Raises:
        UnsupportedError: there are too many scores to ask for, the arms scored other documents, or
            a criterion would have to choose widths.
        DataError: no query has a document to rank.
    """
    refuse_unchosen(pair, f"{call.task_metadata.name} is no search over embeddings of this model")
    if pair.scheme.query_only:
        raise UnsupportedError(
            "+query needs a model that embeds queries and documents apart, searched in full; "
            f"{call.task_metadata.name} reranks, or this model has its own index. Leave it out."
        )
    query_ids, document_ids = list(call.queries["id"]), list(call.corpus["id"])
    if call.top_ranked is None and len(document_ids) * len(query_ids) > MOST_SCORES:
        raise UnsupportedError(
            f"this model searches with its own index, which would have to return all "
            f"{len(document_ids) * len(query_ids):,} scores of {call.task_metadata.name} for "
            f"epsilon to be measured (at most {MOST_SCORES:,}). Choose a smaller task"
        )
    probe = _probe(call)
    if not probe:
        raise DataError(f"no query of {call.task_metadata.name} has a document to rank")
    clock = [time.perf_counter()]
    fingerprint = pair.fingerprint
    scorers = [getattr(getattr(searcher, "model", None), "model", None)]
    activation = activation_of(scorers)
    with raw_scores(scorers, "mteb") as given:
        _watch(pair, searcher, _part(call, probe))
        reference = call.run(searcher, top_k=len(document_ids))
        clock.append(time.perf_counter())
        prepare_search(pair, searcher, call)
        clock.append(time.perf_counter())
        with pair.candidate():
            candidate = call.run(searcher, top_k=len(document_ids))
        clock.append(time.perf_counter())
        state, input_ids = _state(reference, candidate, document_ids, call)
        noise = _noise(searcher, call, reference, input_ids, document_ids)
        clock.append(time.perf_counter())
    evidence = assemble(state, input_ids=input_ids, item_ids=document_ids, depth=DEPTH, noise=noise)
    rest = not_calibrated_on(pair, input_ids, call.task_metadata.name)
    stages = ("reference: search", "calibration", "candidate: search", "noise floor")
    seconds = dict(zip(stages, np.diff(clock).round(3).tolist(), strict=True))
    return Found(
        measured=Measured(
            evidence=evidence if len(rest) == len(input_ids) else evidence.part(rest),
            state=state,
            fingerprint=fingerprint,
            left_out=len(input_ids) - len(rest),
            seconds=seconds,
        ),
        results=lambda arm: _cut(given(reference if arm == "reference" else candidate), call.top_k),
        query_ids=query_ids,
        settings=Settings(k=max(DEPTH, call.top_k), batch_size=call.batch_size),
        similarity=OWN if activation is None else f"{OWN}, before its {activation}",
        n_documents=len(document_ids),
    )


def _watch(pair: QuantizedPair, searcher: Any, call: SearchCall) -> None:
    """Search with an eye on which layers are reached."""
    if not isinstance(searcher, SearchEncoderWrapper):
        with pair.observed():
            call.run(searcher)
        return
    encode = searcher.model.encode

    def observed(*args: Any, **kwargs: Any) -> Any:
        with pair.observed():  # scores are made of numpy arrays, whose origin cannot be told
            return encode(*args, **kwargs)

    encoder = SimpleNamespace(
        encode=observed, similarity=searcher.model.similarity, mteb_model_meta=searcher.mteb_model_meta
    )
    call.run(SearchEncoderWrapper(encoder))


def _cut(results: Results, top_k: int) -> Results:
    return {query: dict(sorted(scores.items(), key=lambda item: -item[1])[:top_k]) for query, scores in results.items()}


def _state(
    reference: Results, candidate: Results, document_ids: list[str], call: SearchCall
) -> tuple[ScoreState, list[str]]:
    position = {name: number for number, name in enumerate(document_ids)}
    rows = []
    input_ids = []
    for query, scores in reference.items():
        others = candidate.get(query, {})
        if scores.keys() != others.keys():
            raise UnsupportedError(
                f"the two arms scored other documents for query {query!r} of "
                f"{call.task_metadata.name}; a pair needs a search that scores the same ones"
            )
        names = sorted(_counted(query, scores, call), key=position.__getitem__)
        if names:
            input_ids.append(query)
            rows.append(
                (
                    np.array([position[name] for name in names]),
                    np.array([scores[name] for name in names], dtype=np.float32),
                    np.array([others[name] for name in names], dtype=np.float32),
                )
            )
    if not rows:
        raise DataError(f"no query of {call.task_metadata.name} has a document to rank")
    return score_ragged(rows, k=max(DEPTH, call.top_k)), input_ids


def _counted(query: str, scores: dict[str, float], call: SearchCall) -> list[str]:
    """The documents that count for a query: not itself, where mteb leaves that out."""
    return [name for name in scores if not (call.skip_identical and name == query)]


def _probe(call: SearchCall) -> dict[str, list[str]]:
    """A few queries and documents of theirs; empty if there are none."""
    if call.top_ranked is None:
        documents = list(call.corpus["id"][:PROBE])
        return dict.fromkeys(call.queries["id"][:PROBE], documents) if documents else {}
    known = set(call.queries["id"])
    ranked = [query for query, names in call.top_ranked.items() if query in known and len(names)]
    return {query: list(call.top_ranked[query])[:PROBE] for query in ranked[:PROBE]}


def _noise(searcher: Any, call: SearchCall, reference: Results, input_ids: list[str], document_ids: list[str]) -> Noise:
    """Score again, in another order and batch size, what could be first; compare."""
    position = {name: number for number, name in enumerate(document_ids)}

    def rank(query: str, scores: dict[str, float]) -> list[str]:
        # of equal scores the lower position wins, as in the ranking itself
        names = _counted(query, scores, call)
        return sorted(names, key=lambda name: (-np.float32(scores[name]), position[name]))

    contenders = {query: rank(query, reference[query])[:NOISE_DEPTH] for query in input_ids}
    size = other_batch_size(call.batch_size)
    part = _part(call, contenders, batch_size=size)
    again = part.run(searcher, top_k=len(part.corpus))
    flips, epsilon = [], []
    for query, names in contenders.items():
        scores = {name: again[query][name] for name in names}
        flips.append(rank(query, scores)[0] != names[0])
        epsilon.append(max(abs(scores[name] - reference[query][name]) for name in names))
    return Noise(flips=np.array(flips), epsilon=np.array(epsilon, dtype=np.float32))


def _part(call: SearchCall, wanted: dict[str, list[str]], *, batch_size: int | None = None) -> SearchCall:
    """The call for some queries and documents only, each in the opposite order."""
    documents = {name for names in wanted.values() for name in names}
    sides = []
    for dataset, names in ((call.queries, wanted), (call.corpus, documents)):
        rows = [row for row, name in enumerate(dataset["id"]) if name in names]
        sides.append(dataset.select(rows[::-1]))
    return replace(
        call,
        queries=sides[0],
        corpus=sides[1],
        top_ranked=None if call.top_ranked is None else wanted,
        encode_kwargs={**call.encode_kwargs, "batch_size": batch_size or call.batch_size, "show_progress_bar": False},
    )
