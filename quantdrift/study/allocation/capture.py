"""The capture ratio: which share of the wider width's benefit an allocation keeps.

gain = cost at the narrow width - cost of the allocation; headroom = cost at the narrow width - cost
at the wide one. Capture is sum(gain) / sum(headroom) over the cells (paper, appendix "Allocation
criteria"), so that a cell with nothing to gain does not decide. Intervals resample queries within a
corpus, the same ones for every cell of it: criteria are compared paired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantdrift.statistics import Estimate, undefined
from quantdrift.statistics.estimates import CONFIDENCE, RESAMPLES
from quantdrift.study.allocation.cells import Cell, CorpusCells

__all__ = ["COSTS", "Captured", "capture"]

COSTS = ("flip@1", "recall@1", "gold_lost@1")
"""What the widths save: another first document, one that is not relevant, a relevant one lost."""
_NOTHING = 1e-9
"""Headroom up to here is what sums of rates leave by rounding."""

Chosen = Callable[[str, Cell], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """The capture of one criterion.

    Attributes:
        criterion: its name.
        ratio: pooled over the cells, with the interval over queries; undefined where the wide width
            costs no less than the narrow one.
        difference: the first criterion's ratio less this one's, paired; None for the first itself.
        cost: mean over the cells of what is lost with it.
        first_in: cells in which no other criterion costs less.
        n_cells: how many there are.
    """

    criterion: str
    ratio: Estimate
    difference: Estimate | None
    cost: float
    first_in: int
    n_cells: int


def capture(
    corpora: Sequence[CorpusCells],
    criteria: Sequence[str],
    cost: str = COSTS[0],
    *,
    chosen: Chosen = lambda corpus, cell: True,
    seed: int = 0,
) -> list[Captured]:
    """Capture of every criterion, pooled over cells.

    Args:
        corpora: what was measured.
        criteria: names, in this order; the others are compared with the first.
        cost: one of `COSTS`; all but flips need labels, and corpora without are left out.
        chosen: which cells, by corpus and cell; all if not given. For every criterion the same
            budgets, quantizers and draws have to remain.
        seed: of the resampling.
    """
    names = list(criteria)
    sums = _Sums(len(names))
    for number, corpus in enumerate(corpora):
        if cost != COSTS[0] and corpus.relevant is None:
            continue
        groups: dict[tuple[object, ...], dict[str, Cell]] = {}
        for cell in corpus.cells:
            if cell.criterion in names and chosen(corpus.corpus, cell):
                key = (cell.budget, cell.quantizer, cell.seed, cell.n_queries)
                groups.setdefault(key, {})[cell.criterion] = cell
        weights = _weights(len(corpus.query_ids), [seed, number])
        for cells in groups.values():
            sums.add(corpus, [cells[name] for name in names], cost, weights)
    return [sums.captured(row, name) for row, name in enumerate(names)]


class _Sums:
    """Gains and headroom, summed over cells: the first column as measured, the others resampled."""

    def __init__(self, n: int) -> None:
        self._gain = np.zeros((n, 1 + RESAMPLES))
        self._headroom = np.zeros(1 + RESAMPLES)
        self._cost = np.zeros(n)
        self._first_in = np.zeros(n, dtype=np.int64)
        self._n_cells = 0

    def add(
        self,
        corpus: CorpusCells,
        cells: Sequence[Cell],
        cost: str,
        weights: NDArray[np.float64],
    ) -> None:
        """Add the cells that differ in their criterion alone."""
        some = cells[0]
        asked = some.counted & _asked(corpus, cost)
        if not asked.any():
            return
        drawn = weights[:, asked]
        totals = np.maximum(drawn.sum(axis=1), 1)  # a sample without any counts as nothing
        answers = [corpus.low[some.quantizer], corpus.high[some.quantizer]]
        answers += [cell.first for cell in cells]
        # whole numbers are divided last: as many queries lost are the same rate, whichever they are
        low, high, *found = (
            drawn @ _costs(corpus, first, cost)[asked] / totals for first in answers
        )
        self._headroom += low - high
        self._gain += low - np.stack(found)
        costs = np.array([values[0] for values in found])
        self._cost += costs
        self._first_in += costs <= costs.min() + 1e-12
        self._n_cells += 1

    def captured(self, row: int, name: str) -> Captured:
        """What came out for one criterion."""
        n = self._n_cells
        if not n:
            nothing = undefined("no cell has a query that counts here")
            return Captured(
                criterion=name,
                ratio=nothing,
                difference=None if row == 0 else nothing,
                cost=float("nan"),
                first_in=0,
                n_cells=0,
            )
        return Captured(
            criterion=name,
            ratio=self._ratio(self._gain[row]),
            difference=None if row == 0 else self._ratio(self._gain[0] - self._gain[row]),
            cost=float(self._cost[row] / n),
            first_in=int(self._first_in[row]),
            n_cells=n,
        )

    def _ratio(self, gain: NDArray[np.float64]) -> Estimate:
        headroom = self._headroom
        if headroom[0] <= _NOTHING:
            return undefined("the wide width costs no less than the narrow one")
        value = float(gain[0] / headroom[0])
        usable = headroom[1:] > _NOTHING
        if not usable.mean() > CONFIDENCE:
            return Estimate(value=value, n=self._n_cells)
        tail = 100 * (1 - CONFIDENCE) / 2
        ratios = gain[1:][usable] / headroom[1:][usable]
        low, high = np.percentile(ratios, [tail, 100 - tail])
        return Estimate(value=value, low=float(low), high=float(high), n=self._n_cells)


def _weights(n_queries: int, seed: Sequence[int]) -> NDArray[np.float64]:
    """How often each query is drawn, float64 [1 + resamples, n_queries]; once each in the first."""
    drawn = np.random.default_rng(seed).multinomial(
        n_queries, np.full(n_queries, 1 / n_queries), size=RESAMPLES
    )
    return np.concatenate([np.ones((1, n_queries)), drawn])


def _right(corpus: CorpusCells, first: NDArray[np.int64]) -> NDArray[np.bool_]:
    assert corpus.relevant is not None  # corpora without labels were left out
    pairs = zip(first.tolist(), corpus.relevant, strict=True)
    return np.array([document in relevant for document, relevant in pairs], dtype=bool)


def _asked(corpus: CorpusCells, cost: str) -> NDArray[np.bool_]:
    """The queries that a cost is about."""
    if cost == "gold_lost@1":
        return _right(corpus, corpus.reference)
    if cost == "recall@1":
        assert corpus.relevant is not None  # as above
        return np.array([bool(relevant) for relevant in corpus.relevant])
    return np.ones(len(corpus.query_ids), dtype=bool)


def _costs(corpus: CorpusCells, first: NDArray[np.int64], cost: str) -> NDArray[np.float64]:
    """1 where a query is lost, else 0, float64 [n_queries]."""
    lost = first != corpus.reference if cost == COSTS[0] else ~_right(corpus, first)
    return lost.astype(np.float64)
