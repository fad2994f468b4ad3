"""Laws of the criteria, the paper's formulas in float64, and contributions where models are linear in every layer."""

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quantdrift.sensitivity.criteria import losses_of
from quantdrift.sensitivity.gaps import contributions, rounded
from support import paper_quantizers as paper
from support.sensitivity import drawn, setting_of

WIDTHS = st.lists(st.integers(2, 8), min_size=2, max_size=4, unique=True).map(lambda widths: tuple(sorted(widths)))
GROUPS = st.none() | st.integers(1, 20)
SEEDS = st.integers(0, 2**31)
BASELINES = ("reconstruction", "sqnr", "activation_error", "activation_salience", "activation_norm", "depth", "random")
some = settings(deadline=None, max_examples=20)


def stack(seed: int, n_layers: int) -> tuple[nn.Sequential, Tensor]:
    """Layers of several sizes, and tokens of unequal channels for the first."""
    rng = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 24, (n_layers + 1,), generator=rng).tolist()
    model = nn.Sequential(*[nn.Linear(a, b, bias=False) for a, b in pairwise(sizes)])
    return drawn(model, seed), torch.randn(2, 5, sizes[0], generator=rng) * torch.rand(sizes[0], generator=rng)


@some
@given(SEEDS, st.integers(1, 5), WIDTHS, GROUPS)
def test_losses_fall_to_nothing(seed: int, n_layers: int, widths: tuple[int, ...], group_size: int | None) -> None:
    setting = setting_of(*stack(seed, n_layers), widths=widths, group_size=group_size)
    for name in BASELINES:
        losses = losses_of(name, setting)
        assert losses.shape == (n_layers, len(widths))
        assert np.isfinite(losses).all()
        assert not losses[:, -1].any()
        assert (np.diff(losses, axis=1) <= 0).all()


@some
@given(SEEDS, WIDTHS, GROUPS)
def test_scores_are_the_papers(seed: int, widths: tuple[int, ...], group_size: int | None) -> None:
    """In float64, with rounding and inputs worked out apart."""
    model, x = stack(seed, 3)
    setting = setting_of(model, x, widths=widths, group_size=group_size)
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
        assert losses_of(name, setting)[:, 0] == pytest.approx(scores, rel=1e-4, abs=1e-10), name


class Sum(nn.Module):
    """Layers beside each other, each with inputs of its own: linear in every weight."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([part(x[:, number]) for number, part in enumerate(self.parts)]).sum(dim=0)


@some
@given(seed=SEEDS)
def test_contributions_are_the_shifts_and_those_of_several_layers_add_up(seed: int) -> None:
    """Gaps of rows against directions that stay, which are linear in the outputs."""
    generator, widths = torch.Generator().manual_seed(seed), (2, 3, 8)
    directions = torch.randn(5, 2, 6, generator=generator).double()
    setting = setting_of(
        drawn(Sum(), seed),
        torch.randn(5, 3, 6, generator=generator),
        rows=np.arange(5)[:, None, None].repeat(2, axis=1),
        gap=lambda outputs: (outputs[:, :, 0] * directions).sum(dim=-1),
        widths=widths,
        group_size=4,
    )
    shifts, problem = contributions(setting), setting.gaps
    before = problem.gaps(problem.outputs())
    for layers in [list(chosen) for n in (1, 2, 3) for chosen in combinations(range(3), n)]:
        for column, bits in enumerate(widths):
            with rounded([setting.layers[number] for number in layers], [bits] * len(layers), 4):
                moved = problem.gaps(problem.outputs()) - before
            np.testing.assert_allclose(moved, shifts[:, :, layers, column].sum(axis=-1), atol=2e-4)
    squares = (shifts**2).mean(axis=(0, 1))
    np.testing.assert_allclose(
        losses_of("gap", setting)[:, 0], squares[:, 0] - squares.min(axis=1), rtol=1e-9, atol=1e-15
    )
