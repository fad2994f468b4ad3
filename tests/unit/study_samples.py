"""Studies of allocations that are written down: document 0 is the reference's answer to all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quantdrift.study.allocation.cells import Cell, CorpusCells

Answers = Sequence[int] | NDArray[np.int64]


def flips(n_queries: int, n_flips: int, *, start: int = 0) -> NDArray[np.int64]:
    """Answers of which some are document 1, the others document 0."""
    first = np.zeros(n_queries, dtype=np.int64)
    first[(start + np.arange(n_flips)) % n_queries] = 1
    return first


def cell(
    first: Answers,
    criterion: str = "gap",
    *,
    budget: float = 3.5,
    quantizer: str = "rtn",
    seed: int = 0,
    n_queries: int = 128,
    widths: Sequence[int] = (3, 4),
    scores: Sequence[float] = (0.5, 2.0),
    counted: Sequence[bool] | None = None,
) -> Cell:
    return Cell(
        criterion=criterion,
        budget=budget,
        quantizer=quantizer,
        seed=seed,
        n_queries=n_queries,
        widths=np.array(widths, dtype=np.int64),
        scores=np.array(scores, dtype=np.float64),
        first=np.array(first, dtype=np.int64),
        counted=np.ones(len(first), dtype=bool) if counted is None else np.array(counted),
    )


def corpus(
    cells: Sequence[Cell],
    *,
    low: Answers,
    high: Answers,
    name: str = "a",
    reference: Answers | None = None,
    relevant: Sequence[set[int]] | None = None,
    fingerprint: str = "beef",
) -> CorpusCells:
    """One corpus; quantizers differ in nothing at the uniform widths."""
    n, n_layers = len(low), len(cells[0].widths)
    quantizers = dict.fromkeys(part.quantizer for part in cells)
    return CorpusCells(
        corpus=name,
        fingerprint=fingerprint,
        query_ids=tuple(f"q{number}" for number in range(n)),
        layers=tuple(f"layer.{number}" for number in range(n_layers)),
        n_weights=np.full(n_layers, 64, dtype=np.int64),
        reference=np.zeros(n, dtype=np.int64) if reference is None else np.array(reference),
        low={quantizer: np.array(low, dtype=np.int64) for quantizer in quantizers},
        high={quantizer: np.array(high, dtype=np.int64) for quantizer in quantizers},
        relevant=None if relevant is None else [frozenset(part) for part in relevant],
        cells=cells,
    )
