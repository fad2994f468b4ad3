"""Widths from losses: the paper's rule and the optimum, on examples that can be done by hand."""

import time
from typing import Any

import numpy as np
import pytest

from quantdrift.allocation.solver import Solution, solve
from quantdrift.base.errors import UnsupportedError
from quantdrift.candidate.pair import methods_of
from quantdrift.spec.grammar import parse_scheme


def allocate(losses: Any, n_weights: Any, **settings: Any) -> Solution:
    """Allocate 3 or 4 bits, where nothing else is said; losses at the lower width will do."""
    given = np.asarray(losses, dtype=np.float64)
    if given.ndim == 1:
        given = np.stack([given, np.zeros_like(given)], axis=1)
    return solve(given, np.asarray(n_weights), **{"widths": (3, 4), "budget": 3.5, **settings})


def test_greedy_ranks_by_loss_per_weight() -> None:
    # two of four weights can have a fourth bit. Per weight losses are 4, 3 and 1: the first layer, then what fits; by
    # total loss (4, 6, 1) the second would have taken both
    solution = allocate([4.0, 6.0, 1.0], [1, 2, 1], method="greedy")
    assert solution.widths.tolist() == [4, 3, 4]
    assert (solution.loss, solution.bound, solution.status) == (6.0, None, "greedy")


@pytest.mark.parametrize(
    ("losses", "n_weights", "widths", "chosen"),
    [
        # The first layer gains nothing from 2 to 3 bits but all from 2 to 4: per bit 5, as much as the
        # second layer's step from 2 to 3. Its own step to 3 alone would have looked worthless.
        ([[10.0, 10.0, 0.0], [4.0, 0.0, 0.0]], [1, 1], (2, 3, 4), [4, 2]),
        # a width off the hull is taken where no other fits
        ([[9.0, 8.0, 0.0]], [1], (2, 3, 4), [3]),
    ],
)
def test_greedy_goes_up_convex_hulls(losses: Any, n_weights: Any, widths: tuple[int, ...], chosen: list[int]) -> None:
    solution = allocate(losses, n_weights, widths=widths, budget=3.0, method="greedy")
    assert solution.widths.tolist() == chosen


@pytest.mark.parametrize("method", ["knapsack", "greedy"])
def test_layers_of_a_unit_get_one_width_and_those_left_out_keep_theirs(method: str) -> None:
    losses, n_weights = [9.0, 0.0, 3.0, 2.0], [1, 1, 1, 1]
    assert allocate(losses, n_weights, method=method).widths.tolist() == [4, 3, 4, 3]
    units = np.array([7, 7, 0, 0])
    tied = allocate(losses, n_weights, units=units, method=method)
    assert (tied.widths.tolist(), tied.loss) == ([4, 4, 3, 3], 5.0)
    kept = allocate(
        [99.0, *losses], [8, *n_weights], units=np.array([7, *units]), kept=[16, *[None] * 4], method=method
    )
    assert (kept.widths.tolist(), kept.loss) == ([16, 4, 4, 3, 3], 5.0)


def test_it_answers_when_time_is_up() -> None:
    rng = np.random.default_rng(3)
    n_weights = rng.integers(10**5, 10**8, 200)
    losses = np.sort(rng.random((200, 4)), axis=1)[:, ::-1]
    settings: dict[str, Any] = {"widths": (2, 3, 4, 8)}
    late = allocate(losses, n_weights, time_limit=0.0, **settings)
    assert late.status == "time limit"
    assert late.loss == allocate(losses, n_weights, method="greedy", **settings).loss
    start = time.process_time()
    best = allocate(losses, n_weights, time_limit=60.0, **settings)
    assert time.process_time() - start < 5.0
    assert best.status == "optimal"
    assert best.loss < late.loss
    assert best.bound == pytest.approx(best.loss)


def test_large_counts_are_added_up_exactly() -> None:
    """HiGHS takes 0.999999 for 1, and 1e-6 of a layer is a hundred weights that share no factor."""
    rng = np.random.default_rng(3)
    n_weights = 10**8 + rng.integers(0, 5, 30)
    losses = np.sort(rng.random((30, 4)), axis=1)[:, ::-1]
    losses[:, -1] = 0.0
    solution = allocate(losses, n_weights, widths=(2, 3, 4, 8), time_limit=60.0)
    assert 2 * int((n_weights * solution.widths).sum()) <= 7 * int(n_weights.sum())
    assert solution.status == "optimal"


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["queries=64", "seed=3"])
def test_settings_of_a_choice_have_no_effect_on_widths_of_a_file(option: str) -> None:
    with pytest.raises(UnsupportedError, match="no effect"):
        methods_of(parse_scheme(f"W3.5+gap+allocation=a.json+{option}"))
