"""Evidence made from scores, epsilons and flips that a test writes down."""

from collections.abc import Sequence

import numpy as np

from quantdrift.evidence.record import Evidence, Top


def evidence(
    scores: Sequence[Sequence[float]],
    epsilon: Sequence[float],
    *,
    flips: Sequence[bool] | None = None,
    n_items: Sequence[int] | None = None,
) -> Evidence:
    """Reference rankings, sorted already; NaN where there is no item.

    Only epsilon and whether the top-1 changed are told of the candidate.
    """
    reference = np.array(scores, dtype=np.float32)
    n_inputs, depth = reference.shape
    items = np.where(np.isnan(reference), -1, np.arange(depth))
    candidate_items = items.copy()
    for row in np.flatnonzero(flips or [False] * n_inputs):
        candidate_items[row, :2] = items[row, 1::-1]
    return Evidence(
        input_ids=np.arange(n_inputs).astype(str),
        item_ids=np.arange(depth).astype(str),
        reference_top=Top(items=items, reference_scores=reference, candidate_scores=reference),
        candidate_top=Top(items=candidate_items, reference_scores=reference, candidate_scores=reference),
        delta_min=-np.array(epsilon, dtype=np.float32),
        delta_max=np.zeros(n_inputs, dtype=np.float32),
        n_items=np.array((items >= 0).sum(axis=1) if n_items is None else n_items),
    )
