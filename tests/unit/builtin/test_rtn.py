"""Round to nearest by hand: grids of every width, and groups."""

import pytest
import torch

from quantdrift.builtin.rtn.work import quantize_rtn


def row(*weights: float) -> torch.Tensor:
    return torch.tensor([weights])


def test_four_bits_by_hand() -> None:
    """The largest weight, 7, is the last level, so the scale is 1."""
    quantized = quantize_rtn(row(7, -7, 3.4, -3.6, 0.5, 1.5, 0), bits=4, group_size=None)
    assert quantized.scale.tolist() == [[1]]
    assert quantized.codes.tolist() == [[7, -7, 3, -4, 0, 2, 0]]  # halves go to the even neighbour
    assert quantized.codes.dtype == torch.int8
    assert quantized.dequantize(torch.float32).tolist() == [[7, -7, 3, -4, 0, 2, 0]]


@pytest.mark.parametrize(("group_size", "sizes"), [(None, [300]), (128, [128, 128, 44]), (64, [64] * 4 + [44])])
def test_groups_and_a_shorter_last_one(group_size: int | None, sizes: list[int]) -> None:
    """Group number g holds weights of up to 7 (g + 1): its scale is g + 1. In the second row all is ten times that."""
    parts = [torch.full((1, size), 7.0 * (g + 1)) for g, size in enumerate(sizes)]
    weight = torch.cat(parts, dim=1) * torch.tensor([[1], [10]])
    quantized = quantize_rtn(weight, bits=4, group_size=group_size)
    scales = [g + 1 for g in range(len(sizes))]
    assert quantized.scale.tolist() == [scales, [10 * scale for scale in scales]]
    assert torch.equal(quantized.dequantize(torch.float32), weight)


@pytest.mark.parametrize(
    ("weights", "bits", "wanted"),
    [
        ((0, 0, 7, 1), 4, [0, 0, 7, 1]),  # a group of zeros has scale 1
        ((2.0**-149, 0, 7, 1), 8, [0, 0, 7, 1]),  # the least float32 cannot be divided by 127 levels
    ],
)
def test_a_group_without_a_scale_is_zeros(weights: tuple[float, ...], bits: int, wanted: list[float]) -> None:
    quantized = quantize_rtn(row(*weights), bits=bits, group_size=2)
    assert quantized.scale[0, 0] == 1
    assert quantized.dequantize(torch.float32).tolist()[0] == pytest.approx(wanted, abs=0.03)
