"""How far gaps move: by rounding, hand-computed; by gradients, whatever harness and model do."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from quantdrift.measuring.problem import Setting
from quantdrift.sensitivity.criteria import losses_of
from quantdrift.sensitivity.gaps import contributions, exact_shifts, mean_square_losses
from support.sensitivity import drawn, linear, setting_of

DIM = 8


def test_the_median_distance_that_gaps_move_by_hand() -> None:
    """One layer's outputs are scores of two items; at 2 bits a row's grid is its absmax times -1, 0, 1.

    [0.9, 0.7] becomes [0.9, 0.9] and [-0.3, 0.5] becomes [-0.5, 0.5], so the difference of the
    rows goes from [1.2, 0.2] to [1.4, 0.4], and the gaps of the three inputs move by 0.2, 0.2, 0.8.
    At 3 bits the grids are 0.3 and 0.5/3 wide: [0.9, 0.6] and [-1/3, 0.5], moves of 1/30, -0.1
    and 2 (1/30 - 0.1).
    """
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
    setting = setting_of(linear([0.9, 0.7], [-0.3, 0.5]), x, widths=(2, 3, 4))
    shifts = exact_shifts(setting)
    assert shifts.shape == (1, 2, 3, 1)
    wanted = [[0.2, 0.2, 0.8], [1 / 30, -0.1, 2 / 30 - 0.2]]
    np.testing.assert_allclose(shifts[0, :, :, 0], wanted, atol=1e-6)
    np.testing.assert_allclose(losses_of("gap_exact", setting), [[0.2, 0.1, 0]], atol=1e-6)


def test_losses_are_mean_squares_over_the_contenders_that_are_there() -> None:
    nan = np.nan
    layer = [[[-2.0, -0.2], [-1.0, -0.1]], [[-0.4, -0.3], [nan, nan]], [[0.0, 0.0], [0.0, 0.0]]]
    losses = mean_square_losses(np.array(layer)[:, :, None])
    # at W3 4, 1, 0.16, 0, 0 over five gaps, at W4 0.04, 0.01, 0.09; the widest width loses nothing
    np.testing.assert_allclose(losses, [[5.16 / 5 - 0.14 / 5, 0.0]])


def one_layer(dtype: torch.dtype = torch.float32, after: Callable[[Tensor], Tensor] = lambda o: o) -> Setting:
    model = drawn(nn.Sequential(nn.Linear(DIM, DIM, bias=False, dtype=dtype)))
    x = torch.randn(4, DIM, generator=torch.Generator().manual_seed(1)).to(dtype)
    return setting_of(model, x, widths=(2, 8), after=after)


def unit(outputs: Tensor) -> Tensor:
    return normalize(outputs, dim=-1)


def test_outputs_of_unit_length_have_the_slope_of_a_direction() -> None:
    """A change along the output does nothing then, so the slope is another; which one it is tests of models show."""
    shifts = contributions(one_layer(after=unit))[..., 0]
    assert np.abs(shifts - contributions(one_layer())[..., 0]).max() > 0.5 * np.abs(shifts).max()
    half = contributions(one_layer(torch.bfloat16, after=unit))[..., 0]  # a length of one up to rounding
    np.testing.assert_allclose(half, shifts, atol=0.05 * np.abs(shifts).max())
