"""HQQ through its library: the same fit, whatever the shape and size of the weights."""

from itertools import product

import pytest

pytest.importorskip("hqq")

import torch
from hqq.core.quantize import Quantizer

from quantdrift.builtin.hqq.work import BITS, Hqq
from support.quantizer_samples import weights


def test_hqq_is_what_the_library_dequantizes() -> None:
    assert [bits for bits in sorted(Quantizer.SUPPORTED_BITS) if bits >= 2] == list(BITS)
    weight = weights(0, 4, 128)
    for bits, group_size in product(BITS, (32, None)):
        codes, meta = Quantizer.quantize(
            weight, nbits=bits, group_size=group_size or 128, axis=1, bitpack=False, device="cpu"
        )
        made = Hqq(bits=bits, group_size=group_size).quantize(weight).dequantize(torch.float32)
        torch.testing.assert_close(made, Quantizer.dequantize(codes, meta), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("bits", [2, 8])
def test_hqq_does_not_care_for_the_size_of_weights(bits: int) -> None:
    """The library's clamps would leave the small ones a few levels, or one."""
    weight = weights(0, 4, 128)
    quantized = Hqq(bits=bits, group_size=64).quantize(weight)
    small = Hqq(bits=bits, group_size=64).quantize(weight * 2.0**-12)
    assert torch.equal(small.codes, quantized.codes)
    assert torch.equal(small.scale, quantized.scale * 2.0**-12)
