"""Laws of the capture ratio, on grids of any answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantdrift.study.allocation.capture import COSTS, Captured, capture
from quantdrift.study.allocation.cells import Cell, CorpusCells

NAMES = ("gap", "sqnr", "random")
MOST = 3
"""Documents that answers are drawn from."""


def answers(n: int, draw: Any) -> NDArray[np.int64]:
    return np.array(draw(st.lists(st.integers(0, MOST - 1), min_size=n, max_size=n)))


@st.composite
def corpora(draw: Any, *, labelled: bool | None = None) -> CorpusCells:
    """One to two budgets by three criteria, some queries not counted, labels or none."""
    n = draw(st.integers(1, 12))
    cells = []
    for budget in draw(st.sampled_from([(3.5,), (3.25, 3.5)])):
        counted = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
        cells += [
            Cell(
                criterion=name,
                budget=budget,
                quantizer="rtn",
                seed=0,
                n_queries=8,
                widths=np.array([3, 4]),
                scores=np.array([1.0, 2.0]),
                first=answers(n, draw),
                counted=counted,
            )
            for name in NAMES
        ]
    relevant = draw(st.lists(st.frozensets(st.integers(0, MOST - 1)), min_size=n, max_size=n))
    has_labels = draw(st.booleans()) if labelled is None else labelled
    return CorpusCells(
        corpus="a",
        fingerprint="f",
        query_ids=[str(number) for number in range(n)],
        layers=["one", "two"],
        n_weights=np.array([4, 4]),
        reference=answers(n, draw),
        low={"rtn": answers(n, draw)},
        high={"rtn": answers(n, draw)},
        relevant=relevant if has_labels else None,
        cells=cells,
    )


some_corpora = st.lists(corpora(), min_size=1, max_size=3)
costs = st.sampled_from(COSTS)
few = settings(max_examples=60)


def alike(found: Sequence[Captured], others: Sequence[Captured]) -> None:
    """In all but the intervals, and beside rounding."""
    for one, other in zip(found, others, strict=True):
        assert one.criterion == other.criterion
        assert (one.n_cells, one.first_in) == (other.n_cells, other.first_in)
        assert one.cost == pytest.approx(other.cost, nan_ok=True)
        assert one.ratio.value == pytest.approx(other.ratio.value, abs=1e-9)


def rate(corpus: CorpusCells, cell: Cell, first: NDArray[np.int64], cost: str) -> Fraction | None:
    """Share of queries that are lost, query by query; None where none counts."""
    lost = total = 0
    for row in range(len(first)):
        relevant = frozenset() if corpus.relevant is None else corpus.relevant[row]
        right, was = first[row] in relevant, corpus.reference[row] in relevant
        bad = first[row] != corpus.reference[row] if cost == "flip@1" else not right
        if cell.counted[row] and {"flip@1": True, "recall@1": relevant, "gold_lost@1": was}[cost]:
            total, lost = total + 1, lost + bool(bad)
    return Fraction(lost, total) if total else None


@few
@given(found=some_corpora, cost=costs)
def test_it_is_the_pooled_ratio_of_rates_that_are_counted_one_by_one(
    found: list[CorpusCells], cost: str
) -> None:
    gains, headroom = dict.fromkeys(NAMES, Fraction(0)), Fraction(0)
    for corpus in found:
        for cell in corpus.cells:
            arms = (corpus.low["rtn"], corpus.high["rtn"], cell.first)
            rates = [rate(corpus, cell, first, cost) for first in arms]
            if None in rates or (cost != "flip@1" and corpus.relevant is None):
                continue
            low, high, own = rates
            gains[cell.criterion] += low - own
            headroom += (low - high) if cell.criterion == NAMES[0] else 0
    for part in capture(found, NAMES, cost):
        if headroom <= 0:
            assert part.ratio.value is None
        else:
            expected = float(gains[part.criterion] / headroom)
            assert part.ratio.value == pytest.approx(expected, abs=1e-9)


@few
@given(found=some_corpora, cost=costs, share=st.sampled_from([0, 1]))
def test_the_wide_widths_answers_capture_all_and_the_narrow_ones_nothing(
    found: list[CorpusCells], cost: str, share: int
) -> None:
    """Also in every resample, so that the interval is a point."""
    given_as = [
        replace(
            corpus,
            cells=[replace(c, first=(corpus.low, corpus.high)[share]["rtn"]) for c in corpus.cells],
        )
        for corpus in found
    ]
    for part in capture(given_as, NAMES, cost):
        if part.ratio.value is not None:
            assert part.ratio.value == pytest.approx(share)
            for end in (part.ratio.low, part.ratio.high):
                assert end is None or end == pytest.approx(share)
            assert part.first_in == part.n_cells


@few
@given(found=some_corpora, cost=costs, rng=st.randoms(use_true_random=False))
def test_neither_the_order_of_corpora_nor_of_cells_nor_of_queries_matters(
    found: list[CorpusCells], cost: str, rng: Any
) -> None:
    def shuffled(corpus: CorpusCells) -> CorpusCells:
        order = rng.sample(range(len(corpus.query_ids)), len(corpus.query_ids))
        cells = [
            replace(c, first=c.first[order], counted=c.counted[order])
            for c in rng.sample(corpus.cells, len(corpus.cells))
        ]
        return replace(
            corpus,
            cells=cells,
            reference=corpus.reference[order],
            low={"rtn": corpus.low["rtn"][order]},
            high={"rtn": corpus.high["rtn"][order]},
            relevant=corpus.relevant and [corpus.relevant[row] for row in order],
        )

    others = [shuffled(corpus) for corpus in rng.sample(found, len(found))]
    alike(capture(others, NAMES, cost), capture(found, NAMES, cost))


@few
@given(found=some_corpora)
def test_where_the_references_answer_is_the_one_relevant_document_all_costs_are_one(
    found: list[CorpusCells],
) -> None:
    """A flip is then what loses recall, and what loses a relevant document."""
    same = [
        replace(c, relevant=[frozenset([first]) for first in c.reference.tolist()]) for c in found
    ]
    flips = capture(same, NAMES)
    for cost in COSTS[1:]:
        alike(capture(same, NAMES, cost), flips)


@few
@given(found=some_corpora, cost=costs)
def test_the_difference_is_that_of_the_ratios(found: list[CorpusCells], cost: str) -> None:
    first, *others = capture(found, NAMES, cost)
    for part in others:
        assert part.difference is not None
        if part.ratio.value is None or first.ratio.value is None:
            assert part.difference.value is None
        else:
            expected = first.ratio.value - part.ratio.value
            assert part.difference.value == pytest.approx(expected, abs=1e-9)


@few
@given(found=some_corpora, row=st.integers(0, 11))
def test_one_answer_mended_captures_no_less(found: list[CorpusCells], row: int) -> None:
    """Of flips; the other criteria keep what they had."""
    before = capture(found, NAMES)
    corpus = found[0]
    row %= len(corpus.query_ids)
    cell = corpus.cells[0]
    first = cell.first.copy()
    first[row] = corpus.reference[row]
    mended = replace(corpus, cells=[replace(cell, first=first), *corpus.cells[1:]])
    after = capture([mended, *found[1:]], NAMES)
    if (was := before[0].ratio.value) is not None:
        assert after[0].ratio.value is not None
        assert after[0].ratio.value >= was - 1e-9
        assert after[0].cost <= before[0].cost
    for one, other in zip(after[1:], before[1:], strict=True):
        assert one.ratio == other.ratio
