"""Laws of round to nearest and of the number formats: what is nearest is taken, and a power of two changes nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from quantdrift.builtin.rtn.work import in_parts, quantize_rtn, rounding_change
from quantdrift.candidate.calibration.inputs import output_power
from quantdrift.candidate.quantized import group_absmax, spread
from quantdrift.kinds.quantizer import QUANTIZERS
from support.quantizer_samples import made

# Down to the least normal number times 127 levels: below, a scale has no digits left.
WEIGHTS = st.floats(-(2.0**60), 2.0**60, width=32).map(lambda x: x if abs(x) > 2.0**-100 else 0.0)
MATRICES = arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 40)), elements=WEIGHTS).map(torch.from_numpy)
BITS = st.integers(2, 8)
GROUPS = st.none() | st.integers(1, 50)


@given(MATRICES, BITS, GROUPS)
def test_codes_fill_the_grid_and_err_by_half_a_step_at_most(weight: Tensor, bits: int, group_size: int | None) -> None:
    quantized = quantize_rtn(weight, bits=bits, group_size=group_size)
    levels = 2 ** (bits - 1) - 1
    assert quantized.codes.shape == weight.shape
    assert quantized.scale.shape == (len(weight), -(-weight.shape[1] // (group_size or weight.shape[1])))
    assert (quantized.scale > 0).all()
    some = group_absmax(weight, group_size) > 0  # the largest weight of a group is the last level
    assert torch.equal(group_absmax(quantized.codes, group_size), some.to(torch.int8) * levels)
    scale = spread(quantized.scale, weight.shape[1], group_size).double()
    error = (quantized.codes.double() * scale - weight.double()).abs()
    rounding = 2.0**-23 * levels  # of the scale and of the quotient, in steps
    assert (error <= scale * (0.5 + rounding)).all()
    once = quantized.dequantize(torch.float32)
    twice = quantize_rtn(once, bits=bits, group_size=group_size)
    assert torch.equal(twice.codes, quantized.codes)
    assert torch.equal(twice.dequantize(torch.float32), once)


@given(MATRICES, BITS, GROUPS, st.integers(-20, 20), st.randoms(use_true_random=False))
def test_signs_and_powers_are_kept(weight: Tensor, bits: int, group_size: int | None, power: int, rng: object) -> None:
    order = torch.tensor(rng.sample(range(len(weight)), len(weight)))  # type: ignore[attr-defined]
    plain = quantize_rtn(weight, bits=bits, group_size=group_size)
    moved = quantize_rtn(-weight[order] * 2.0**power, bits=bits, group_size=group_size)
    assert torch.equal(moved.codes, -plain.codes[order])
    some = group_absmax(weight, group_size)[order] > 0
    assert torch.equal(moved.scale[some], plain.scale[order][some] * 2.0**power)


@given(MATRICES, BITS, GROUPS, st.sampled_from([torch.float32, torch.bfloat16]))
def test_the_change_by_rounding_is_that_of_the_codes(
    weight: Tensor, bits: int, group_size: int | None, dtype: torch.dtype
) -> None:
    weight = weight.to(dtype)
    rounded = quantize_rtn(weight, bits=bits, group_size=group_size).dequantize(dtype)
    change = rounding_change(weight, bits=bits, group_size=group_size)
    assert torch.equal(change, rounded.float() - weight.float())
    parts = [rounding_change(part, bits=bits, group_size=group_size) for part in in_parts(weight)]
    assert torch.equal(torch.cat(parts), change)


@given(st.integers(0, 2**31), st.integers(1, 5), st.sampled_from([1, 7, 700]))
def test_the_power_of_an_output_is_that_of_the_whole_product(seed: int, rows: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight, inputs = torch.randn(rows, columns, generator=generator), torch.randn(9, columns, generator=generator)
    plain = (inputs.double() @ weight.double().T).square().sum() / len(inputs)
    assert output_power(weight, inputs.T @ inputs / len(inputs)) == pytest.approx(float(plain), rel=1e-4)


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
