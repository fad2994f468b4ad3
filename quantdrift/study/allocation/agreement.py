"""Whether widths depend on the draw of queries, and whether criteria rank layers alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from quantdrift.study.allocation.cells import Cell, CorpusCells

__all__ = ["between_seeds", "rank_correlation", "with_size"]


def between_seeds(corpora: Sequence[CorpusCells], criterion: str) -> float | None:
    """Mean share of layers that two draws of calibration queries give the same width.

    Over pairs of seeds of the same corpus, budget and size; None if there is one seed only.
    """
    found = [
        _same(a, b)
        for group in _groups(corpora, criterion, lambda cell: (cell.budget, cell.n_queries))
        for a, b in combinations(group, 2)
    ]
    return float(np.mean(found)) if found else None


def with_size(
    corpora: Sequence[CorpusCells], criterion: str, n_queries: int, standard: int
) -> float | None:
    """Mean share of layers with the width that `standard` queries give.

    Over corpora, budgets and seeds; None if one of the sizes was not measured.
    """
    found = []
    for group in _groups(corpora, criterion, lambda cell: (cell.budget, cell.seed)):
        by_size = {cell.n_queries: cell for cell in group}
        if n_queries in by_size and standard in by_size:
            found.append(_same(by_size[n_queries], by_size[standard]))
    return float(np.mean(found)) if found else None


def rank_correlation(corpora: Sequence[CorpusCells], a: str, b: str) -> float | None:
    """Mean Spearman correlation over layers of two criteria's scores per weight.

    Over corpora, seeds and sizes; None where a criterion ranks nothing.
    """
    from scipy.stats import spearmanr  # noqa: PLC0415 -- scipy.stats takes long to import

    found = []
    for corpus in corpora:
        scores: dict[tuple[int, int], dict[str, NDArray[np.float64]]] = {}
        for cell in corpus.cells:
            scores.setdefault((cell.seed, cell.n_queries), {})[cell.criterion] = cell.scores
        for by in scores.values():
            if a in by and b in by and np.ptp(by[a]) > 0 and np.ptp(by[b]) > 0:
                found.append(float(spearmanr(np.stack([by[a], by[b]], axis=1)).statistic))
    return float(np.mean(found)) if found else None


def _groups(
    corpora: Sequence[CorpusCells], criterion: str, key: Callable[[Cell], object]
) -> Iterator[list[Cell]]:
    """Cells of one criterion that agree in `key`; of one quantizer, since widths are the same."""
    for corpus in corpora:
        quantizer = corpus.cells[0].quantizer
        groups: dict[object, list[Cell]] = {}
        for cell in corpus.cells:
            if cell.criterion == criterion and cell.quantizer == quantizer:
                groups.setdefault(key(cell), []).append(cell)
        yield from groups.values()


def _same(a: Cell, b: Cell) -> float:
    return float((a.widths == b.widths).mean())
