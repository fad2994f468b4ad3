"""What a study measured: who answered what, and how the widths came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cell", "CorpusCells"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cell:
    """One allocation, rounded by one quantizer, on one corpus.

    Attributes:
        criterion: that chose the widths.
        budget: bits per weight.
        quantizer: that rounded.
        seed: of the draw of calibration queries.
        n_queries: wanted in that draw.
        widths: int64 [n_layers].
        scores: float64 [n_layers], loss at the narrower width per weight: how layers are ranked.
        first: int64 [n_queries], positions of the first documents.
        counted: bool [n_queries], False for queries that layers were measured on.
    """

    criterion: str
    budget: float
    quantizer: str
    seed: int
    n_queries: int
    widths: NDArray[np.int64]
    scores: NDArray[np.float64]
    first: NDArray[np.int64]
    counted: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CorpusCells:
    """All cells of one corpus, which share queries.

    Attributes:
        corpus: its name.
        fingerprint: digest of the model's weights.
        query_ids: of the queries that answers are compared on.
        layers: names.
        n_weights: int64 [n_layers].
        reference: int64 [n_queries], the reference's first documents.
        low: quantizer to first documents at the narrower width throughout.
        high: likewise at the wider one.
        relevant: for every query the positions of relevant documents; None without labels.
        cells: what was measured.
    """

    corpus: str
    fingerprint: str
    query_ids: Sequence[str]
    layers: Sequence[str]
    n_weights: NDArray[np.int64]
    reference: NDArray[np.int64]
    low: dict[str, NDArray[np.int64]]
    high: dict[str, NDArray[np.int64]]
    relevant: Sequence[frozenset[int]] | None
    cells: Sequence[Cell]
