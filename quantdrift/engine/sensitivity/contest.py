"""An allocation against its rivals, on queries that no layer was measured on.

Flips are counted by rounding to nearest, among the first documents of each query: what is compared is where the bits
are, and that takes a fraction of a run per rival.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.record import Allocation
from quantdrift.allocation.solver import solve
from quantdrift.engine.inputs import Encoder, Inputs, Vectors
from quantdrift.engine.scoring.streamed import Similarity, score_embeddings
from quantdrift.engine.sensitivity.criteria import losses_of
from quantdrift.engine.sensitivity.gaps import rounded
from quantdrift.engine.sensitivity.problem import Setting
from quantdrift.engine.store import EmbeddingStore
from quantdrift.spec import MAX_BITS
from quantdrift.statistics.estimates import Estimate, rate_estimate
from quantdrift.statistics.paired import paired_rate_difference

if TYPE_CHECKING:  # it imports what imports this
    from quantdrift.engine.readings import Search

QUERIES = 128
"""Held-out queries at most: an interval of some eight points on a rate, at a minute per rival."""
DEPTH = 20
"""First documents of every query that are embedded again."""
_CHUNK = 256
"""Inputs between two steps of the progress bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """One way to spend the bits, and what it changes.

    Attributes:
        name: as shown.
        bits_per_weight: over all linear layers.
        flips: rate of held-out queries with another first document.
        difference: its flip rate less that of the allocation, paired over the queries; None for the allocation
            itself.
    """

    name: str
    bits_per_weight: float
    flips: Estimate
    difference: Estimate | None


def held_out_queries(n_queries: int, calibration: NDArray[np.int64], *, seed: int) -> NDArray[np.int64]:
    """Positions of up to 128 queries that are not among the calibration queries, ascending."""
    others = np.setdiff1d(np.arange(n_queries), calibration)
    rng = np.random.default_rng([seed, 1])  # another stream than the calibration queries' own
    return np.sort(rng.choice(others, size=min(QUERIES, len(others)), replace=False)).astype(np.int64)


def hold_contest(
    allocation: Allocation,
    setting: Setting,
    encoder: Encoder,
    search: Search,
    *,
    held: NDArray[np.int64],
    reference: Sequence[Vectors],
    batch_size: int,
    query_only: bool = False,
) -> list[Rival]:
    """Round the model in every way that spends as many bits, and count flips on the held-out queries.

    The allocation itself comes first. The model is in the reference arm, and left so. With `query_only` the documents
    stay there.
    """
    queries, documents, similarity = search.queries.part(held), search.sides[-1], search.similarity
    tops = _tops(np.asarray(reference[0])[held], reference[-1], similarity, min(DEPTH, len(documents.ids)))
    pool = np.unique(tops[tops >= 0])
    near, fixed = documents.part(pool), np.asarray(reference[-1])[pool]
    n_rows = len(queries.ids) + (0 if query_only else len(pool))
    widths = rivals_of(allocation, setting)
    flips: dict[str, NDArray[np.bool_]] = {}
    for name, chosen in widths.items():
        with (
            setting.progress.stage(f"held-out queries: {name}", n_rows) as tell,
            rounded(setting.layers, chosen, setting.group_size),
        ):
            index = fixed if query_only else _embedded(encoder, near, batch_size, tell)
            first = _tops(_embedded(encoder, queries, batch_size, tell), index, similarity, 1)[:, 0]
        flips[name] = pool[first] != tops[:, 0]
    n_weights = np.array([layer.n_weights for layer in allocation.layers])
    ours = next(iter(flips.values()))
    return [
        Rival(
            name=name,
            bits_per_weight=float(n_weights @ np.array(widths[name])) / int(n_weights.sum()),
            flips=rate_estimate(flipped.astype(np.float64)),
            difference=None if flipped is ours else paired_rate_difference(ours, flipped),
        )
        for name, flipped in flips.items()
    ]


def rivals_of(allocation: Allocation, setting: Setting) -> dict[str, list[int]]:
    """Name to the width of every layer: the allocation itself first, then other ways to spend the same bits.

    Layers that it leaves out keep their width in all of them; so do ties between layers.
    """
    layers = allocation.layers
    kept = [layer.width if layer.loss is None else None for layer in layers]
    rivals = {f"{allocation.criterion}, {allocation.method}": [layer.width for layer in layers]}
    for name in ("reconstruction", "random"):
        if name == allocation.criterion:
            continue
        solution = solve(
            losses_of(name, replace(setting, seed=setting.seed + 1)),
            np.array([layer.n_weights for layer in layers]),
            widths=allocation.widths,
            budget=allocation.budget,
            units=np.array([n if layer.unit is None else layer.unit for n, layer in enumerate(layers)]),
            kept=kept,
        )
        rivals[name] = solution.widths.tolist()
    uniform = min(MAX_BITS, math.floor(allocation.budget))
    rivals[f"W{uniform} throughout"] = [uniform if width is None else width for width in kept]
    return rivals


def _tops(queries: Vectors, documents: Vectors, similarity: Similarity, k: int) -> NDArray[np.int64]:
    """Positions of the first documents of every query, int64 [n_queries, k]."""
    state = score_embeddings(queries, queries, documents, documents, similarity=similarity, k=k)
    found: NDArray[np.int64] = state.reference_top()[0]
    return found


def _embedded(encoder: Encoder, side: Inputs, batch_size: int, tell: Callable[[int], None]) -> Vectors:
    """All inputs of a side by the model as it is."""

    def encode(rows: NDArray[np.int64]) -> Vectors:
        return encoder.encode(side.at(rows), side.role, batch_size)

    return EmbeddingStore(None).get("", order=side.order(), encode=encode, progress=tell, chunk=_CHUNK)
