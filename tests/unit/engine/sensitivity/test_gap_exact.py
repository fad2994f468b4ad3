"""The paper's criterion: hand-computed, kept layer by layer, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.engine.layers import find_linears
from quantdrift.engine.sensitivity.criteria import Setting, criterion
from quantdrift.engine.sensitivity.gap import GAP_EXACT_CRITERION, exact_shifts, median_shifts
from quantdrift.engine.sensitivity.problem import Batch, GapProblem
from quantdrift.errors import DataError
from quantdrift.progress import Silent
from support.criteria_models import Blocks, inputs, seeded, setting_of


class Shelf:
    """Arrays kept in memory."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[np.float64]] = {}

    def get(self, name: str) -> NDArray[np.float64] | None:
        return self.arrays.get(name)

    def put(self, name: str, array: NDArray[np.float64]) -> None:
        assert array.dtype == np.float64
        self.arrays[name] = array.copy()


class Killed(Shelf):
    """Puts arrays on another shelf, and is interrupted after some."""

    def __init__(self, shelf: Shelf, left: int) -> None:
        self.arrays, self.left = shelf.arrays, left

    def put(self, name: str, array: NDArray[np.float64]) -> None:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        super().put(name, array)


def by_hand(weight: list[list[float]], widths: tuple[int, ...] = (2, 3, 4), *, contenders: int = 1) -> Setting:
    """One layer whose outputs are scores of two items; the gap is the first less the second."""
    model = nn.Linear(len(weight[0]), len(weight), bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(weight))
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
    valid = np.ones((3, contenders), dtype=np.bool_)
    valid[2, 1:] = False

    def run() -> NDArray[np.float32]:
        with torch.no_grad():
            return model(x).numpy()

    problem = GapProblem(
        batches=[Batch(rows=np.arange(3), run=run)],
        rows=np.arange(3).repeat(contenders).reshape(3, contenders, 1),
        valid=valid,
        gap=lambda out: out[..., 0, 0] - out[..., 0, 1],
    )
    return Setting(
        modules=[model],
        layers=find_linears([model]),
        widths=widths,
        group_size=None,
        seed=0,
        progress=Silent(),
        problem=problem,
    )


WEIGHT = [[0.9, 0.7], [-0.3, 0.5]]


def test_the_median_distance_that_gaps_move_by_hand() -> None:
    """At 2 bits a row's grid is its absmax times -1, 0, 1; halves go to even.

    [0.9, 0.7] becomes [0.9, 0.9] and [-0.3, 0.5] becomes [-0.5, 0.5], so the difference of the
    rows goes from [1.2, 0.2] to [1.4, 0.4], and the gaps of the three inputs move by 0.2, 0.2, 0.8.
    At 3 bits the grids are 0.3 and 0.5/3 wide: [0.9, 0.6] and [-1/3, 0.5], moves of 1/30, -0.1
    and 2 (1/30 - 0.1).
    """
    setting = by_hand(WEIGHT)
    shifts = exact_shifts(setting)
    assert shifts.shape == (1, 2, 3, 1)
    wanted = [[0.2, 0.2, 0.8], [1 / 30, -0.1, 2 / 30 - 0.2]]
    np.testing.assert_allclose(shifts[0, :, :, 0], wanted, atol=1e-6)
    np.testing.assert_allclose(GAP_EXACT_CRITERION.losses(setting), [[0.2, 0.1, 0]], atol=1e-6)


def test_losses_fall_where_a_finer_grid_lies_worse() -> None:
    """1 and 1/3 are on the grid of thirds that 3 bits have, and 1/3 is on no grid of sevenths."""
    setting = by_hand([[1.0, 1 / 3], [0.0, 0.0]], widths=(3, 4, 8))
    medians = median_shifts(exact_shifts(setting), setting.problem)
    np.testing.assert_allclose(medians, [[0, 1 / 3 - 2 / 7]], atol=1e-6)
    assert GAP_EXACT_CRITERION.losses(setting).tolist() == [[medians[0, 0], medians[0, 0], 0]]


