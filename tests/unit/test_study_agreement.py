"""Whether draws of queries, and sizes of them, give layers the same widths; how criteria rank."""

from __future__ import annotations

import pytest
from scipy.stats import spearmanr
from study_samples import Cell, CorpusCells, cell, corpus

from quantdrift.study.allocation.agreement import between_seeds, rank_correlation, with_size


def chosen(
    widths: tuple[int, ...],
    *,
    seed: int = 0,
    size: int = 128,
    budget: float = 3.5,
    criterion: str = "gap",
    quantizer: str = "rtn",
) -> Cell:
    return cell(
        (0, 0),
        criterion,
        widths=widths,
        scores=(1.0,) * len(widths),
        seed=seed,
        n_queries=size,
        budget=budget,
        quantizer=quantizer,
    )


def of(*cells: Cell, name: str = "a") -> CorpusCells:
    return corpus(cells, low=(1, 1), high=(0, 0), name=name)


def test_two_seeds_agree_on_the_share_of_layers_with_the_same_width() -> None:
    found = of(chosen((3, 3, 4, 4)), chosen((3, 4, 4, 4), seed=1))
    assert between_seeds([found], "gap") == 3 / 4


def test_every_pair_of_seeds_counts_within_a_corpus_a_budget_and_a_size() -> None:
    three = of(*(chosen(widths, seed=s) for s, widths in enumerate([(3, 4), (3, 4), (4, 3)])))
    assert between_seeds([three], "gap") == pytest.approx((1 + 0 + 0) / 3)
    apart = of(
        chosen((3, 4)), chosen((3, 4), seed=1), chosen((4, 3), budget=3.75), chosen((4, 3), size=8)
    )
    assert between_seeds([apart], "gap") == 1  # across budgets or sizes it would be less
    other = of(chosen((4, 3)), chosen((3, 4), seed=1), name="b")
    assert between_seeds([apart, other], "gap") == 1 / 2


def test_other_criteria_do_not_count() -> None:
    gap = [chosen((3, 4), seed=seed) for seed in (0, 1)]
    random = [
        chosen(widths, seed=seed, criterion="random")
        for seed, widths in enumerate([(3, 4), (4, 3)])
    ]
    assert between_seeds([of(*gap, *random)], "gap") == 1
    assert between_seeds([of(*gap, *random)], "random") == 0


def test_one_seed_agrees_with_none() -> None:
    assert between_seeds([of(chosen((3, 4)), chosen((3, 4), budget=3.75))], "gap") is None
    assert between_seeds([of(chosen((3, 4)))], "sqnr") is None


def test_widths_of_several_quantizers_count_once() -> None:
    """They are the same, and across quantizers there are no two draws."""
    cells = [
        chosen(widths, seed=seed, quantizer=quantizer)
        for quantizer in ("rtn", "gptq")
        for seed, widths in enumerate([(3, 4, 4), (4, 3, 4)])
    ]
    assert between_seeds([of(*cells)], "gap") == pytest.approx(1 / 3)
    assert between_seeds([of(cells[0], cells[2])], "gap") is None


def test_few_queries_beside_the_largest_draw() -> None:
    sizes = {8: (4, 3, 3, 4), 32: (3, 4, 3, 4), 128: (3, 4, 4, 3)}
    found = of(*(chosen(widths, size=size) for size, widths in sizes.items()))
    assert with_size([found], "gap", 8, 128) == 0
    assert with_size([found], "gap", 32, 128) == 1 / 2
    assert with_size([found], "gap", 128, 128) == 1
    assert with_size([found], "gap", 16, 128) is None
    assert with_size([found], "random", 8, 128) is None


def test_sizes_are_compared_within_a_seed_and_a_budget() -> None:
    cells = [
        chosen(widths, seed=seed, budget=budget, size=size)
        for seed, budget, widths in ((0, 3.5, (3, 4)), (1, 3.5, (4, 3)), (0, 3.75, (4, 4)))
        for size in (8, 128)
    ]
    assert with_size([of(*cells)], "gap", 8, 128) == 1
    assert with_size([of(*cells[:5])], "gap", 8, 128) == 1  # the last has nothing to compare with
    other = chosen((4, 4), size=8)  # one layer of two, in one seed of two
    assert with_size([of(other, *cells[1:4])], "gap", 8, 128) == (1 / 2 + 1) / 2


def ranked(scores: tuple[float, ...], criterion: str, **of_draw: int) -> Cell:
    return cell((0, 0), criterion, widths=(3,) * len(scores), scores=scores, **of_draw)


GAP, SQNR = (0.1, 0.4, 0.2, 0.9, 0.3), (5.0, 7.0, 7.0, 9.0, 6.0)
"""Ranks 1 4 2 5 3 and, two being tied, 1 3.5 3.5 5 2."""


def test_rank_correlation_is_that_of_scipy_and_by_hand() -> None:
    found = of(ranked(GAP, "gap"), ranked(SQNR, "sqnr"))
    by_hand = 8 / (10 * 9.5) ** 0.5  # products and squares of the ranks' distances from 3
    assert rank_correlation([found], "gap", "sqnr") == pytest.approx(by_hand)
    assert rank_correlation([found], "gap", "sqnr") == pytest.approx(spearmanr(GAP, SQNR).statistic)
    assert rank_correlation([found], "gap", "gap") == pytest.approx(1)


def test_rank_correlation_is_a_mean_over_draws_and_corpora() -> None:
    turned = tuple(-score for score in GAP)
    one = of(
        ranked(GAP, "gap"),
        ranked(GAP, "sqnr"),
        ranked(GAP, "gap", seed=1),
        ranked(turned, "sqnr", seed=1),
    )
    assert rank_correlation([one], "gap", "sqnr") == pytest.approx(0)
    other = of(ranked(GAP, "gap"), ranked(turned, "sqnr"), name="b")
    assert rank_correlation([one, other], "gap", "sqnr") == pytest.approx(-1 / 3)


def test_scores_that_rank_nothing_correlate_with_nothing() -> None:
    flat = of(ranked(GAP, "gap"), ranked((2.0,) * 5, "depth"))
    assert rank_correlation([flat], "gap", "depth") is None
    assert rank_correlation([flat], "depth", "gap") is None
    assert rank_correlation([flat], "gap", "random") is None
    with_ranks = of(ranked(GAP, "gap"), ranked(GAP, "depth"), name="b")
    assert rank_correlation([flat, with_ranks], "gap", "depth") == pytest.approx(1)
