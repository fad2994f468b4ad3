"""An allocation against its rivals, on queries that no layer was measured on.

Flips are counted by rounding to nearest, among the first documents of each query: what is compared
is where the bits are, and that takes a fraction of a run per rival.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.first_answers import FirstAnswers
from quantdrift.allocation.rounded import rounded
from quantdrift.measurement.inputs import Inputs, Vectors
from quantdrift.models.layers import LinearLayer
from quantdrift.progress import Progress
from quantdrift.scoring import Similarity
from quantdrift.statistics import Estimate, paired_rate_difference, rate_estimate

__all__ = ["Contest", "Rival", "held_out_queries", "hold_contest", "uniform_width"]

QUERIES = 128
"""Held-out queries at most: an interval of some eight points on a rate, at a minute per rival."""


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
    answers = FirstAnswers(
        queries,
        documents,
        reference,
        similarity=similarity,
        batch_size=batch_size,
        query_only=query_only,
        excluded=excluded,
    )
    flips: dict[str, NDArray[np.bool_]] = {}
    for name, chosen in widths.items():
        with (
            progress.stage(f"held-out queries: {name}", answers.n_rows) as tell,
            rounded(layers, chosen, group_size),
        ):
            flips[name] = answers.now(tell) != answers.reference
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
