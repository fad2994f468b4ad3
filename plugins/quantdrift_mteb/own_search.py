"""Models that search with an index of their own, and shortlists: one whole search per arm."""

from __future__ import annotations

from typing import Any

import numpy as np

from quantdrift.assembly import assemble
from quantdrift.errors import DataError, UnsupportedError
from quantdrift.pair import QuantizedPair
from quantdrift.retrieval import Measured, Settings
from quantdrift.scoring import ScoreState, score_ragged
from quantdrift_mteb.search import DEPTH, Found, Results, SearchCall

__all__ = ["search_by_model"]

MOST_SCORES = 20_000_000
"""Scores that a search by the model's own index may return, all of them being needed at once."""


def search_by_model(pair: QuantizedPair, searcher: Any, call: SearchCall) -> Found:
    """Run the model's own search once per arm, asking for every score there is.

    Args:
        pair: the model's weights.
        searcher: an mteb search model.
        call: what mteb asked for.

    Raises:
        UnsupportedError: there are too many scores to ask for, or the arms scored other documents.
    """
    if pair.scheme.query_only:
        raise UnsupportedError(
            "+query needs a model that embeds queries and documents apart, searched in full; "
            f"{call.task_metadata.name} reranks, or this model has its own index. Leave it out."
        )
    document_ids = list(call.corpus["id"])
    depth = len(document_ids)
    if call.top_ranked is None and depth * len(call.queries) > MOST_SCORES:
        raise UnsupportedError(
            f"this model searches with its own index, which would have to return all "
            f"{depth * len(call.queries):,} scores of {call.task_metadata.name} for epsilon to be "
            f"measured (at most {MOST_SCORES:,}). Choose a smaller task"
        )
    fingerprint = pair.fingerprint
    with pair.observed():
        reference = _own_search(searcher, call, depth)
    with pair.candidate():
        candidate = _own_search(searcher, call, depth)
    state, query_ids = _state(reference, candidate, document_ids, call)
    evidence = assemble(state, input_ids=query_ids, item_ids=document_ids, depth=DEPTH)
    settings = Settings(k=max(DEPTH, call.top_k), batch_size=call.batch_size, noise_floor=False)
    return Found(
        measured=Measured(evidence=evidence, state=state, fingerprint=fingerprint),
        results={
            "reference": _cut(reference, call.top_k),
            "candidate": _cut(candidate, call.top_k),
        },
        settings=settings,
        similarity="the model's own search",
        n_documents=depth,
    )


def _own_search(searcher: Any, call: SearchCall, depth: int) -> Results:
    context = {
        "task_metadata": call.task_metadata,
        "hf_split": call.hf_split,
        "hf_subset": call.hf_subset,
        "encode_kwargs": call.encode_kwargs,
        "num_proc": call.num_proc,
    }
    searcher.index(call.corpus, **context)
    results: Results = searcher.search(
        call.queries, top_k=depth, top_ranked=call.top_ranked, **context
    )
    return results


def _cut(results: Results, top_k: int) -> Results:
    return {
        query: dict(sorted(scores.items(), key=lambda item: -item[1])[:top_k])
        for query, scores in results.items()
    }


def _state(
    reference: Results, candidate: Results, document_ids: list[str], call: SearchCall
) -> tuple[ScoreState, list[str]]:
    position = {name: number for number, name in enumerate(document_ids)}
    rows = []
    query_ids = []
    for query, scores in reference.items():
        others = candidate.get(query, {})
        if scores.keys() != others.keys():
            raise UnsupportedError(
                f"the two arms scored other documents for query {query!r} of "
                f"{call.task_metadata.name}; a pair needs a search that scores the same ones"
            )
        names = sorted(
            (name for name in scores if not (call.skip_identical and name == query)),
            key=position.__getitem__,
        )
        if names:
            query_ids.append(query)
            rows.append(
                (
                    np.array([position[name] for name in names]),
                    np.array([scores[name] for name in names], dtype=np.float32),
                    np.array([others[name] for name in names], dtype=np.float32),
                )
            )
    if not rows:
        raise DataError(f"no query of {call.task_metadata.name} has a document to rank")
    return score_ragged(rows, k=max(DEPTH, call.top_k)), query_ids
