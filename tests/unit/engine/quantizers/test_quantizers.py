"""Round to nearest by hand: grids of every width, groups, and schemes that are refused."""

from __future__ import annotations

import pytest
import torch

from quantdrift.engine.quantizers.base import group_absmax, n_groups, spread
from quantdrift.engine.quantizers.registry import layer_quantizer, methods_of
from quantdrift.engine.quantizers.rtn import RoundToNearest, quantize_rtn
from quantdrift.errors import SpecError, UnsupportedError
from quantdrift.spec import parse_scheme


def row(*weights: float) -> torch.Tensor:
    return torch.tensor([weights])


def test_four_bits_by_hand() -> None:
    """The largest weight, 7, is the last level, so the scale is 1."""
    quantized = quantize_rtn(row(7, -7, 3.4, -3.6, 0.5, 1.5, 0), bits=4, group_size=None)
    assert quantized.scale.tolist() == [[1]]
    assert quantized.codes.tolist() == [[7, -7, 3, -4, 0, 2, 0]]  # halves go to the even neighbour
    assert quantized.codes.dtype == torch.int8
    assert quantized.dequantize(torch.float32).tolist() == [[7, -7, 3, -4, 0, 2, 0]]


@pytest.mark.parametrize(("bits", "levels"), [(2, 1), (3, 3), (4, 7), (5, 15), (6, 31), (7, 63), (8, 127)])
def test_the_grid_is_symmetric_and_reaches_the_largest_weight(bits: int, levels: int) -> None:
    quantized = quantize_rtn(row(-2, 2, 0.3), bits=bits, group_size=None)
    assert quantized.codes.tolist() == [[-levels, levels, round(0.3 / (2 / levels))]]
    assert quantized.scale.item() == pytest.approx(2 / levels)
    assert quantized.bits == bits


def test_two_bits_leave_three_values() -> None:
    quantized = quantize_rtn(row(1, 0.6, 0.5, 0.4, -0.6), bits=2, group_size=None)
    assert quantized.dequantize(torch.float32).tolist() == [[1, 1, 0, 0, -1]]


def test_each_output_channel_has_its_own_scale() -> None:
    quantized = quantize_rtn(torch.tensor([[7.0, 1], [70, 10]]), bits=4, group_size=None)
    assert quantized.scale.tolist() == [[1], [10]]
    assert quantized.codes.tolist() == [[7, 1], [7, 1]]


@pytest.mark.parametrize(("group_size", "sizes"), [(None, [300]), (128, [128, 128, 44]), (64, [64] * 4 + [44])])
def test_groups_and_a_shorter_last_one(group_size: int | None, sizes: list[int]) -> None:
    """Group number g holds weights of up to 7 (g + 1): its scale is g + 1."""
    parts = [torch.full((1, size), 7.0 * (g + 1)) for g, size in enumerate(sizes)]
    weight = torch.cat(parts, dim=1)
    quantized = quantize_rtn(weight, bits=4, group_size=group_size)
    assert quantized.scale.tolist() == [[g + 1 for g in range(len(sizes))]]
    assert n_groups(300, group_size) == len(sizes)
    assert torch.equal(quantized.dequantize(torch.float32), weight)


def test_a_group_larger_than_the_row_is_the_row() -> None:
    weight = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    grouped = quantize_rtn(weight, bits=3, group_size=128)
    by_channel = quantize_rtn(weight, bits=3, group_size=None)
    assert torch.equal(grouped.scale, by_channel.scale)
    assert torch.equal(grouped.codes, by_channel.codes)


def test_group_absmax_and_spread_by_hand() -> None:
    weight = row(1, -5, 2, 0, -3)
    assert group_absmax(weight, 2).tolist() == [[5, 2, 3]]
    assert spread(torch.tensor([[5, 2, 3]]), 5, 2).tolist() == [[5, 5, 2, 2, 3]]
    assert spread(torch.tensor([[5]]), 3, None).tolist() == [[5, 5, 5]]


