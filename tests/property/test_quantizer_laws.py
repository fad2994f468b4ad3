"""Laws of round to nearest, for any weights."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from quantdrift.builtin.rtn.work import quantize_rtn
from quantdrift.candidate.quantized import group_absmax, spread

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
