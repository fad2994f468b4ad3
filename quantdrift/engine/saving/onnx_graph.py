"""Float matrix products of an ONNX graph, replaced by ones with packed low-bit weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from quantdrift.engine.saving.onnx import PackedWeight

_DOMAIN = "com.microsoft"
_FLOAT32_ARITHMETIC = 1
"""accuracy_level: what is added up; 4 would quantize the input to 8 bits as well."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphLayer:
    """A layer as the graph has it.

    Attributes:
        name: of the layer.
        parameters: names under which the graph may hold its weight; tied layers have several.
        transposed: whether the weight is held as [in_features, out_features].
        packed: what takes its place.
    """

    name: str
    parameters: Collection[str]
    transposed: bool
    packed: PackedWeight


def replace_products(graph: ir.Graph, layers: Collection[GraphLayer]) -> Mapping[str, str]:
    """Replace every product with a layer's weight; the weight itself is then used by nothing.

    Args:
        graph: changed in place.
        layers: what to replace.

    Returns:
        Layers that could not be replaced, or not everywhere, to the reason. A layer whose weight is
        not in the graph at all is not among them: nothing depends on it.
    """
    failed: dict[str, str] = {}
    for layer in layers:
        products: list[ir.Node] = []
        for parameter in layer.parameters:
            value = graph.initializers.get(parameter)
            if value is None:
                continue
            for node, position in value.uses():
                found = _products(node, position, transposed=layer.transposed)
                if found is None:
                    failed[layer.name] = f"its weight is used by {node.op_type}"
                else:
                    products.extend(found)
        if layer.name not in failed:
            weights = _initializers(graph, layer) if products else {}
            for node in products:
                _replace(graph, node, layer, weights)
    return failed


def _products(node: ir.Node, position: int, *, transposed: bool) -> list[ir.Node] | None:
    """The MatMul and Gemm nodes that compute x W^T from a use of W; None if it is another use."""
    if node.op_type == "Transpose" and not transposed:
        order = node.attributes.get("perm")
        products: list[ir.Node] = []
        for use, its_position in node.outputs[0].uses():
            found = _products(use, its_position, transposed=True)
            if found is None or (order is not None and list(order.as_ints()) != [1, 0]):
                return None
            products.extend(found)
        return products
    if node.op_type == "MatMul":
        fits = transposed
    elif node.op_type == "Gemm":
        plain = all(_number(node, name, 1.0) == 1.0 for name in ("alpha", "beta"))
        flipped = bool(_number(node, "transB", 0))
        fits = plain and not _number(node, "transA", 0) and flipped != transposed
    else:
        fits = False
    return [node] if fits and position == 1 else None


def _number(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else float(attribute.value)


def _initializers(graph: ir.Graph, layer: GraphLayer) -> dict[str, ir.Value]:
    """The packed weight's tensors, as values of the graph."""
    packed = layer.packed
    arrays: dict[str, Any] = {"codes": packed.codes, "scale": packed.scale}
    if packed.zero_point is not None:
        arrays["zero_point"] = packed.zero_point
    if packed.input_scaling is not None:
        arrays["input_scaling"] = packed.input_scaling
    if packed.permutation is not None:
        arrays["permutation"] = packed.permutation
    if packed.correction is not None:
        arrays["correction"] = packed.correction
    made = {part: _initializer(graph, f"{layer.name}.{part}", arrays[part]) for part in arrays}
    if packed.correction is not None:
        made["groups"] = _groups(graph, packed)
    return made


def _groups(graph: ir.Graph, packed: PackedWeight) -> ir.Value:
    """The matrix that sums inputs over groups, one for all layers of the same shape."""
    name = f"groups_of_{packed.group_size}_in_{packed.in_features}"
    if name in graph.initializers:
        return graph.initializers[name]
    n_groups = -(-packed.in_features // packed.group_size)
    group = np.arange(packed.in_features) // packed.group_size
    return _initializer(graph, name, np.eye(n_groups, dtype=np.float32)[group])


def _initializer(graph: ir.Graph, name: str, array: Any) -> ir.Value:
    value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
    value.dtype = ir.DataType.from_numpy(array.dtype)
    value.shape = ir.Shape(array.shape)
    graph.register_initializer(value)
    return value


def _replace(graph: ir.Graph, node: ir.Node, layer: GraphLayer, weights: Mapping[str, ir.Value]) -> None:
    packed = layer.packed
    added: list[ir.Node] = []

    def add(op_type: str, inputs: list[ir.Value | None], domain: str = "", **given: int) -> ir.Value:
        attributes = [ir.AttrInt64(name, value) for name, value in given.items()]
        added.append(ir.Node(domain, op_type, inputs, attributes))
        return added[-1].outputs[0]

    data = node.inputs[0]
    if "input_scaling" in weights:
        data = add("Div", [data, weights["input_scaling"]])
    if "permutation" in weights:
        data = add("Gather", [data, weights["permutation"]], axis=-1)
    taken: list[ir.Value | None] = [data, weights["codes"], weights["scale"]]
    if "zero_point" in weights:
        taken.append(weights["zero_point"])
    result = add(
        "MatMulNBits",
        taken,
        _DOMAIN,
        K=packed.in_features,
        N=len(packed.codes),
        bits=packed.bits,
        block_size=packed.block_size,
        accuracy_level=_FLOAT32_ARITHMETIC,
    )
    added[-1].name = f"{layer.name}.{len(graph)}"  # a shared layer is there several times
    if "correction" in weights:
        sums = add("MatMul", [data, weights["groups"]])
        result = add("Add", [result, add("MatMul", [sums, weights["correction"]])])
    bias = node.inputs[2] if node.op_type == "Gemm" and len(node.inputs) > 2 else None  # noqa: PLR2004 -- A, B and C
    if bias is not None:
        result = add("Add", [result, bias])
    ir.convenience.replace_nodes_and_values(graph, node, [node], added, [node.outputs[0]], [result])
