"""How far gaps move, and the baselines of bit allocation, on layers that can be worked out by hand."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from quantdrift.base.errors import UnsupportedError
from quantdrift.measuring.problem import Setting
from quantdrift.sensitivity.criteria import distances_from_the_middle, input_moments, losses_of
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


# --- baselines ---------------------------------------------------------------------------------------


ON_INPUTS = ["activation_error", "activation_salience", "activation_norm"]


class Masked(nn.Module):
    """Calls one layer twice, the second time on twice the input, and another never."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.pooler = linear([3, 1.25]), linear([3, 1.25])

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        both: Tensor = self.layer(x) + self.layer(2 * x)
        return both


def test_tokens_of_all_calls_and_batches_count_and_padding_does_not() -> None:
    first, mask = torch.tensor([[[1.0, -2], [100, 100]], [[3, 0], [5, 6]]]), torch.tensor([[1, 0], [1, 1]])
    batches, model = ((first, mask), (torch.tensor([[[0.0, 1]]]), None)), Masked()

    def encode(rows: np.ndarray) -> np.ndarray:
        x, of_x = batches[rows[0]]
        model(x, attention_mask=of_x)
        return np.zeros((len(rows), 1), np.float32)

    setting = setting_of(model, encode, n=2, batch_size=1)
    reached, never = input_moments(setting)
    np.testing.assert_allclose(reached[0], np.array([1 + 9 + 25, 4 + 36 + 1]) * (1 + 4) / 8)
    np.testing.assert_allclose(reached[1], np.array([1 + 3 + 5, 2 + 6 + 1]) * (1 + 2) / 8)
    assert np.array_equal(never, np.zeros((2, 2)))
    for name in ON_INPUTS:
        losses = losses_of(name, setting)
        assert losses[0, 0] > 0
        assert not losses[1].any()  # nothing is lost where nothing arrives
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


@pytest.mark.parametrize(
    "name", ["model.layers.{}.mlp.up_proj", "blocks.{}.attn.qkv", "h.{}.attn.c_attn", "{}.0", "0.layer.{}.a"]
)
def test_layers_of_one_block_are_as_deep(name: str) -> None:
    names = [name.format(block) + part for block in range(5) for part in ("", ".b")]
    assert distances_from_the_middle(names)[::2] == [1, 0.5, 0, 0.5, 1]
    assert distances_from_the_middle(names)[1::2] == [1, 0.5, 0, 0.5, 1]


def test_two_towers_are_two_stacks_and_the_number_of_a_module_counts_no_blocks() -> None:
    text = [f"text_model.encoder.layers.{block}.fc" for block in range(3)]
    image = [f"vision_model.encoder.layers.{block}.fc" for block in range(5)]
    distances = distances_from_the_middle([*text, *image, "visual_projection", "text_projection"])
    assert distances == [1, 0, 1, 1, 0.5, 0, 0.5, 1, 1, 1]
    names = [f"{module}.layers.{block}.fc" for module in range(2) for block in range(3)]
    assert distances_from_the_middle(names, n_modules=2) == [1, 0, 1, 1, 0, 1]
    assert distances_from_the_middle(names, n_modules=1) == [1, 1, 1, 1, 1, 1]


def test_a_weight_that_is_multiplied_by_in_parts_is_refused_where_inputs_are_looked_at() -> None:
    """torch's attention multiplies by all of its projection where queries are keys, and otherwise by a part of it."""
    attention, x = nn.MultiheadAttention(4, 2), torch.randn(3, 4)
    whole = setting_of(attention, lambda rows: attention(*[x[None]] * 3)[0][0, rows].detach().numpy(), n=3)
    np.testing.assert_allclose(input_moments(whole)[0][0], x.square().mean(dim=0), rtol=1e-6)
    parts = setting_of(attention, lambda rows: attention(x + 1, x, x)[0][rows].detach().numpy(), n=3)
    with pytest.raises(UnsupportedError, match="multiplies"):
        input_moments(parts)
