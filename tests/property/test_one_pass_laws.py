"""Laws of the one-pass contributions, on models that are linear in every layer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from quantdrift.engine.sensitivity.gaps import contributions, gap_losses, problem_of, rounding_error
from support.sensitivity import setting_of

Array = NDArray[np.float64]
N_ROWS, DIM, N_LAYERS, WIDTHS = 5, 6, 3, (2, 3, 8)
SEEDS = st.integers(0, 2**31)


class Sum(nn.Module):
    """Layers beside each other, each with inputs of its own: linear in every weight."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(DIM, DIM, bias=False) for _ in range(N_LAYERS))
        for layer in self.parts:
            layer.weight.data = torch.randn(DIM, DIM, generator=generator)
        self.x = torch.randn(N_ROWS, N_LAYERS, DIM, generator=generator)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.stack([p(self.x[rows, n]) for n, p in enumerate(self.parts)]).sum(dim=0)


class World:
    """Gaps of rows against directions that stay, which are linear in the outputs."""

    def __init__(
        self, seed: int, *, scale: float = 1.0, after: Callable[[Tensor], Tensor] = lambda outputs: outputs
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.model = Sum(generator)
        directions = scale * torch.randn(N_ROWS, 2, DIM, generator=generator).double()
        self.setting = setting_of(
            self.model,
            torch.arange(N_ROWS),
            rows=np.arange(N_ROWS)[:, None, None].repeat(2, axis=1),
            gap=lambda outputs: (outputs[:, :, 0] * directions).sum(dim=-1),
            after=after,
            widths=WIDTHS,
            group_size=4,
        )
        self.problem = problem_of(self.setting)

    def shift(self, rounded: tuple[int, ...], bits: int) -> Array:
        """How far the gaps really move when these layers are rounded."""
        before = self.problem.gaps(self.problem.outputs())
        kept = {}
        for number in rounded:
            weight = self.setting.layers[number].weight
            kept[number] = weight.clone()
            weight.sub_(rounding_error(self.setting.layers[number], bits, 4))
        after = self.problem.gaps(self.problem.outputs())
        for number, weight in kept.items():
            self.setting.layers[number].weight.copy_(weight)
        return after - before


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_contributions_are_the_shifts_and_those_of_several_layers_add_up(seed: int) -> None:
    world = World(seed)
    found = contributions(world.setting)
    for n in range(1, N_LAYERS + 1):
        for layers in combinations(range(N_LAYERS), n):
            for column, bits in enumerate(WIDTHS):
                expected = found[:, :, list(layers), column].sum(axis=-1)
                np.testing.assert_allclose(world.shift(layers, bits), expected, atol=2e-4)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, scale=st.sampled_from([-100.0, -1.0, 0.0, 0.01, 3.0]))
def test_a_gap_in_other_units_has_contributions_in_these_units(seed: int, scale: float) -> None:
    one, other = World(seed), World(seed, scale=scale)
    np.testing.assert_allclose(
        contributions(other.setting), scale * contributions(one.setting), rtol=1e-4, atol=1e-5 * (1 + abs(scale))
    )
    np.testing.assert_allclose(
        gap_losses(other.setting), scale**2 * gap_losses(one.setting), rtol=1e-3, atol=1e-5 * scale**2
    )


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, which=st.integers(0, N_LAYERS - 1))
def test_a_layer_that_rounding_does_not_change_contributes_nothing(seed: int, which: int) -> None:
    """Weights of -1, 0 and 1 lie on the grid of every width: its ends and its middle."""
    world = World(seed)
    weight = world.setting.layers[which].weight
    weight.copy_(weight.sign())
    found = contributions(world.setting)
    assert not found[:, :, which].any()
    others = [n for n in range(N_LAYERS) if n != which]
    assert np.abs(found[:, :, others, 0]).min(axis=-1).max() > 0
    assert not gap_losses(world.setting)[which].any()


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_what_a_harness_makes_of_unit_length_has_the_slope_of_that(seed: int) -> None:
    """A shift along the vector itself does nothing then, whatever the model put out."""
    world = World(seed, after=lambda outputs: normalize(outputs, dim=-1))
    found = contributions(world.setting)
    before = world.problem.gaps(world.problem.outputs())
    step = 1e-2
    for number, layer in enumerate(world.setting.layers):
        change = rounding_error(layer, WIDTHS[0], 4)
        layer.weight.sub_(step * change)
        above = world.problem.gaps(world.problem.outputs())
        layer.weight.add_(step * change)
        slope = (above - before) / step
        size = np.abs(slope).max() + 1
        np.testing.assert_allclose(found[:, :, number, 0], slope, atol=0.05 * size)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_losses_are_mean_squares_that_fall_to_nothing(seed: int) -> None:
    world = World(seed)
    losses = gap_losses(world.setting)
    squares = (contributions(world.setting) ** 2).mean(axis=(0, 1))
    np.testing.assert_allclose(losses[:, 0], squares[:, 0] - squares.min(axis=1), rtol=1e-9)
    assert (np.diff(losses, axis=1) <= 0).all()
    assert (losses[:, -1] == 0).all()
