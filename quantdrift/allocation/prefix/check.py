"""Whether remembering changes nothing, found out on one batch before it is relied on.

Calls can depend on each other in ways that no operation shows: a list that a module fills, a
counter. Then a run that leaves calls out gives something else, and all is run naively.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quantdrift.allocation.prefix.batches import BatchRun, rounded, same_bits
from quantdrift.models.layers import LinearLayer

__all__ = ["check"]


def check(
    run: BatchRun, layers: Sequence[LinearLayer], *, bits: int, group_size: int | None, seed: int
) -> str | None:
    """Compare, at a few layers, what a batch gives with and without what is remembered.

    In the order of first use these are the one in the middle and the last, with the unchanged
    model, and one drawn of each half that is rounded and compared with a whole run. All has to be
    the same bit for bit.

    Args:
        run: the batch; afterwards it remembers nothing.
        layers: of the model.
        bits: width that layers are rounded to.
        group_size: input weights that share a scale.
        seed: of which layers are drawn.

    Returns:
        What is wrong; None if all is well.
    """
    if run.prefix is None or run.uses is None:
        return run.note
    uses = run.uses
    order = sorted(uses, key=lambda number: (uses[number], number))
    unchanged, changed = _some(len(order), seed)
    for place in sorted(unchanged | changed):
        layer = layers[order[place]]
        run.before(order[place])
        if place in unchanged and not same_bits(run.outputs(), run.reference):
            return f"what comes before {layer.name} does not give the same twice"
        if place in changed:
            with rounded(layer, group_size) as to_width:
                to_width(bits)
                if not same_bits(run.outputs(), run.naive()):
                    return f"with {layer.name} rounded it gives something else than a whole run"
        if run.prefix is None:
            return run.note
    if run.prefix is not None:
        run.prefix.forget()
    return None


def _some(n: int, seed: int) -> tuple[set[int], set[int]]:
    """Places in an order of n: of layers to leave as they are, and to round."""
    halves = [half for half in np.array_split(np.arange(n), 2) if len(half)]
    drawn = np.random.default_rng(seed)
    return {n // 2, n - 1} & set(range(n)), {int(drawn.choice(half)) for half in halves}
