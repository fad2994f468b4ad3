"""AWQ by hand and against its library."""

from __future__ import annotations

import pytest
import torch

from quantdrift.engine.quantizers.awq import Awq
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
