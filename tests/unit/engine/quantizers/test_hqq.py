"""HQQ through its library: the same fit, whatever the shape and size of the weights."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("hqq")

import torch
from hqq.core import optimize
from hqq.core.quantize import Quantizer
from torch import Tensor

from quantdrift.engine.quantizers.hqq import BITS, Hqq


def weights(out_features: int, in_features: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(out_features, in_features, generator=generator) * 0.05


def test_hqq_is_what_the_library_dequantizes() -> None:
    assert [bits for bits in sorted(Quantizer.SUPPORTED_BITS) if bits >= 2] == list(BITS)
    weight = weights(4, 128)
    for bits in BITS:
        codes, meta = Quantizer.quantize(weight, nbits=bits, group_size=32, axis=1, bitpack=False, device="cpu")
        made = Hqq(bits=bits, group_size=32).quantize(weight).dequantize(torch.float32)
        torch.testing.assert_close(made, Quantizer.dequantize(codes, meta), rtol=1e-5, atol=1e-7)


def test_hqq_fits_with_the_papers_settings() -> None:
    settings = inspect.signature(optimize.optimize_weights_proximal).parameters["opt_params"]
    assert settings.default == {"lp_norm": 0.7, "beta": 10, "kappa": 1.01, "iters": 20}


def test_hqq_groups_do_not_span_rows() -> None:
    """To the library, 2 x 60 weights are three groups of 40, one of them in both rows."""
    weight = weights(2, 60) * torch.tensor([[1.0], [1000]])
    made = Hqq(bits=4, group_size=40).quantize(weight)
    parts = [Hqq(bits=4, group_size=None).quantize(part) for part in weight.split(40, dim=1)]
    assert torch.equal(made.codes, torch.cat([part.codes for part in parts], dim=1))
    assert torch.equal(made.scale, torch.cat([part.scale for part in parts], dim=1))
    assert (made.dequantize(torch.float32)[0] - weight[0]).abs().max() < 0.02


@pytest.mark.parametrize("bits", [2, 8])
def test_hqq_does_not_care_for_the_size_of_weights(bits: int) -> None:
    """The library's clamps would leave the small ones a few levels, or one."""
    weight = weights(4, 128)
    quantized = Hqq(bits=bits, group_size=64).quantize(weight)
    small = Hqq(bits=bits, group_size=64).quantize(weight * 2.0**-12)
    assert torch.equal(small.codes, quantized.codes)
    assert torch.equal(small.scale, quantized.scale * 2.0**-12)


def test_hqq_keeps_groups_of_one_value() -> None:
    weight = torch.tensor([[0.3, 0.3, -7e-6, -7e-6, 0, 0, 5]])
    quantized = Hqq(bits=8, group_size=2).quantize(weight)
    assert torch.equal(quantized.dequantize(torch.float32), weight)
