"""ONNX Runtime: which nodes its MatMulNBitsQuantizer leaves alone, and the bits of the others.

Loaded with onnxruntime 1.31. Nodes are named as torch's TorchScript exporter names them, which
optimum uses: /encoder/layer.0/attention/self/query/MatMul. Its newer exporter numbers nodes
instead; such a graph needs names of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from quantdrift.allocation.export.base import as_json, refuse
from quantdrift.allocation.export.names import some
from quantdrift.allocation.stored.record import AllocatedLayer
from quantdrift.widths import FULL_BITS

__all__ = ["OnnxRuntime", "node_name"]

_BLOCK_SIZES = (16, 32, 64, 128, 256)
_ONE_VECTOR = re.compile(r"(?:.*\.)?(?:pooler\.dense|classifier(?:\..+)?|score)")
"""Layers that see one vector of a text: a Gemm node each, which the quantizer does not touch."""
_USAGE = """\
import json
import onnx
from onnxruntime.quantization import matmul_nbits_quantizer as nbits

with open("FILE") as file:
    nodes = json.load(file)
quantizer = nbits.MatMulNBitsQuantizer(
    onnx.load("model.onnx"),
    nodes_to_exclude=nodes["nodes_to_exclude"],
    algo_config=nbits.RTNWeightOnlyQuantConfig(
        customized_weight_config=nodes["customized_weight_config"]
    ),
)
quantizer.process()
quantizer.model.save_model_to_file("model-quantized.onnx")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxRuntime:
    """Nodes that stay as they are, and the settings of each that does not."""

    name: str = "onnxruntime"
    file: str = "onnxruntime_nodes.json"
    usage: str = _USAGE
    widths: tuple[int, ...] = (4, 8)
    needs_units: bool = False

    def check(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> None:
        """Refuse blocks that MatMulNBits has not."""
        if group_size not in _BLOCK_SIZES:
            shown = "whole channels" if group_size is None else f"groups of {group_size}"
            refuse(
                layers,
                f"MatMulNBits has blocks of {', '.join(map(str, _BLOCK_SIZES))}, not {shown}",
                "allocate with one of these, such as -g32",
            )

    def render(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> str:
        """A JSON object with `nodes_to_exclude` and `customized_weight_config`."""
        setting = {"group_size": group_size, "scheme": "sym"}
        nodes = [layer for layer in layers if not _ONE_VECTOR.fullmatch(layer.name)]
        return as_json(
            {
                "nodes_to_exclude": [
                    node_name(layer.name) for layer in nodes if layer.width == FULL_BITS
                ],
                "customized_weight_config": {
                    node_name(layer.name): {"bits": layer.width, **setting}
                    for layer in nodes
                    if layer.width != FULL_BITS
                },
            }
        )

    def notes(self, layers: Sequence[AllocatedLayer]) -> Sequence[str]:
        """Whose names of nodes they are."""
        notes = [
            "nodes are named as optimum's exporter names them; a node of another name would be "
            "quantized to 4 bits without a word, so compare with the graph",
        ]
        quantized = [layer.name for layer in layers if layer.width != FULL_BITS]
        if gemm := [name for name in quantized if _ONE_VECTOR.fullmatch(name)]:
            notes.append(f"{some(gemm)}: a Gemm in the graph, which stays unquantized")
        return notes


def node_name(name: str) -> str:
    """The node that multiplies by a layer's weight: numbers stay with the part before them.

    >>> node_name("encoder.layer.0.attention.self.query")
    '/encoder/layer.0/attention/self/query/MatMul'
    """
    path = ""
    for part in name.split("."):
        path += f".{part}" if part.isdecimal() else f"/{part}"
    return f"{path}/MatMul"
