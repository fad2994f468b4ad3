"""The capture ratio by hand: pooled, paired, over the queries that count, with its intervals."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, bootstrap
from study_samples import cell, corpus, flips

from quantdrift.study.allocation.capture import COSTS, Captured, capture
from quantdrift.study.allocation.cells import Cell, CorpusCells

NAMES = ("gap", "random")


def two(n: int, low: int, high: int, gap: int, random: int, *, budget: float = 3.5) -> CorpusCells:
    """A corpus of two criteria, by how many of its queries flip."""
    cells = [
        cell(flips(n, gap), "gap", budget=budget),
        cell(flips(n, random, start=n - random), "random", budget=budget),
    ]
    return corpus(cells, low=flips(n, low), high=flips(n, high))


def named(found: CorpusCells, name: str) -> CorpusCells:
    return corpus(found.cells, low=found.low["rtn"], high=found.high["rtn"], name=name)


MUCH, LITTLE = two(10, 8, 3, 4, 7), named(two(10, 2, 1, 3, 1), "b")
"""Headroom of 0.5 and of 0.1."""


def value(found: Captured) -> float:
    assert found.ratio.value is not None
    return found.ratio.value


def interval(found: Captured) -> tuple[float, float]:
    assert found.ratio.low is not None
    assert found.ratio.high is not None
    return found.ratio.low, found.ratio.high


def test_capture_is_the_sum_of_gains_over_the_sum_of_headrooms() -> None:
    gap, random = capture([MUCH, LITTLE], NAMES)
    # gains of gap 0.8 - 0.4 and 0.2 - 0.3; the mean of its ratios would be (0.8 - 1) / 2
    assert value(gap) == pytest.approx(0.3 / 0.6)
    assert value(random) == pytest.approx((0.1 + 0.1) / 0.6)
    assert [value(part) for part in capture([MUCH], NAMES)] == pytest.approx([0.8, 0.2])
    assert [value(part) for part in capture([LITTLE], NAMES)] == pytest.approx([-1, 1])
    assert (gap.cost, random.cost) == pytest.approx((0.35, 0.4))
    assert gap.n_cells == random.n_cells == 2


def test_the_others_are_compared_with_the_first_criterion() -> None:
    gap, random = capture([MUCH, LITTLE], NAMES)
    assert gap.difference is None
    assert random.difference is not None
    assert random.difference.value == pytest.approx(1 / 2 - 1 / 3)
    turned = capture([MUCH, LITTLE], NAMES[::-1])
    assert [part.criterion for part in turned] == ["random", "gap"]
    assert turned[1].difference is not None
    assert turned[1].difference.value == pytest.approx(1 / 3 - 1 / 2)


def test_only_the_cells_that_are_chosen_count() -> None:
    both = [*two(10, 8, 3, 4, 7).cells, *two(10, 8, 3, 3, 3, budget=3.75).cells]
    found = corpus(both, low=flips(10, 8), high=flips(10, 3))
    assert [value(part) for part in capture([found], NAMES)] == pytest.approx([0.9, 0.6])
    wide = capture([found], NAMES, chosen=lambda _, part: part.budget == 3.75)
    assert [value(part) for part in wide] == [1, 1]
    assert wide[0].n_cells == 1
    alone = capture([MUCH, LITTLE], NAMES, chosen=lambda name, _: name == "b")
    assert [value(part) for part in alone] == pytest.approx([-1, 1])
    none = capture([MUCH], NAMES, chosen=lambda *_: False)
    assert [(part.ratio.value, part.n_cells) for part in none] == [(None, 0)] * 2


def test_every_cell_has_the_headroom_of_its_own_quantizer() -> None:
    cells = [cell(flips(10, 4), quantizer=name) for name in ("rtn", "gptq")]
    found = corpus(cells, low=flips(10, 8), high=flips(10, 3))
    found.low["gptq"][:] = flips(10, 5)  # 1 of 2 there, 4 of 5 by rtn
    assert value(capture([found], ["gap"])[0]) == pytest.approx((4 + 1) / (5 + 2))


def test_queries_that_layers_were_measured_on_do_not_count() -> None:
    counted = [False] * 4 + [True] * 6
    cells = [cell(part.first, part.criterion, counted=counted) for part in MUCH.cells]
    found = capture([corpus(cells, low=flips(10, 8), high=flips(10, 3))], NAMES)
    # of the last six queries 4 flip at the low width, none at the high one; 0 and 6 by the criteria
    assert [value(part) for part in found] == pytest.approx([4 / 4, (4 - 6) / 4])
    assert [part.cost for part in found] == [0, 1]


def test_a_cell_without_a_query_that_counts_is_none() -> None:
    nothing = cell(flips(10, 10), counted=[False] * 10, seed=1)
    found = corpus([*MUCH.cells[:1], nothing], low=flips(10, 8), high=flips(10, 3))
    (gap,) = capture([found], ["gap"])
    assert (gap.n_cells, gap.cost) == (1, 0.4)
    assert value(gap) == pytest.approx(0.8)


@pytest.mark.parametrize("start", range(9))
def test_as_many_flips_are_a_tie_whichever_queries_flip(start: int) -> None:
    cells = [cell(flips(9, 3), "gap"), cell(flips(9, 3, start=start), "random")]
    found = capture([corpus(cells, low=flips(9, 5), high=flips(9, 1))], NAMES)
    assert [part.first_in for part in found] == [1, 1]
    assert [part.first_in for part in capture([MUCH, LITTLE], NAMES)] == [1, 1]
    assert [part.first_in for part in capture([MUCH, named(MUCH, "b")], NAMES)] == [2, 0]
    assert found[1].difference is not None
    assert found[1].difference.value == 0


@pytest.mark.parametrize("n_flips", range(1, 30))
def test_headroom_of_nothing_is_nothing_whichever_queries_flip(n_flips: int) -> None:
    """Sums of rates in another order differ by 1e-17, and something over that is no capture."""
    rng = np.random.default_rng(n_flips)
    low, high = (rng.permutation(flips(30, n_flips)) for _ in range(2))
    (found,) = capture([corpus([cell(flips(30, 2))], low=low, high=high)], ["gap"])
    assert found.ratio.value is None
    assert found.ratio.reason == "the wide width costs no less than the narrow one"


def test_headroom_below_nothing_is_nothing_either() -> None:
    gap, random = capture([two(10, 3, 4, 2, 5)], NAMES)
    assert (gap.ratio.value, random.ratio.value) == (None, None)
    assert random.difference is not None
    assert random.difference.value is None
    # but it counts among others: a cell has (5 - 1) / 10 to gain in all
    assert value(capture([MUCH, two(10, 3, 4, 2, 5)], NAMES)[0]) == pytest.approx(0.5 / 0.4)


LABELS: list[set[int]] = [{0}, {1}, set(), {0, 2}, {5}]
"""The third query is not judged."""
REFERENCE = (0, 1, 9, 2, 9)  # right in three queries of the four
LABELLED = corpus(
    [cell((0, 9, 9, 0, 5)), cell((9, 1, 9, 0, 9), "random")],
    low=(9, 9, 0, 9, 9),
    high=(0, 1, 9, 2, 9),
    reference=REFERENCE,
    relevant=LABELS,
)


def test_capture_of_recall_is_over_judged_queries() -> None:
    gap, random = capture([LABELLED], NAMES, "recall@1")
    # at the low width 4 of 4 are wrong, at the high one 1; gap gets one wrong, random two
    assert (gap.cost, random.cost) == (1 / 4, 2 / 4)
    assert (value(gap), value(random)) == pytest.approx((1, 2 / 3))


def test_capture_of_relevant_documents_is_over_queries_that_the_reference_gets_right() -> None:
    gap, random = capture([LABELLED], NAMES, "gold_lost@1")
    # 3 of 3 lost at the low width, none at the high one; another relevant one is none lost
    assert (gap.cost, random.cost) == pytest.approx((1 / 3, 1 / 3))
    assert (value(gap), value(random)) == pytest.approx((2 / 3, 2 / 3))
    flip = capture([LABELLED], NAMES)[0]
    assert flip.cost == 3 / 5


@pytest.mark.parametrize("cost", COSTS[1:])
def test_corpora_without_labels_are_left_out_where_labels_are_needed(cost: str) -> None:
    with_labels = capture([LABELLED], NAMES, cost)
    assert capture([LABELLED, MUCH], NAMES, cost) == with_labels
    assert [value(part) for part in capture([MUCH, LABELLED], NAMES, cost)] == [
        value(part) for part in with_labels
    ]
    for part in capture([MUCH], NAMES, cost):
        assert (part.ratio.value, part.n_cells) == (None, 0)
        assert part.ratio.reason == "no cell has a query that counts here"


def drawn(n: int, seed: int) -> dict[str, NDArray[np.int64]]:
    """Answers at both widths and by two criteria, which flip alike."""
    hard = np.random.default_rng(seed).random(n)
    noise = np.random.default_rng(seed + 1).random((4, n)) / 2
    thresholds = {"low": 0.5, "high": 0.9, "gap": 0.7, "random": 0.6}
    return {
        name: (hard + part > limit + 0.25).astype(np.int64)
        for (name, limit), part in zip(thresholds.items(), noise, strict=True)
    }


def test_the_interval_is_that_of_an_ordinary_bootstrap() -> None:
    answers = drawn(400, seed=3)
    cells: list[Cell] = [cell(answers[name], name) for name in NAMES]
    gap, random = capture([corpus(cells, low=answers["low"], high=answers["high"])], NAMES)
    low, high, ours, other = (answers[name] for name in ("low", "high", *NAMES))
    assert random.difference is not None
    for found, over in ((gap.ratio, low - ours), (random.difference, other - ours)):
        expected = bootstrap(
            (over, low - high),
            lambda gain, headroom, axis: gain.mean(axis=axis) / headroom.mean(axis=axis),
            paired=True,
            method="percentile",
            rng=np.random.default_rng(7),
        ).confidence_interval
        assert found.low is not None
        assert found.value == pytest.approx(over.sum() / (low - high).sum())
        assert (found.low, found.high) == pytest.approx(tuple(expected), abs=0.02)
        assert expected.high - expected.low > 0.1


def test_where_all_queries_have_headroom_the_interval_is_binomial() -> None:
    found = corpus([cell(flips(20, 6))], low=flips(20, 20), high=flips(20, 0))
    (gap,) = capture([found], ["gap"])
    assert interval(gap) == pytest.approx(tuple(binom.ppf([0.025, 0.975], 20, 14 / 20) / 20))


def test_cells_of_a_corpus_share_their_queries_and_corpora_do_not() -> None:
    answers = drawn(300, seed=5)
    arms = {"low": answers["low"], "high": answers["high"]}
    once = interval(capture([corpus([cell(answers["gap"])], **arms)], ["gap"])[0])
    cells = [cell(answers["gap"], budget=budget) for budget in (3.25, 3.5, 3.75)]
    assert interval(capture([corpus(cells, **arms)], ["gap"])[0]) == pytest.approx(once)
    corpora = [corpus([cell(answers["gap"])], **arms, name=name) for name in "abcd"]
    four = interval(capture(corpora, ["gap"])[0])
    assert (four[1] - four[0]) / (once[1] - once[0]) == pytest.approx(1 / 2, abs=0.05)
    assert interval(capture(corpora, ["gap"], seed=1)[0]) != four
    assert interval(capture(corpora, ["gap"])[0]) == four


def test_without_headroom_in_one_of_twenty_samples_there_is_no_interval() -> None:
    (rare,) = capture([corpus([cell(flips(5, 0))], low=flips(5, 1), high=flips(5, 0))], ["gap"])
    assert (rare.ratio.value, rare.ratio.low, rare.ratio.high) == (1, None, None)
    # 4 of 20 are missed by 1.2 % of all samples
    found = corpus([cell(flips(20, 0))], low=flips(20, 4), high=flips(20, 0))
    assert interval(capture([found], ["gap"])[0]) == (1, 1)