def test_a_group_of_zeros_stays_zero() -> None:
    quantized = quantize_rtn(row(0, 0, 7, 1), bits=4, group_size=2)
    assert quantized.scale.tolist() == [[1, 1]]
    assert quantized.dequantize(torch.float32).tolist() == [[0, 0, 7, 1]]


def test_a_scale_that_underflows_gives_zeros() -> None:
    """The least float32 cannot be divided by 127 levels."""
    quantized = quantize_rtn(row(2.0**-149, 0), bits=8, group_size=None)
    assert quantized.codes.tolist() == [[0, 0]]
    assert quantized.dequantize(torch.float32).tolist() == [[0, 0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_divided_in_float32(dtype: torch.dtype) -> None:
    weight = torch.randn(8, 256, generator=torch.Generator().manual_seed(0)).to(dtype)
    quantized = quantize_rtn(weight, bits=8, group_size=128)
    exact = quantize_rtn(weight.float(), bits=8, group_size=128)
    assert torch.equal(quantized.codes, exact.codes)
    assert quantized.scale.dtype == torch.float32
    assert torch.equal(quantized.scale, exact.scale)
    assert torch.equal(quantized.dequantize(dtype), exact.dequantize(torch.float32).to(dtype))


def test_the_weight_is_left_alone() -> None:
    weight = torch.nn.Parameter(torch.tensor([[1.0, 0.3]]))
    quantized = quantize_rtn(weight, bits=2, group_size=None)
    assert weight.tolist() == torch.tensor([[1.0, 0.3]]).tolist()
    assert not quantized.dequantize(torch.float32).requires_grad


# --- from a scheme ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "bits", "group_size"),
    [("W4", 4, 128), ("W2-g64", 2, 64), ("W8-channel-rtn", 8, None), ("W3+query", 3, 128)],
)
def test_a_scheme_decides_bits_and_groups(scheme: str, bits: int, group_size: int | None) -> None:
    weight = torch.randn(4, 200, generator=torch.Generator().manual_seed(0))
    method = layer_quantizer(parse_scheme(scheme))
    assert method is not None
    made = method.quantize(weight, None)
    wanted = quantize_rtn(weight, bits=bits, group_size=group_size)
    assert (made.bits, made.group_size) == (bits, group_size)
    assert torch.equal(made.codes, wanted.codes)


def test_full_width_weights_are_left_alone() -> None:
    assert layer_quantizer(parse_scheme("W16A8")) is None


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("W4+widths=3,4", r"\+widths= is a setting of mixed precision, .* W3.5-rtn\+gap\+widths="),
        ("W4+calib=64", r"\+calib= has no effect on rtn: it takes no setting"),
        ("W4A8+backend=x", r"\+backend= has no effect on rtn: it takes calib, seed"),
        ("W4-hqq+grid=library", r"\+grid= has no effect on hqq: it takes backend"),
    ],
)
def test_what_a_scheme_cannot_do_is_refused(scheme: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        layer_quantizer(parse_scheme(scheme))


def test_a_criterion_has_a_method_for_every_width_that_it_may_choose() -> None:
    methods = methods_of(parse_scheme("W3.5-g64+gap+seed=3+widths=2,3,8"))
    assert {bits: method.bits for bits, method in methods.items()} == {2: 2, 3: 3, 8: 8}
    assert methods[3].quantizer == RoundToNearest(bits=3, group_size=64)
    assert list(methods_of(parse_scheme("W4"))) == [4]
    assert methods_of(parse_scheme("W16A8"))[16].quantizer is None


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("W4+gap", "nothing to choose between"),
        ("W3.5+gap+widths=3,5.5", "unsuitable widths '3,5.5'"),
        ("W3.5+gap+widths=4", "unsuitable widths"),
        ("W3.5+gap+widths=4,4", "unsuitable widths"),
        ("W3.5+gap+widths=4,8", "unsuitable widths '4,8'"),
        ("W3.5+gap+widths=3,9", "unsuitable widths"),
    ],
)
def test_widths_that_cannot_average_to_the_bits_are_refused(scheme: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        methods_of(parse_scheme(scheme))
