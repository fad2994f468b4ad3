"""Codes in the layout of MatMulNBits: bytes by hand, and what onnxruntime computes with them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.onnx.saving import export_graph, pack, put_codes, save_graph
from quantdrift.candidate.quantized import QuantizedWeight
from quantdrift.models.layers import find_linears
from support.candidate_samples import rich


def quantized(codes: list[list[int]], *, bits: int, **given: Any) -> QuantizedWeight:
    given.setdefault("scale", torch.ones(len(codes), 1))
    given.setdefault("group_size", None)
    return QuantizedWeight(codes=torch.tensor(codes, dtype=torch.int8), bits=bits, **given)


def test_two_four_bit_codes_share_a_byte_the_first_one_low() -> None:
    attributes, parts = pack(quantized([[-8, -7, 0, 7] * 4], bits=4))
    assert attributes == {"K": 16, "N": 1, "bits": 4, "block_size": 16, "accuracy_level": 1}
    assert parts["codes"].shape == (1, 1, 8)  # one block of 16
    assert parts["codes"][0, 0, :2].tolist() == [0x10, 0xF8]  # -8 is 0, -7 is 1; 0 is 8, 7 is 15
    assert parts.keys() == {"codes", "scale"}


def test_zero_points_stand_beside_the_codes_and_a_scale_is_repeated_for_every_block() -> None:
    scale, zero_point = torch.tensor([[1.0, 2.0], [1.0, 1.0]]), torch.tensor([[-8.0, 1.25], [0.0, 9.0]])
    given = quantized([[0] * 96, [0] * 96], bits=4, group_size=48, scale=scale, zero_point=zero_point)
    attributes, parts = pack(given)
    assert (attributes["block_size"], parts["scale"].tolist()) == (16, [[1, 1, 1, 2, 2, 2], [1] * 6])
    assert parts["zeros"].tolist() == [[8.0, 0.0], [-2.5, -9.0]]  # for the sums of the two groups of inputs


@pytest.mark.parametrize("group_size", [24, 100, 8])
def test_groups_that_no_block_divides_are_refused(group_size: int) -> None:
    with pytest.raises(UnsupportedError, match=rf"groups of {group_size} .* multiple of 16"):
        pack(rich(torch.randn(1, 384), bits=4, group_size=group_size))


class Many(nn.Module):
    """Layers side by side."""

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(200, 8, bias=number > 0) for number in range(n_layers))

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.cat([layer(inputs[0]) for layer in self.layers], dim=-1)


@pytest.mark.slow
def test_onnxruntime_computes_what_torch_does(tmp_path: Path) -> None:
    """Every width and kind of group, with an order of the inputs, their scaling and zero points."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx_ir")
    kinds = [(bits, group_size) for bits in (2, 3, 4, 6, 8) for group_size in (None, 16, 96)]
    model, x = Many(len(kinds)), torch.randn(3, 6, 200)
    layers = find_linears([model])
    codes = [rich(layer.weight, bits=bits, group_size=size) for layer, (bits, size) in zip(layers, kinds, strict=True)]
    for layer, made in zip(layers, codes, strict=True):
        layer.weight.copy_(made.dequantize(torch.float32))
    wanted = model(x).detach().numpy()
    for layer, made in zip(layers, codes, strict=True):
        assert put_codes(layer, made).endswith("input reordered, input divided, zero points beside it")
    save_graph(export_graph(model, {"x": x}), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {"x": x.numpy()})
    assert np.abs(outputs - wanted).max() < 2e-6 * np.abs(wanted).max()
