"""Widths from losses by the paper's rule and the optimum, and layers that share one or are left out."""

import time
from typing import Any

import numpy as np
import pytest

from quantdrift.allocation.solver import Solution, solve
from quantdrift.allocation.units import excluded, runtime_units
from quantdrift.base.errors import QuantDriftError, UnknownNameError, UnsupportedError


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


# --- units -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "units"),
    [
        (["a.q_proj", "a.k_proj", "a.v_proj", "a.o_proj", "b.q_proj"], [0, 0, 0, 1, 2]),
        (["m.gate_proj", "m.down_proj", "m.up_proj"], [0, 1, 0]),
        (["x.w1", "x.w2", "x.w3", "to_q", "q"], [0, 1, 0, 2, 3]),
        # all of a mixture is one kernel's; the shared expert and the router are not in it
        (["e.experts.gate_up_proj.0", "e.experts.down_proj.1", "f.experts.down_proj.0"], [0, 0, 1]),
        (["e.experts.0.w1", "e.experts.12.w2", "e.shared_expert.up_proj", "e.gate"], [0, 0, 1, 2]),
        # numbers at the end do not make experts of layers in a list
        (["head.0", "head.2", "mlp.fc1.0", "mlp.fc1.1"], [0, 1, 2, 3]),
    ],
)
def test_layers_that_runtimes_fuse_are_units(names: list[str], units: list[int]) -> None:
    numbers = runtime_units(names)
    assert (numbers.dtype, numbers.tolist()) == (np.int64, units)


NAMES = [f"layer.{i}.{part}" for i in range(2) for part in ("attn.query", "attn.key", "dense")]


def test_layers_are_left_out_by_pattern_and_the_last_one_decides() -> None:
    units = runtime_units(NAMES)
    assert excluded(NAMES, {}, units=units) == {}
    widths = {**dict.fromkeys(NAMES[:3], 16), "layer.1.dense": 8}
    assert excluded(NAMES, {"*.dense": 8, "layer.0.*": 16}, units=units) == widths


@pytest.mark.parametrize(
    ("patterns", "error", "says"),
    [
        ({"layer.0.denze": 8}, UnknownNameError, "layer.0.dense"),
        ({"layer.0": 8}, UnknownNameError, "no layer's whole name"),
        ({"*.dense": 9}, UnsupportedError, "at 9 bits: expected 2 to 8, or 16"),
        ({"*.query": 8}, UnsupportedError, "query and layer.0.attn.key are tied"),
    ],
)
def test_impossible_patterns_are_refused(patterns: dict[str, int], error: type[QuantDriftError], says: str) -> None:
    with pytest.raises(error, match=says):
        excluded(NAMES, patterns, units=runtime_units(NAMES))
