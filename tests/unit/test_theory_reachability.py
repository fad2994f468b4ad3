"""Reachable rankings and stability by hand, with numbers that sit exactly at 2 epsilon."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from theory_samples import evidence

from quantdrift import perturbation
from quantdrift.theory import (
    Number,
    TheoryError,
    contenders,
    is_reachable,
    must_precede,
    reachable_rankings,
    top1_is_stable,
    topk_is_stable,
    witness,
)

TENTH = Fraction(1, 10)


def test_pairs_two_epsilon_apart_are_in_order_and_closer_ones_are_not() -> None:
    assert must_precede([5, 4, 3], 1) == {(0, 2)}
    assert must_precede([3, 5, 4], 1) == {(1, 0)}
    assert must_precede([5, 4, 3], Fraction(1, 2)) == {(0, 1), (1, 2), (0, 2)}
    assert must_precede([5, 4, 3], Fraction(51, 100)) == {(0, 2)}
    assert must_precede([5, 4, 3], Fraction(101, 100)) == set()


def test_rankings_of_three_items_with_one_fixed_pair() -> None:
    reached = {(0, 1, 2), (0, 2, 1), (1, 0, 2)}
    assert set(reachable_rankings([5, 4, 3], 1)) == reached
    for ranking in itertools.permutations(range(3)):
        assert is_reachable([5, 4, 3], 1, ranking) == (ranking in reached)


def test_each_ranking_comes_once_and_the_reference_comes_first() -> None:
    found = list(reachable_rankings([2, 9, 4, 9 - TENTH], 3))
    assert found[0] == (1, 3, 2, 0)
    assert len(found) == len(set(found))


def test_along_a_chain_each_may_pass_the_next_but_nobody_passes_beyond_two_epsilon() -> None:
    scores = [10, 9, 8, 7]
    open_pairs = {(i, j) for i in range(4) for j in range(i)} - {
        (j, i) for i, j in must_precede(scores, 1)
    }
    assert open_pairs == {(1, 0), (2, 1), (3, 2)}  # not transitive: (2, 0) is missing
    assert is_reachable(scores, 1, [1, 0, 3, 2])
    assert not is_reachable(scores, 1, [1, 2, 0, 3])
    assert contenders(scores, Fraction(3, 2)) == (1, 2)  # from rank 3, past the first


def test_without_perturbation_only_the_ranking_of_the_scores_is_left() -> None:
    assert list(reachable_rankings([1, 3, 2], 0)) == [(1, 2, 0)]
    assert witness([1, 3, 2], 0, [1, 2, 0]) == (Fraction(0),) * 3
    assert witness([1, 3, 2], 0, [2, 1, 0]) is None


def test_an_exact_copy_is_stable_with_ties_and_a_tie_is_in_no_strict_order() -> None:
    assert list(reachable_rankings([1, 1], 0)) == []
    assert witness([1, 1], 0, [0, 1]) is None
    assert top1_is_stable([1, 1], 0)
    assert contenders([1, 1], 0) == ()


def test_a_tie_may_go_either_way_as_soon_as_anything_moves() -> None:
    smallest = Fraction(1, 10**30)
    assert set(reachable_rankings([1, 1], smallest)) == {(0, 1), (1, 0)}
    assert not top1_is_stable([1, 1], smallest)


def test_a_witness_by_hand() -> None:
    # Item 1 rises to 5; item 0 may go from there down to 4, and takes half of that.
    assert witness([5, 4], 1, [1, 0]) == (Fraction(-1, 2), Fraction(1))
    assert witness([6, 4], 1, [1, 0]) is None
    assert witness([6, 4 + TENTH], 1, [1, 0]) is not None


def test_a_witness_steps_down_and_then_meets_a_lower_item() -> None:
    """Items 0 and 1 share a level, so eta must leave room above item 2 as well as below them."""
    scores: list[Fraction] = [Fraction(0), Fraction(0), -TENTH]
    delta = witness(scores, 1, [0, 1, 2])
    assert delta is not None
    moved = [score + change for score, change in zip(scores, delta, strict=True)]
    assert moved[0] > moved[1] > moved[2]
    assert max(map(abs, delta)) <= 1


@pytest.mark.parametrize(
    ("scores", "epsilon", "stable"),
    [
        ([5, 4, 1, 0], 1, [False, True, False, True]),
        ([5, 3, 1], 1, [True, True, True]),
        ([1, 3, 5], 1, [True, True, True]),  # the order of the items plays no part
        ([5, 5, 1], 1, [False, True, True]),
        ([7], 3, [True]),
    ],
)
def test_stability_by_hand(scores: list[Number], epsilon: Number, stable: list[bool]) -> None:
    assert [topk_is_stable(scores, epsilon, k + 1) for k in range(len(scores))] == stable
    assert top1_is_stable(scores, epsilon) == stable[0]


def test_contenders_come_in_order_of_rank_and_ties_in_order_of_position() -> None:
    assert contenders([3, 5, Fraction(7, 2), 4, Fraction(7, 2)], 1) == (3, 2, 4)
    assert contenders([4, 4], 1) == (1,)


def test_floats_are_the_numbers_they_store() -> None:
    """0.3 is stored a little low and 0.1 a little high, so that 0.3 - 0.1 < 2 * 0.1."""
    assert 0.1 + 0.1 <= 0.3 - 0.1 + 1e-9  # what rounding would make of it
    assert not top1_is_stable([0.3, 0.1], 0.1)
    assert top1_is_stable([3 * TENTH, TENTH], TENTH)
    # 1 + 2^-53 rounds to 1 in floats; the difference to 1 - 2^-53 is lost, but not here.
    assert not top1_is_stable([1.0, 2.0**-60], 0.5)
    assert top1_is_stable([1.0, -(2.0**-60)], 0.5)


def test_scalars_of_numpy_are_numbers() -> None:
    scores: Any = np.array([5, 3], dtype=np.float32)
    whole: Any = np.array([5, 3])
    epsilon: Any = np.float32(1.5)
    assert top1_is_stable(list(scores), 1)
    assert not top1_is_stable(list(scores), epsilon)
    assert top1_is_stable(whole, 1)


def test_the_figures_from_evidence_agree_with_the_exact_functions() -> None:
    rows: list[list[float]] = [[5, 3, 1], [5, 3.5, 1], [5, 5, 1], [0.3, 0.1, -0.7], [5, 4, 3.5]]
    epsilon = [1, 1, 1, 0.1, 0.75]
    record = evidence(rows, epsilon)
    stored = record.reference_top.reference_scores.tolist()
    measured = perturbation.epsilon(record).tolist()
    for row, scores in enumerate(stored):
        stable = top1_is_stable(scores, measured[row])
        assert (perturbation.separation_ratio(record)[row] >= 1) == stable
        assert perturbation.at_risk(record)[row] == (not stable)
        assert perturbation.contender_count(record)[row] == len(contenders(scores, measured[row]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: must_precede([], 1), "at least one item"),
        (lambda: must_precede([1, float("nan")], 1), "a score must be a finite number; got nan"),
        (lambda: must_precede([1, float("inf")], 1), "got inf"),
        (lambda: must_precede([1, 2], -1), "epsilon must be 0 or more"),
        (lambda: contenders([1, 2], float("nan")), "epsilon must be a finite number"),
        (lambda: reachable_rankings([1, 2], -1), "epsilon must be 0 or more"),
        (lambda: is_reachable([1, 2], 1, [0]), "each of the 2 item indices"),
        (lambda: is_reachable([1, 2], 1, [0, 0]), "once; got"),
        (lambda: witness([1, 2], 1, [1, 2]), "0 to 1"),
        (lambda: topk_is_stable([1, 2], 1, 0), "k must be from 1 to the number of items, 2"),
        (lambda: topk_is_stable([1, 2], 1, 3), "got 3"),
    ],
)
def test_what_cannot_be_used_is_said(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TheoryError, match=message):
        call()
