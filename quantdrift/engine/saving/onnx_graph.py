"""Float matrix products of an ONNX graph, replaced by ones with packed low-bit weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from quantdrift.engine.saving.onnx import PackedWeight

_DOMAIN = "com.microsoft"
_FLOAT32_ARITHMETIC = 1
"""accuracy_level: what is added up; 4 would quantize the input to 8 bits as well."""


def replace_products(
    graph: ir.Graph, name: str, parameters: Collection[str], packed: PackedWeight, *, transposed: bool
) -> str | None:
    """Replace every product with a layer's weight; the weight itself is then used by nothing."""
    products: list[ir.Node] = []
    for parameter in parameters:
        value = graph.initializers.get(parameter)
        for node, position in () if value is None else value.uses():
            found = _products(node, position, transposed=transposed)
            if found is None:
                return f"its weight is used by {node.op_type}"
            products.extend(found)
    weights = _initializers(graph, name, packed) if products else {}
    for node in products:
        _replace(graph, node, name, packed, weights)
    return None


def _products(node: ir.Node, position: int, *, transposed: bool) -> list[ir.Node] | None:
    """The MatMul and Gemm nodes that compute x W^T from a use of W; None if it is another use."""
    if node.op_type == "Transpose" and not transposed:
        order = node.attributes.get("perm")
        if order is not None and list(order.as_ints()) != [1, 0]:
            return None
        found = [_products(use, its_position, transposed=True) for use, its_position in node.outputs[0].uses()]
        return None if None in found else [product for some in found for product in some or ()]
    if node.op_type == "Gemm":
        plain = all(_number(node, name, 1.0) == 1.0 for name in ("alpha", "beta")) and not _number(node, "transA", 0)
        fits = plain and bool(_number(node, "transB", 0)) != transposed
    else:
        fits = node.op_type == "MatMul" and transposed
    return [node] if fits and position == 1 else None


def _number(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else float(attribute.value)


def _initializers(graph: ir.Graph, name: str, packed: PackedWeight) -> dict[str, ir.Value]:
    """The packed weight's tensors, as values of the graph."""
    parts = ("codes", "scale", "zero_point", "input_scaling", "permutation", "correction")
    arrays = {part: array for part in parts if (array := getattr(packed, part)) is not None}
    made = {part: _initializer(graph, f"{name}.{part}", array) for part, array in arrays.items()}
    if packed.correction is not None:  # the matrix that sums inputs over groups, one for all layers of a shape
        groups = f"groups_of_{packed.group_size}_in_{packed.in_features}"
        group = np.arange(packed.in_features) // packed.group_size
        ones = np.eye(len(packed.correction), dtype=np.float32)[group]
        made["groups"] = graph.initializers.get(groups) or _initializer(graph, groups, ones)
    return made


def _initializer(graph: ir.Graph, name: str, array: Any) -> ir.Value:
    value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
    value.dtype = ir.DataType.from_numpy(array.dtype)
    value.shape = ir.Shape(array.shape)
    graph.register_initializer(value)
    return value


def _replace(graph: ir.Graph, node: ir.Node, name: str, packed: PackedWeight, weights: Mapping[str, ir.Value]) -> None:
    added: list[ir.Node] = []

    def add(op_type: str, inputs: list[ir.Value | None], domain: str = "", **given: int) -> ir.Value:
        attributes = [ir.AttrInt64(key, value) for key, value in given.items()]
        added.append(ir.Node(domain, op_type, inputs, attributes))
        return added[-1].outputs[0]

    data = node.inputs[0]
    if "input_scaling" in weights:
        data = add("Div", [data, weights["input_scaling"]])
    if "permutation" in weights:
        data = add("Gather", [data, weights["permutation"]], axis=-1)
    result = add(
        "MatMulNBits",
        [data, *(weights[part] for part in ("codes", "scale", "zero_point") if part in weights)],
        _DOMAIN,
        K=packed.in_features,
        N=len(packed.codes),
        bits=packed.bits,
        block_size=packed.block_size,
        accuracy_level=_FLOAT32_ARITHMETIC,
    )
    added[-1].name = f"{name}.{len(graph)}"  # a shared layer is there several times
    if "correction" in weights:
        sums = add("MatMul", [data, weights["groups"]])
        result = add("Add", [result, add("MatMul", [sums, weights["correction"]])])
    bias = node.inputs[2] if node.op_type == "Gemm" and len(node.inputs) > 2 else None  # noqa: PLR2004 -- A, B and C
    if bias is not None:
        result = add("Add", [result, bias])
    ir.convenience.replace_nodes_and_values(graph, node, [node], added, [node.outputs[0]], [result])
