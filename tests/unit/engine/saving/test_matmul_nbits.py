"""Codes in the layout of MatMulNBits: bytes by hand, unpacked again, and run by onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from quantdrift.engine.quantizers.base import QuantizedWeight
from quantdrift.engine.saving.onnx import PackedWeight, block_size_for, pack
from quantdrift.errors import UnsupportedError


def quantized(codes: list[list[int]], *, bits: int, **given: Any) -> QuantizedWeight:
    given.setdefault("scale", torch.ones(len(codes), 1))
    given.setdefault("group_size", None)
    return QuantizedWeight(codes=torch.tensor(codes, dtype=torch.int8), bits=bits, **given)


def noisy(bits: int, group_size: int | None, *, width: int = 200, rows: int = 5) -> QuantizedWeight:
    """Random codes of every kind: asymmetric, permuted, scaled."""
    rng = torch.Generator().manual_seed(bits)
    groups = 1 if group_size is None else -(-width // group_size)
    half = 2 ** (bits - 1)
    return QuantizedWeight(
        codes=torch.randint(-half, half, (rows, width), generator=rng).to(torch.int8),
        scale=0.1 + torch.rand(rows, groups, generator=rng),
        bits=bits,
        group_size=group_size,
        zero_point=(torch.rand(rows, groups, generator=rng) - 0.5) * 2.5 * half,  # beyond the codes
        permutation=torch.randperm(width, generator=rng),
        input_scaling=0.5 + torch.rand(width, generator=rng),
    )


def unpacked(packed: PackedWeight) -> NDArray[np.float64]:
    """The weight that a packed one stands for, as [out_features, in_features]."""

    def numbers(data: NDArray[np.uint8], n: int) -> NDArray[np.float64]:
        bits = np.unpackbits(data.reshape(len(data), -1), axis=1, bitorder="little")
        values = bits.reshape(len(data), -1, packed.bits)
        return (values * 2 ** np.arange(packed.bits)).sum(axis=2)[:, :n].astype(np.float64)

    width = packed.in_features
    n_blocks = packed.scale.shape[1]
    block = np.arange(width) // packed.block_size
    zero = np.full((len(packed.codes), n_blocks), 2.0 ** (packed.bits - 1))
    if packed.zero_point is not None:
        zero = numbers(packed.zero_point, n_blocks)
    weight = (numbers(packed.codes, width) - zero[:, block]) * packed.scale[:, block]
    if packed.correction is not None:
        weight = weight + packed.correction.T[:, np.arange(width) // packed.group_size]
    if packed.permutation is not None:
        weight = weight[:, np.argsort(packed.permutation)]
    return weight if packed.input_scaling is None else weight / packed.input_scaling


def test_two_four_bit_codes_share_a_byte_the_first_one_low() -> None:
    packed = pack(quantized([[-8, -7, 0, 7] * 4], bits=4))
    assert packed.codes.shape == (1, 1, 8)  # one block of 16
    assert packed.codes[0, 0, :2].tolist() == [0x10, 0xF8]  # -8 is 0, -7 is 1; 0 is 8, 7 is 15
    assert packed.zero_point is None  # 8, which the operator takes if there is none


def test_zero_points_share_bytes_and_keep_their_fractions_apart() -> None:
    given = quantized(
        [[0] * 32, [0] * 32],
        bits=4,
        group_size=16,
        scale=torch.tensor([[1.0, 2.0], [1.0, 1.0]]),
        zero_point=torch.tensor([[-8.0, 1.25], [0.0, 9.0]]),
    )
    packed = pack(given)
    assert packed.zero_point is not None
    assert packed.correction is not None
    # -8 -> 0, 1.25 -> 9 and a quarter; 0 -> 8, 9 -> 15 and two more than a code can be
    assert packed.zero_point.tolist() == [[0x90], [0xF8]]
    assert packed.correction.tolist() == [[0.0, 0.0], [-0.25 * 2.0, -2.0 * 1.0]]


@pytest.mark.parametrize("group_size", [24, 100, 8])
def test_groups_that_no_block_divides_are_refused(group_size: int) -> None:
    with pytest.raises(UnsupportedError, match=rf"groups of {group_size} .* multiple of 16"):
        block_size_for(384, group_size, 4)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("group_size", [None, 16, 64, 96])
def test_unpacked_is_the_weight_again(bits: int, group_size: int | None) -> None:
    given = noisy(bits, group_size)
    wanted = given.dequantize(torch.float64).numpy()
    np.testing.assert_allclose(unpacked(pack(given)), wanted, rtol=0, atol=4e-6 * 2**bits)


@pytest.mark.parametrize("group_size", [None, 64])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_onnxruntime_computes_what_torch_does(bits: int, group_size: int | None) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    ir = pytest.importorskip("onnx_ir")
    from quantdrift.engine.saving.onnx_graph import replace_products  # noqa: PLC0415 -- needs onnx_ir

    given = noisy(bits, group_size, rows=40)
    weight = given.dequantize(torch.float32).numpy()
    # x W as MatMul has it; the graph then computes without this weight
    value = ir.Value(name="w", const_value=ir.tensor(weight.T.copy()))
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n", 200]))
    node = ir.Node("", "MatMul", [x, value])
    y = node.outputs[0]
    y.name, y.type, y.shape = "y", ir.TensorType(ir.DataType.FLOAT), ir.Shape(["n", 40])
    opsets = {"": 20, "com.microsoft": 1}
    graph = ir.Graph([x], [y], nodes=[node], initializers=[value], opset_imports=opsets)
    assert replace_products(graph, "layer", ["w"], pack(given), transposed=True) is None
    assert "MatMulNBits" in {n.op_type for n in graph}
    assert all(use is not value for n in graph for use in n.inputs)
    proto = ir.to_proto(ir.Model(graph, ir_version=10))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = np.random.default_rng(0).standard_normal((6, 200)).astype(np.float32)
    (found,) = session.run(None, {"x": inputs})
    wanted = inputs.astype(np.float64) @ given.dequantize(torch.float64).numpy().T
    assert np.abs(found - wanted).max() < 2e-6 * np.abs(wanted).max()
