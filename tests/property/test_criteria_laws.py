"""Laws of the baselines of bit allocation, and the paper's formulas in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from quantdrift.engine.sensitivity.criteria import criterion
from quantdrift.engine.sensitivity.problem import KeptArrays, Setting
from support import paper_quantizers as paper
from support import sensitivity

WIDTHS = st.lists(st.integers(2, 8), min_size=2, max_size=4, unique=True).map(lambda widths: tuple(sorted(widths)))
GROUPS = st.none() | st.integers(1, 20)
SEEDS = st.integers(0, 2**32 - 1)
BASELINES = ("reconstruction", "sqnr", "activation_error", "activation_salience", "activation_norm", "depth", "random")


def stack(seed: int, n_layers: int) -> tuple[nn.Sequential, torch.Tensor]:
    """Layers of several sizes, and tokens of unequal channels for the first."""
    rng = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 24, (n_layers + 1,), generator=rng).tolist()
    model = nn.Sequential(*[nn.Linear(a, b, bias=False) for a, b in pairwise(sizes)])
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=rng)
    return model, torch.randn(2, 5, sizes[0], generator=rng) * torch.rand(sizes[0], generator=rng)


def setting_of(model: nn.Module, x: torch.Tensor, widths: tuple[int, ...], group_size: int | None) -> Setting:
    return sensitivity.setting_of(model, x, batch_size=1, widths=widths, group_size=group_size)


@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(1, 5), WIDTHS, GROUPS)
def test_losses_fall_to_nothing_at_the_widest(
    seed: int, n_layers: int, widths: tuple[int, ...], group_size: int | None
) -> None:
    setting = setting_of(*stack(seed, n_layers), widths, group_size)
    for name in BASELINES:
        losses = criterion(name).losses(setting)
        assert losses.shape == (n_layers, len(widths))
        assert losses.dtype == np.float64
        assert np.isfinite(losses).all()
        assert not losses[:, -1].any()
        assert (np.diff(losses, axis=1) <= 0).all()


@settings(deadline=None, max_examples=20)
@given(SEEDS, WIDTHS, GROUPS)
def test_scores_are_the_papers(seed: int, widths: tuple[int, ...], group_size: int | None) -> None:
    """In float64, with rounding and inputs worked out apart."""
    model, x = stack(seed, 3)
    setting = setting_of(model, x, widths, group_size)
    inputs = x.reshape(-1, x.shape[-1]).double().numpy()
    wanted: dict[str, list[float]] = {name: [] for name in BASELINES[:5]}
    for layer in setting.layers:
        weight = layer.weight.double().numpy()
        delta = weight - paper.rtn(weight, widths[0], group_size)
        square, size = (inputs**2).mean(axis=0), np.abs(inputs).mean(axis=0)
        wanted["reconstruction"].append((delta**2).mean())
        wanted["sqnr"].append((delta**2).sum() / (weight**2).sum())
        wanted["activation_error"].append((square * delta**2).sum())
        wanted["activation_salience"].append((size * delta**2).sum())
        wanted["activation_norm"].append(square.sum() / 4 ** widths[0])
        inputs = inputs @ weight.T
    for name, scores in wanted.items():
        found = criterion(name).losses(setting)[:, 0]
        assert found == pytest.approx(scores, rel=1e-4, abs=1e-11), name


@settings(deadline=None, max_examples=20)
@given(SEEDS, WIDTHS, GROUPS, st.integers(-8, 8))
def test_scaling_the_weights_scales_reconstruction_by_its_square_and_not_sqnr(
    seed: int, widths: tuple[int, ...], group_size: int | None, power: int
) -> None:
    model, x = stack(seed, 1)
    setting = setting_of(model, x, widths, group_size)
    before = {name: criterion(name).losses(replace(setting, kept=KeptArrays())) for name in BASELINES}
    setting.layers[0].weight.mul_(2.0**power)
    after = {name: criterion(name).losses(replace(setting, kept=KeptArrays())) for name in BASELINES}
    for name in ("reconstruction", "activation_error", "activation_salience"):
        assert np.array_equal(after[name], before[name] * 4.0**power), name
    for name in ("sqnr", "activation_norm", "depth", "random"):
        assert np.array_equal(after[name], before[name]), name


@settings(deadline=None, max_examples=20)
@given(SEEDS, WIDTHS, st.randoms(use_true_random=False))
def test_the_order_of_input_features_does_not_matter_to_whole_channels(
    seed: int, widths: tuple[int, ...], rng: object
) -> None:
    model, x = stack(seed, 1)
    n = x.shape[-1]
    order = torch.tensor(rng.sample(range(n), n))  # type: ignore[attr-defined]
    before = setting_of(model, x, widths, None)
    wanted = {name: criterion(name).losses(before) for name in BASELINES[:5]}
    model[0].weight.data = model[0].weight.data[:, order].contiguous()
    after = setting_of(model, x[..., order], widths, None)
    for name, losses in wanted.items():
        assert np.allclose(criterion(name).losses(after), losses, rtol=1e-6, atol=0), name


@settings(deadline=None, max_examples=15)
@given(SEEDS, GROUPS, st.integers(1, 3))
def test_scaling_the_inputs_scales_by_the_moment(seed: int, group_size: int | None, power: int) -> None:
    model, x = stack(seed, 2)
    factor = 2.0**power
    small, large = (setting_of(model, inputs, (3, 4), group_size) for inputs in (x, factor * x))
    for name, degree in {"activation_error": 2, "activation_salience": 1, "activation_norm": 2}.items():
        losses = criterion(name).losses
        assert np.array_equal(losses(large), losses(small) * factor**degree), name


@settings(deadline=None, max_examples=15)
@given(SEEDS, st.integers(2, 6), WIDTHS)
def test_where_the_width_is_not_looked_at_losses_fade_by_four_a_bit(
    seed: int, n_layers: int, widths: tuple[int, ...]
) -> None:
    setting = replace(setting_of(*stack(seed, n_layers), widths, None), seed=seed)
    fading = 4.0 ** (widths[0] - np.array(widths[:-1]))
    for name in ("activation_norm", "depth", "random"):
        losses = criterion(name).losses(setting)[:, :-1]
        assert np.array_equal(losses, np.outer(losses[:, 0], fading)), name
