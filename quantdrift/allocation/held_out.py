"""An allocation against its rivals, on queries that no layer was measured on.

Flips are counted by rounding to nearest, among the first documents of each query: what is compared
is where the bits are, and that takes a fraction of a run per rival.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.rounded import rounded
from quantdrift.measurement.inputs import Inputs, Vectors
from quantdrift.models.layers import LinearLayer
from quantdrift.progress import Progress
from quantdrift.scoring import Similarity, score_embeddings
from quantdrift.statistics import Estimate, paired_rate_difference, rate_estimate

__all__ = ["Contest", "Rival", "held_out_queries", "hold_contest", "uniform_width"]

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
        difference: its flip rate less that of the allocation, paired over the queries; None for the
            allocation itself.
    """

    name: str
    bits_per_weight: float
    flips: Estimate
    difference: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What came out.

    Attributes:
        n_queries: held-out queries.
        rivals: the allocation first, then the others in the order given.
    """

    n_queries: int
    rivals: tuple[Rival, ...]

    @property
    def beaten_by(self) -> list[Rival]:
        """Rivals within the budget that change fewer answers, the best first."""
        better = [r for r in self.rivals[1:] if r.difference and (r.difference.value or 0.0) < 0]
        return sorted(better, key=lambda rival: rival.flips.value or 0.0)


def held_out_queries(
    n_queries: int, calibration: NDArray[np.int64], *, seed: int
) -> NDArray[np.int64]:
    """Positions of up to 128 queries that are not among the calibration queries, ascending.

    Args:
        n_queries: in the pool.
        calibration: int64, positions of the calibration queries.
        seed: of the draw.
    """
    others = np.setdiff1d(np.arange(n_queries), calibration)
    rng = np.random.default_rng([seed, 1])  # another stream than the calibration queries' own
    chosen = rng.choice(others, size=min(QUERIES, len(others)), replace=False)
    return np.sort(chosen).astype(np.int64)


def hold_contest(
    layers: Sequence[LinearLayer],
    widths: Mapping[str, Sequence[int]],
    queries: Inputs,
    documents: Inputs,
    reference: tuple[Vectors, Vectors],
    *,
    group_size: int | None,
    similarity: Similarity,
    batch_size: int,
    progress: Progress,
    query_only: bool = False,
    excluded: NDArray[np.int64] | None = None,
) -> Contest:
    """Round the model in every way and count flips.

    Args:
        layers: of a model in the reference arm, and left so.
        widths: name to the width of every layer; the first is the allocation in question.
        queries: the held-out ones.
        documents: the corpus.
        reference: embeddings of both by the reference.
        group_size: input weights that share a scale.
        similarity: how embeddings become scores.
        batch_size: inputs per forward pass.
        progress: where progress is shown.
        query_only: whether the documents stay at the reference.
        excluded: per query one document position that does not count, or -1.
    """
    first, pool = _first(reference, similarity, excluded)
    n_rows = len(queries.ids) + (0 if query_only else len(pool))
    part = documents.part(pool)
    flips: dict[str, NDArray[np.bool_]] = {}
    for name, chosen in widths.items():
        with (
            progress.stage(f"held-out queries: {name}", n_rows) as tell,
            rounded(layers, chosen, group_size),
        ):
            low = _embedded(queries, batch_size, tell)
            low_pool = np.asarray(reference[1])[pool]
            if not query_only:
                low_pool = _embedded(part, batch_size, tell)
        flips[name] = _best(low, low_pool, pool, similarity, excluded) != first
    n_weights = np.array([layer.weight.numel() for layer in layers])
    ours = next(iter(flips.values()))
    return Contest(
        n_queries=len(queries.ids),
        rivals=tuple(
            Rival(
                name=name,
                bits_per_weight=float(n_weights @ np.array(widths[name])) / int(n_weights.sum()),
                flips=rate_estimate(flipped.astype(np.float64)),
                difference=None if flipped is ours else paired_rate_difference(ours, flipped),
            )
            for name, flipped in flips.items()
        ),
    )


def uniform_width(budget: float) -> int:
    """The widest whole width within a budget."""
    return min(8, math.floor(budget))


def _first(
    reference: tuple[Vectors, Vectors],
    similarity: Similarity,
    excluded: NDArray[np.int64] | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The reference's first document of every query, and all documents that are near the first."""
    queries, documents = reference
    state = score_embeddings(
        queries,
        queries,
        documents,
        documents,
        similarity=similarity,
        k=min(DEPTH, len(documents)),
        excluded=excluded,
    )
    tops = state.reference_top()[0]
    return tops[:, 0], np.unique(tops[tops >= 0])


def _best(
    queries: Vectors,
    documents: Vectors,
    pool: NDArray[np.int64],
    similarity: Similarity,
    excluded: NDArray[np.int64] | None,
) -> NDArray[np.int64]:
    """The first document of every query among those of the pool."""
    places = None
    if excluded is not None:
        places = np.searchsorted(pool, excluded)
        there = pool[np.minimum(places, len(pool) - 1)] == excluded
        places = np.where(there, places, -1)
    state = score_embeddings(
        queries, queries, documents, documents, similarity=similarity, k=1, excluded=places
    )
    best: NDArray[np.int64] = state.reference_top()[0][:, 0]
    return np.where(best >= 0, pool[np.maximum(best, 0)], -1)


def _embedded(side: Inputs, batch_size: int, tell: Callable[[int], None]) -> Vectors:
    order = side.order()
    chunks = [order[at : at + _CHUNK] for at in range(0, len(order), _CHUNK)]
    parts = []
    for chunk in chunks:
        parts.append(side.encode(chunk, batch_size))
        tell(len(chunk))
    vectors = np.concatenate(parts)
    found = np.empty_like(vectors)
    found[order] = vectors
    return found