def test_contenders_that_are_not_there_are_nan_and_only_the_first_counts() -> None:
    setting = by_hand(WEIGHT, contenders=2)
    shifts = exact_shifts(setting)
    assert np.isnan(shifts[:, :, 2, 1]).all()
    assert np.isnan(shifts).sum() == 2
    np.testing.assert_array_equal(shifts[..., :2, 0], shifts[..., :2, 1])
    np.testing.assert_array_equal(GAP_EXACT_CRITERION.losses(setting), GAP_EXACT_CRITERION.losses(by_hand(WEIGHT)))


class WithDeadEnds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.pooler, self.unused = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        self.pooler(hidden)
        return hidden


def test_a_layer_that_no_input_reaches_loses_nothing() -> None:
    losses = GAP_EXACT_CRITERION.losses(setting_of(seeded(WithDeadEnds)))
    assert losses[0, 0] > 0
    assert losses[1:].tolist() == [[0, 0], [0, 0]]


def test_a_run_that_was_killed_goes_on_where_it_stopped() -> None:
    model, shelf = seeded(Blocks), Shelf()
    setting = setting_of(model, [inputs(3, 1), inputs(3, 2)], widths=(2, 3, 8), kept=shelf)
    wanted = exact_shifts(setting_of(model, [inputs(3, 1), inputs(3, 2)], widths=(2, 3, 8)))

    for stop in (1, 3, 5):
        killed = Killed(shelf, stop)
        with pytest.raises(KeyboardInterrupt):
            exact_shifts(replace(setting, kept=killed))
        assert killed.left == 0
    assert len(shelf.arrays) == 1 + 3 + 5
    assert exact_shifts(setting).tobytes() == wanted.tobytes()
    model.counts.clear()
    assert exact_shifts(setting).tobytes() == wanted.tobytes()
    assert not model.counts
    lost = next(name for name in shelf.arrays if name.endswith("blocks.1.c"))
    shelf.arrays[lost] = np.zeros(2)  # another problem's
    assert exact_shifts(setting).tobytes() == wanted.tobytes()
    assert model.counts["1.c"] > 0


def test_kept_arrays_are_one_per_layer_width_and_group_size() -> None:
    shelf = Shelf()
    exact_shifts(setting_of(seeded(Blocks), widths=(2, 3, 8), kept=shelf))
    assert len(shelf.arrays) == 6 * 2
    assert all(array.shape == (3, 1) for array in shelf.arrays.values())


class Counting(Silent):
    """Adds up the steps of stages."""

    def __init__(self) -> None:
        self.total = self.steps = 0

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        self.total += total
        yield self.add

    def add(self, steps: int) -> None:
        self.steps += steps


def test_progress_counts_layers_times_widths() -> None:
    progress = Counting()
    setting = setting_of(seeded(Blocks), [inputs(3, 1), inputs(3, 2)], widths=(2, 3, 8))
    exact_shifts(replace(setting, progress=progress))
    assert progress.steps == progress.total == 6 * 2


def test_what_cannot_be_measured_is_refused() -> None:
    setting = by_hand(WEIGHT)
    with pytest.raises(DataError, match="needs calibration inputs, got none"):
        GAP_EXACT_CRITERION.losses(replace(setting, problem=None))
    none = replace(setting.problem, valid=np.zeros((3, 1), dtype=np.bool_))
    with pytest.raises(DataError, match="at least two items"):
        GAP_EXACT_CRITERION.losses(replace(setting, problem=none))
    with pytest.raises(DataError, match="finite gaps, got some that are not with"):
        GAP_EXACT_CRITERION.losses(by_hand([[float("inf"), 1], [1, 1]]))


def test_the_registry_knows_it() -> None:
    assert criterion("gap_exact") is GAP_EXACT_CRITERION
    assert GAP_EXACT_CRITERION.needs_inputs
