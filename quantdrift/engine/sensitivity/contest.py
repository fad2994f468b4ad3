"""An allocation against its rivals, on queries that no layer was measured on.

Flips are counted by rounding to nearest, among the first documents of each query: what is compared
is where the bits are, and that takes a fraction of a run per rival.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.record import Allocation
from quantdrift.allocation.solver import solve
from quantdrift.engine.calibration.in_order import put_in_place
from quantdrift.engine.inputs import Inputs, Vectors
from quantdrift.engine.layers import LinearLayer
from quantdrift.engine.quantizers.rtn import quantize_rtn
from quantdrift.engine.scoring.streamed import Similarity
from quantdrift.engine.sensitivity.criteria import Setting, criterion
from quantdrift.engine.sensitivity.gradients import contributions
from quantdrift.engine.sensitivity.problem import FirstAnswers
from quantdrift.engine.weights import put_aside
from quantdrift.errors import UnsupportedError
from quantdrift.progress import Progress
from quantdrift.spec import FULL_BITS
from quantdrift.statistics import Estimate, paired_rate_difference, rate_estimate

# --- A model whose layers are rounded to nearest, each to a width of its own ----------------------


@contextmanager
def rounded(layers: Sequence[LinearLayer], widths: Sequence[int], group_size: int | None) -> Iterator[None]:
    """Inside, the layers hold rounded weights; afterwards the reference's, bit for bit.

    Args:
        layers: of a model in the reference arm.
        widths: bits per weight of each; 16 leaves a layer alone.
        group_size: input weights that share a scale, None for a whole output channel.
    """
    with put_aside(layers):
        for layer, bits in zip(layers, widths, strict=True):
            if bits != FULL_BITS:
                put_in_place(layer, quantize_rtn(layer.weight, bits=bits, group_size=group_size))
        yield


# --- An allocation against its rivals, on queries that no layer was measured on -------------------

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


def held_out_queries(n_queries: int, calibration: NDArray[np.int64], *, seed: int) -> NDArray[np.int64]:
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
        with progress.stage(f"held-out queries: {name}", answers.n_rows) as tell, rounded(layers, chosen, group_size):
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


# --- Other ways to spend the same bits, which an allocation has to be better than -----------------


def rivals_of(allocation: Allocation, setting: Setting) -> dict[str, list[int]]:
    """Name to the width of every layer: the allocation itself first, then its rivals.

    Layers that it leaves out keep their width in all of them; so do ties between layers.

    Args:
        allocation: in question.
        setting: it was measured in.
    """
    free = np.array([layer.loss is not None for layer in allocation.layers])
    rivals = {f"{allocation.criterion}, {allocation.method}": [layer.width for layer in allocation.layers]}
    for name, method, losses in _losses(allocation, setting):
        rivals[name] = _solved(allocation, losses, method)
    uniform = uniform_width(allocation.budget)
    rivals[f"W{uniform} throughout"] = [
        uniform if is_free else layer.width for is_free, layer in zip(free, allocation.layers, strict=True)
    ]
    return rivals


def _losses(allocation: Allocation, setting: Setting) -> list[tuple[str, str, NDArray[np.float64]]]:
    """Name, method and losses of the rivals."""
    found = []
    if setting.problem is not None:
        try:
            shifts = contributions(setting)
        except UnsupportedError:  # a model without gradients has one rival less
            pass
        else:
            median = np.nanmedian(np.abs(shifts[:, 0]), axis=0)
            falling = np.minimum.accumulate(median, axis=1)
            found.append(("the paper's rule, greedy", "greedy", falling - falling[:, -1:]))
    for name in ("reconstruction", "random"):
        if name != allocation.criterion:
            quiet = replace(setting, seed=setting.seed + 1)
            found.append((name, "knapsack", criterion(name).losses(quiet)))
    return found


def _solved(allocation: Allocation, losses: NDArray[np.float64], method: str) -> list[int]:
    layers = allocation.layers
    free = np.array([layer.loss is not None for layer in layers])
    units = np.array([len(layers) + n if layer.unit is None else layer.unit for n, layer in enumerate(layers)])
    solution = solve(
        losses[free],
        np.array([layer.n_weights for layer in layers])[free],
        widths=allocation.widths,
        budget=allocation.budget,
        units=units[free],
        method=method,
    )
    chosen = iter(solution.widths.tolist())
    return [next(chosen) if is_free else layer.width for is_free, layer in zip(free, layers, strict=True)]
