"""AWQ by hand."""

import pytest
import torch

from quantdrift.engine.quantizers.awq import Awq
from quantdrift.engine.quantizers.libraries import AUTOAWQ, is_installed
from quantdrift.engine.quantizers.rtn import quantize_rtn
from support.quantizer_samples import moments_by_hand

pytestmark = pytest.mark.skipif(not is_installed(AUTOAWQ), reason="autoawq is not installed")


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
