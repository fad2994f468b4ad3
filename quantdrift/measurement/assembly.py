"""From a score state to evidence: positions become ids, labels and noise join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from quantdrift.evidence import Evidence, Judgements, Noise, Top
from quantdrift.scoring import ScoreState

__all__ = ["assemble", "with_qrels"]

Qrels = Mapping[str, Mapping[str, int]]


def assemble(
    state: ScoreState,
    *,
    input_ids: Sequence[str],
    item_ids: Sequence[str],
    qrels: Qrels | None = None,
    noise: Noise | None = None,
    depth: int | None = None,
) -> Evidence:
    """Make evidence of a state.

    Args:
        state: scores of every input against every item.
        input_ids: names of the state's rows.
        item_ids: names of all items, by position.
        qrels: input id to item id to grade; inputs without an entry have no judgement. Judged items
            outside the corpus are kept: they count in the ideal ranking.
        noise: the noise floor, where it was measured.
        depth: how many ranks to keep, all of the state's if not given.

    Returns:
        The evidence, holding only the names of items that occur in it.
    """
    reference, candidate = state.reference_top(), state.candidate_top()
    # at least one, empty where nothing was scored (a lone document that is the query itself)
    n_ranks = max(1, min(depth or reference[0].shape[1], int(state.n_items.max())))
    tops = [tuple(part[:, :n_ranks] for part in top) for top in (reference, candidate)]
    occurring = np.unique(np.concatenate([top[0].ravel() for top in tops]))
    occurring = occurring[occurring >= 0]
    names = [item_ids[position] for position in occurring.tolist()]
    judgements = None
    if qrels:
        judgements = Judgements.from_qrels(qrels, input_ids, names)
    made = [
        Top(
            items=np.where(positions >= 0, np.searchsorted(occurring, positions), -1),
            reference_scores=reference_scores,
            candidate_scores=candidate_scores,
        )
        for positions, reference_scores, candidate_scores in tops
    ]
    return Evidence(
        input_ids=np.array(list(input_ids), dtype=object),
        item_ids=np.array(names, dtype=object),
        reference_top=made[0],
        candidate_top=made[1],
        delta_min=state.delta_min.cpu().numpy(),
        delta_max=state.delta_max.cpu().numpy(),
        n_items=state.n_items.cpu().numpy(),
        judgements=judgements,
        noise=noise,
    )


def with_qrels(evidence: Evidence, qrels: Qrels) -> Evidence:
    """The same evidence with relevance labels.

    Args:
        evidence: with or without labels.
        qrels: input id to item id to grade.
    """
    input_ids = [str(name) for name in evidence.input_ids]
    names = [str(name) for name in evidence.item_ids]
    judgements = Judgements.from_qrels(qrels, input_ids, names)
    return replace(evidence, item_ids=np.array(names, dtype=object), judgements=judgements)
