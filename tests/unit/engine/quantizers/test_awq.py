"""AWQ by hand and against its library."""

from __future__ import annotations

import pytest
import torch

from quantdrift.engine.quantizers.awq import Awq, SearchedLinear
from quantdrift.engine.quantizers.base import Moments
from quantdrift.engine.quantizers.libraries import AUTOAWQ
from quantdrift.engine.quantizers.rtn import quantize_rtn
from support.quantizer_samples import moments_by_hand, tokens, weights

pytestmark = pytest.mark.skipif(not AUTOAWQ.is_installed(), reason="autoawq is not installed")


def moments_of(inputs: torch.Tensor) -> Moments:
    return moments_by_hand(inputs.T @ inputs / len(inputs), inputs.abs().mean(dim=0))


def test_the_weights_of_a_large_input_are_scaled_up() -> None:
    """Beside a 7 the scale is 1, and plain rounding loses a 0.4 whose input is 100 times larger."""
    weight, second = torch.tensor([[7, 0.4]]), torch.tensor([[1.0, 0], [0, 1e4]])
    made = Awq(bits=4, group_size=None).quantize(weight, moments_by_hand(second))
    assert made.input_scaling is not None
    ratio = made.input_scaling[1] / made.input_scaling[0]
    assert (ratio - 100 ** (torch.arange(20) / 20)).abs().min() < 1e-3
    error = made.dequantize(torch.float32) - weight
    assert (error @ second @ error.T).item() < 0.1 * 0.4**2 * 1e4
    assert quantize_rtn(weight, bits=4, group_size=None).codes.tolist() == [[7, 0]]


@pytest.mark.parametrize(("in_features", "group_size"), [(12, 4), (12, None), (10, 4), (3, 8)])
def test_codes_on_the_librarys_grid_are_what_the_library_rounds_to(in_features: int, group_size: int | None) -> None:
    """Each group on its own, so that a shorter last one needs no padding."""
    weight, method = weights(0, 3, in_features), Awq(bits=3, group_size=group_size, grid="library")
    made = method.quantize(weight, moments_of(tokens(in_features)))
    assert made.input_scaling is not None
    assert -4 <= made.codes.min() <= made.codes.max() <= 3
    groups = (weight * made.input_scaling).split(group_size or in_features, dim=1)
    library = [method._library(group.shape[1]).pseudo_quantize_tensor(group)[0] for group in groups]
    torch.testing.assert_close(made.dequantize(torch.float32), torch.cat(library, dim=1) / made.input_scaling)


def test_the_search_goes_past_an_input_that_was_always_zero() -> None:
    """Weights of 0 change no scale, so the other inputs are scaled as if these were not there."""
    inputs, weight = tokens(6) * torch.tensor([1.0, 1, 0, 1, 9, 1]), weights(0, 4, 6)
    weight[:, 2] = 0
    alive, method = [0, 1, 3, 4, 5], Awq(bits=3, group_size=None)
    made = method.quantize(weight, moments_of(inputs)).input_scaling
    without = method.quantize(weight[:, alive], moments_of(inputs[:, alive])).input_scaling
    assert made is not None
    assert without is not None
    torch.testing.assert_close(made[alive] / made[0], without / without[0])
    assert without.max() > 1.5 * without.min()


def test_the_search_gives_the_layer_its_weights_back() -> None:
    """It saves them by `.cpu()`, which copies nothing on a CPU, and then scales them in place."""
    library = Awq(bits=4, group_size=None)._library(4)
    library.duo_scaling = True  # its first scaling is not all ones, and shows it
    layer, inputs, sizes = SearchedLinear(4, 3, bias=False), torch.eye(4), torch.tensor([1.0, 2, 3, 4])
    before = layer.weight.detach().clone()
    with torch.no_grad():
        library._compute_best_scale(inputs, sizes, sizes, layer, [layer], layer(inputs))
    assert torch.equal(layer.weight.detach(), before)
