"""Laws of the number formats: the nearest number is taken, and a power of two changes nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quantdrift.kinds.quantizer import QUANTIZERS
from support.quantizer_samples import made

FORMATS = [name for name, entry in QUANTIZERS.items() if entry.widths]
every_format = pytest.mark.parametrize("name", FORMATS)
matrices = st.tuples(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 200), st.sampled_from([1, 3, 9]))


def matrix(drawn: tuple[int, int, int, int]) -> Tensor:
    """Weights whose tails are the heavier, the higher the odd power is; some rows of zeros."""
    seed, rows, columns, power = drawn
    generator = torch.Generator().manual_seed(seed)
    weight = (torch.randn(rows, columns, generator=generator) * 0.5) ** power
    weight[torch.rand(rows, generator=generator) < 0.1] = 0
    return weight


@every_format
@given(drawn=matrices)
def test_no_number_of_the_format_is_nearer(name: str, drawn: tuple[int, int, int, int]) -> None:
    """Double quantization finds codes before it rounds the maxima, and LLM.int8() reads float16."""
    weight = matrix(drawn)
    quantized = made(name.removesuffix("_dq"), weight if name != "llm_int8" else weight.half().float())
    exact = weight.half().float() if name == "llm_int8" else weight
    levels = torch.arange(-128.0, 128) if quantized.levels is None else quantized.levels
    levels = levels[1:] if name == "llm_int8" else levels
    scale = quantized.of_column(quantized.scale).double()
    nearest = (levels.double() * scale[..., None] - exact.double()[..., None]).abs().amin(dim=-1)
    error = (quantized.dequantize(torch.float32).double() - exact).abs()
    assert (error <= nearest + 1e-6 * exact.abs() + 2.0**-140).all()


@every_format
@given(drawn=matrices, exponent=st.integers(-6, 6))
def test_a_power_of_two_changes_the_size_alone(name: str, drawn: tuple[int, int, int, int], exponent: int) -> None:
    """But for LLM.int8(), whose float16 has no place for small weights times a small power."""
    weight = matrix(drawn)
    if name == "llm_int8":
        weight = weight.clamp(-64, 64)
        weight[weight.abs() < 2.0**-8] = 0
    once, again = (made(name, w).dequantize(torch.float32) for w in (weight, weight * 2.0**exponent))
    assert torch.equal(again, once * 2.0**exponent)


@pytest.mark.parametrize("name", ["fp8", "fp8_tensor", "mxfp8", "mxfp4", "nvfp4", "llm_int8"])
@given(drawn=matrices)
def test_numbers_below_zero_are_those_above(name: str, drawn: tuple[int, int, int, int]) -> None:
    weight = matrix(drawn)
    once, again = (made(name, w).dequantize(torch.float32) for w in (weight, -weight))
    assert torch.equal(again, -once)
