"""Widths from losses: the paper's rule and the optimum, on examples that can be done by hand."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from quantdrift.allocation.solver import METHODS, Solution, solve
from quantdrift.errors import QuantDriftError, ScoreError, UnknownNameError, UnsupportedError


def allocate(losses: Any, n_weights: Any, **settings: Any) -> Solution:
    """Between 3 and 4 bits, where nothing else is said; losses at the lower width will do."""
    given = np.asarray(losses, dtype=np.float64)
    if given.ndim == 1:
        given = np.stack([given, np.zeros_like(given)], axis=1)
    return solve(given, np.asarray(n_weights), **{"widths": (3, 4), "budget": 3.5, **settings})


# --- the paper's rule ----------------------------------------------------------------------------


def test_greedy_ranks_by_loss_per_weight() -> None:
    # losses per weight are 1, 3 and 2, so the second layer, which has half of the weights, wins
    solution = allocate([1.0, 6.0, 2.0], [1, 2, 1], method="greedy")
    assert solution.widths.tolist() == [3, 4, 3]
    assert solution.bits_per_weight == 3.5
    assert solution.loss == 3.0
    assert (solution.bound, solution.gap, solution.status) == (3.0, 0.0, "optimal")


def test_greedy_passes_over_what_does_not_fit_and_takes_the_next_that_does() -> None:
    # 3 of 6 weights can have a fourth bit; after the first layer, with 2, the second has no room
    solution = allocate([8.0, 6.0, 1.0], [2, 3, 1], method="greedy")
    assert solution.widths.tolist() == [4, 3, 4]
    assert solution.loss == 6.0
    # the linear relaxation takes a third of the second layer: 1 + 2/3 of 6
    assert solution.bound == pytest.approx(5.0)
    assert solution.gap == pytest.approx(1 / 6)
    assert solution.status == "greedy"


@pytest.mark.parametrize("method", METHODS)
def test_ties_go_to_the_layer_defined_first(method: str) -> None:
    for units in (None, np.array([3, 2, 1, 0])):
        tied = allocate([1.0] * 4, [5] * 4, units=units, method=method)
        assert tied.widths.tolist() == [4, 4, 3, 3]


def test_greedy_goes_up_the_convex_hull_of_each_layer() -> None:
    # The first layer gains nothing from 2 to 3 bits but all from 2 to 4: per bit 5, as much as the
    # second layer's step from 2 to 3. Its own step to 3 alone would have looked worthless.
    losses = [[10.0, 10.0, 0.0], [4.0, 0.0, 0.0]]
    solution = allocate(losses, [1, 1], widths=(2, 3, 4), budget=3.0, method="greedy")
    assert solution.widths.tolist() == [4, 2]
    assert solution.loss == 4.0


def test_greedy_does_not_skip_a_step_that_does_not_fit() -> None:
    # from 2 to 4 bits takes 4 bits for two weights, and there are 2, enough from 4 to 5
    solution = allocate([[9.0, 3.0, 0.0]], [2], widths=(2, 4, 5), budget=3.0, method="greedy")
    assert solution.widths.tolist() == [2]


@pytest.mark.parametrize("method", METHODS)
def test_a_width_off_the_hull_is_taken_where_no_other_fits(method: str) -> None:
    solution = allocate([[9.0, 8.0, 0.0]], [1], widths=(2, 3, 4), budget=3.0, method=method)
    assert solution.widths.tolist() == [3]


# --- the optimum ---------------------------------------------------------------------------------


def test_the_knapsack_finds_what_greedy_misses() -> None:
    # 10 of 14 weights can have a fourth bit: the best per weight and one more, or the two others
    losses, n_weights = [10.0, 11.0, 11.0], [4, 5, 5]
    greedy = allocate(losses, n_weights, budget=3.72, method="greedy")
    best = allocate(losses, n_weights, budget=3.72)
    assert (greedy.widths.tolist(), greedy.loss) == ([4, 4, 3], 11.0)
    assert (best.widths.tolist(), best.loss) == ([3, 4, 4], 10.0)
    assert best.bound == pytest.approx(10.0)
    assert best.gap == pytest.approx(0.0, abs=1e-9)
    assert best.status == "optimal"


def test_of_equal_optima_the_one_in_order_of_definition_is_given() -> None:
    # Two of the six alike are worth more than the first and one of them; of the three that lose
    # nothing there is room for two.
    losses, n_weights = [10.0] + [11.0] * 6 + [0.0] * 3, [4] + [5] * 6 + [1] * 3
    solution = allocate(losses, n_weights, budget=3 + 12 / 37)
    assert solution.widths.tolist() == [3, 4, 4, 3, 3, 3, 3, 4, 4, 3]


@pytest.mark.parametrize("method", METHODS)
def test_a_budget_can_be_met_exactly(method: str) -> None:
    assert allocate([2.0, 1.0], [10**9 + 7] * 2, method=method).bits_per_weight == 3.5
    # 3.3 as a float lies below 33/10; it means 33/10
    third = allocate([1.0] * 10, [1] * 10, budget=3.3, method=method)
    assert third.bits_per_weight == 3.3


@pytest.mark.parametrize("method", METHODS)
def test_what_is_left_is_used_even_where_nothing_is_gained(method: str) -> None:
    losses = [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    solution = allocate(losses, [1, 1], widths=(2, 4, 8), budget=6.0, method=method)
    assert solution.bits_per_weight == 6.0
    assert solution.loss == solution.gap == 0.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("budget", "width"), [(3, 3), (4, 4)])
def test_a_budget_at_the_end_of_the_range_is_uniform(method: str, budget: float, width: int) -> None:
    assert allocate([1.0, 2.0], [3, 5], budget=budget, method=method).widths.tolist() == [width] * 2


@pytest.mark.parametrize("method", METHODS)
def test_layers_of_a_unit_get_one_width(method: str) -> None:
    losses, n_weights = [9.0, 0.0, 3.0, 2.0], [1, 1, 1, 1]
    assert allocate(losses, n_weights, method=method).widths.tolist() == [4, 3, 4, 3]
    tied = allocate(losses, n_weights, units=np.array([7, 7, 0, 0]), method=method)
    assert tied.widths.tolist() == [4, 4, 3, 3]
    assert tied.loss == 5.0


def test_it_answers_when_time_is_up() -> None:
    rng = np.random.default_rng(3)
    n_weights = rng.integers(10**5, 10**8, 200)
    losses = np.sort(rng.random((200, 4)), axis=1)[:, ::-1]
    settings: dict[str, Any] = {"widths": (2, 3, 4, 8)}
    late = allocate(losses, n_weights, time_limit=0.0, **settings)
    assert late.status == "time limit"
    assert late.bound < late.loss == allocate(losses, n_weights, method="greedy", **settings).loss
    start = time.process_time()
    best = allocate(losses, n_weights, time_limit=60.0, **settings)
    assert time.process_time() - start < 5.0
    assert best.status == "optimal"
    assert best.gap < 1e-12
    assert late.bound <= best.bound <= best.loss < late.loss


def awkward(n_layers: int, seed: int) -> tuple[Any, Any]:
    """Losses and counts of weights that are nearly equal and share no factor."""
    rng = np.random.default_rng(seed)
    n_weights = 10**8 + rng.integers(0, 5, n_layers)
    losses = np.sort(rng.random((n_layers, 4)), axis=1)[:, ::-1]
    losses[:, -1] = 0.0
    return losses, n_weights


def test_large_counts_are_added_up_exactly() -> None:
    # HiGHS takes 0.999999 for 1, and 1e-6 of a layer is a hundred weights
    losses, n_weights = awkward(30, seed=3)
    solution = allocate(losses, n_weights, widths=(2, 3, 4, 8), time_limit=60.0)
    assert 2 * int((n_weights * solution.widths).sum()) <= 7 * int(n_weights.sum())
    assert solution.status == "optimal"


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"budget": 2.9}, UnsupportedError, "2.9 bits .* 3, 4: expected 3 to 4"),
        ({"budget": 4.1}, UnsupportedError, "expected 3 to 4"),
        ({"budget": float("nan")}, UnsupportedError, "expected 3 to 4"),
        ({"widths": (4, 3)}, UnsupportedError, "ascending"),
        ({"widths": (3, 3)}, UnsupportedError, "ascending"),
        ({"widths": ()}, UnsupportedError, "ascending"),
        ({"widths": (3, 4, 8)}, ScoreError, r"losses \[n_layers, 3\]"),
        ({"method": "greedyy"}, UnknownNameError, "did you mean greedy"),
        ({"losses": [1.0, np.nan]}, ScoreError, "layer 1 at the width of index 0 is nan"),
        ({"losses": [-1.0, 1.0]}, ScoreError, "layer 0 .* is -1.0; .* at least 0"),
        ({"losses": [[1.0, 0.0], [0.5, 0.75]]}, ScoreError, "layer 1 rises .* 0.5 to 0.75"),
        ({"losses": [1e308, 1e308]}, ScoreError, "too large"),
        ({"losses": [1.0]}, ScoreError, r"got shapes \(1, 2\), \(2,\)"),
        ({"losses": np.empty((0, 2)), "n_weights": []}, ScoreError, "at least one layer"),
        ({"n_weights": [3, 0]}, ScoreError, "layer 1 has 0 weights"),
        ({"n_weights": [3.0, 4.0]}, ScoreError, "whole numbers"),
        ({"units": np.array([0])}, ScoreError, r"\(1,\)"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], error: type[QuantDriftError], says: str) -> None:
    with pytest.raises(error, match=says):
        allocate(**{"losses": [1.0, 2.0], "n_weights": [3, 4], **changes})
