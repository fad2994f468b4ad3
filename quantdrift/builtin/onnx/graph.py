"""Reads an ONNX graph that somebody else wrote: its inputs and outputs, its layers and how they are quantized.

The onnx package reads it as data, before onnxruntime gets it: a file may come from anybody, and it may name other
files that hold its weights.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from quantdrift.base.display import first_line, shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.extras import extras_named
from quantdrift.base.records import file_digest, open_file, texts_digest
from quantdrift.models.bits import BitsReport
from quantdrift.models.stored import stored_bits

_MOST = (1 << 31) - 1
"""Largest graph in bytes, protobuf's limit; larger weights lie in files beside it."""
_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
"""Domains of operators that onnxruntime has itself; those of others would load a library."""
_IN_MEMORY = "_ORT_MEM_ADDR_"
"""In place of a file's name, onnxruntime reads this as an address in memory."""
_FLOATS = {"FLOAT": 32, "FLOAT16": 16, "BFLOAT16": 16, "DOUBLE": 64}
_CODES = {
    **{"INT32": 32, "UINT32": 32, "INT16": 16, "UINT16": 16, "INT8": 8, "UINT8": 8},
    **{"FLOAT8E4M3FN": 8, "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8, "FLOAT8E8M0": 8},
    **{"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2},
}
_WIDTHS: Mapping[str, int] = {**_FLOATS, **_CODES, "INT64": 64, "UINT64": 64, "BOOL": 8}
"""Bits of a number by the name of its type: weights, codes, shapes and positions."""
_LAYERS: Mapping[str, tuple[int, tuple[int, ...]]] = {
    **dict.fromkeys(("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "Attention"), (1, ())),
    "MatMulNBits": (1, (2, 3, 4)),
    "MatMulBnb4": (1, (2,)),
    "MatMulInteger": (1, (3,)),
    "DynamicQuantizeMatMul": (1, (2, 3)),
    "MatMulIntegerToFloat": (1, (3, 5)),
    "QLinearMatMul": (3, (4, 5)),
    "QGemm": (3, (4, 5)),
    "QAttention": (1, (4, 7)),
}
"""Operator of a linear layer to the position of its weight among its inputs, and of scales and zero points."""
_PASSED = frozenset({"Cast", "DequantizeLinear", "Identity", "QuantizeLinear", "Reshape", "Transpose"})
"""Operators between a weight and its product; they pass on their first input."""
_PACKED = frozenset({"MatMulNBits", "MatMulBnb4"})
"""Operators whose weight has several codes in a byte."""
_COUNTED = frozenset({*_LAYERS, *_PASSED, "Gather", "ConvInteger", "QLinearConv"})
"""Operators whose number of weights is known from the shape of their matrix."""
_STEPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLayer:
    """A linear layer as a graph has it.

    Attributes:
        name: name of the weight.
        operator: operator that multiplies, e.g. "MatMulInteger".
        how: kind of quantization: "dynamic", "static QDQ", "static QOperator", "weight-only QDQ" or "weight-only";
            empty for floats.
        width: bits of a code, or of a float.
        n_weights: number of weights.
        code_bytes: bytes of the weight.
        beside: names of its scales, zero points and group indices.
    """

    name: str
    operator: str
    how: str
    width: int
    n_weights: int
    code_bytes: int
    beside: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxGraph:
    """The contents of an ONNX file.

    Attributes:
        file: path of the graph.
        inputs: name to dimensions, None for a free one.
        outputs: name to dimensions, likewise.
        layers: the linear layers.
        bits: bits per weight of the quantized layers, or of all if none is; None where codes are not understood.
        dtype: type of most of the numbers that are not quantized, e.g. "float16".
        data: files beside it that hold weights.
        made: accuracy levels of its products with packed codes, for the record.
    """

    file: Path
    inputs: Mapping[str, tuple[int | None, ...]]
    outputs: Mapping[str, tuple[int | None, ...]]
    layers: tuple[GraphLayer, ...]
    bits: BitsReport | None
    dtype: str
    data: tuple[Path, ...] = ()
    made: Mapping[str, Any] = field(default_factory=dict)

    @property
    def packed(self) -> tuple[GraphLayer, ...]:
        """The layers that are quantized."""
        return tuple(layer for layer in self.layers if layer.how)

    def describe(self) -> dict[str, Any]:
        """Return the kind of quantization as JSON values."""
        widths = Counter(layer.width for layer in self.packed)
        by_bits = {"layers_by_bits": {str(width): n for width, n in sorted(widths.items())}} if len(widths) > 1 else {}
        return {
            "method": dict(Counter(layer.how for layer in self.packed)) or "none",
            **({"bits": next(iter(widths))} if len(widths) == 1 else by_bits),
            "operators": dict(Counter(layer.operator for layer in self.packed)),
            "float_layers": len(self.layers) - len(self.packed),
            "external_data": [path.name for path in self.data],
            **self.made,
        }

    def digest(self) -> str:
        """Return the digest of the graph and of the weights beside it, 32 hex digits."""
        return files_digest((self.file, *self.data))


def files_digest(paths: Iterable[Path]) -> str:
    """Return the digest of several files in their order, 32 hex digits."""
    return texts_digest(map(file_digest, paths), size=16)


def read_graph(file: Path) -> OnnxGraph:
    """Read a graph without its external weights; UnsupportedError if it is damaged or leads out of its folder."""
    with extras_named(needed_for=f"the ONNX model {file}"):
        import onnx  # noqa: PLC0415 -- an optional extra
    try:
        with open_file(file) as opened:
            content = opened.read(_MOST)  # a larger file is cut here, and damaged
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's own, of which there are several
        raise _damaged(file, first_line(error)) from error
    if not model.graph.output:
        raise _damaged(file, "it holds no graph")
    return _Reader(onnx, model, file).graph()


class _Reader:
    """Collects nodes, tensors and layers of a parsed model."""

    def __init__(self, onnx: Any, model: Any, file: Path) -> None:
        self._onnx, self._model, self._file = onnx, model, file
        self._data: dict[Path, None] = {}
        messages = list(_messages(model))
        self._nodes = [message for message in messages if isinstance(message, onnx.NodeProto)]
        domains = {*_DOMAINS, *(function.domain for function in model.functions)}
        for node in self._nodes:
            if node.domain not in domains:
                raise UnsupportedError(
                    f"{file} has operators of the domain {shown(node.domain)} ({shown(node.op_type)}), which a "
                    "library of its own would have to run; expected operators that onnxruntime has itself"
                )
            for attribute in node.attribute if node.op_type == "Constant" else ():
                attribute.t.name = node.output[0] if node.output else ""
        self._tensors: dict[str, Any] = {}
        for number, tensor in enumerate(message for message in messages if isinstance(message, onnx.TensorProto)):
            self._check(tensor)
            self._tensors.setdefault(tensor.name or f"tensor {number}", tensor)
        self._made_by = {name: node for node in self._nodes for name in node.output}

    def graph(self) -> OnnxGraph:
        """Return the graph's contents."""
        graph = self._model.graph
        layers = tuple(self._layers())
        aside = {name for layer in layers for name in layer.beside}
        aside |= {part for name in self._tensors for part in _named_after(name)}
        for node in self._nodes:
            if node.op_type in {"DequantizeLinear", "QuantizeLinear"}:  # also those of activations
                aside.update(node.input[1:])
        sizes = {layer.name: layer.n_weights for layer in layers}
        numbers: Counter[str] = Counter()
        for name in self._tensors.keys() - aside:
            numbers[self._kind(self._tensors[name])] += sizes.get(name, prod(self._tensors[name].dims))
        n_parameters = sum(n for kind, n in numbers.items() if kind in _FLOATS or kind in _CODES)
        dtype = max(_FLOATS, key=lambda kind: numbers[kind])
        given = {value.name for value in graph.initializer}  # older graphs list weights as inputs, too
        named = {"FLOAT": "float32", "DOUBLE": "float64"}
        return OnnxGraph(
            file=self._file,
            inputs={value.name: _dimensions(value) for value in graph.input if value.name not in given},
            outputs={value.name: _dimensions(value) for value in graph.output},
            layers=layers,
            bits=self._bits(layers, n_parameters, aside),
            dtype=named.get(dtype, dtype.lower()),
            data=tuple(sorted(self._data)),
            made={
                "accuracy_level": sorted(
                    {_attribute(node, "accuracy_level") for node in self._nodes if node.op_type == "MatMulNBits"}
                )
            },
        )

    # --- the data of tensors, which must be whole and in the folder ------------------------------

    def _check(self, tensor: Any) -> None:
        """Refuse a tensor whose data are not all there."""
        name, wanted = shown(tensor.name), self._bytes(tensor)
        if any(size < 0 for size in tensor.dims):
            raise _damaged(self._file, f"the tensor {name} is {self._kind(tensor)} {list(tensor.dims)[:8]}")
        if tensor.data_location == self._onnx.TensorProto.EXTERNAL:
            there = self._in_file(tensor, wanted)
        elif tensor.HasField("raw_data"):
            there = len(tensor.raw_data)
        else:  # a list of numbers, whose length onnxruntime checks, or texts
            return
        if there != wanted:
            raise _damaged(self._file, f"the tensor {name} has {there:,} bytes, expected {wanted:,}")

    def _in_file(self, tensor: Any, wanted: int) -> int:
        """Return the bytes of a tensor that lies in another file, which must be in the graph's folder or below it."""
        said = {entry.key: entry.value for entry in tensor.external_data}
        location = said.get("location", "")
        path = PurePosixPath(location.replace("\\", "/"))
        leads_out = path.is_absolute() or ".." in path.parts or PureWindowsPath(location).drive
        if not location or leads_out or _IN_MEMORY in location:
            raise UnsupportedError(
                f"{self._file} keeps weights in {shown(location)}, which is not in its folder; expected files beside it"
            )
        file = self._file.parent / path
        # folders of a hub's cache hold links, which all lead to one other folder
        homes = (self._file.parent.resolve(), self._file.resolve().parent)
        if not file.is_file() or not any(file.resolve().is_relative_to(home) for home in homes):
            raise UnsupportedError(
                f"{self._file} keeps weights in {shown(location)}, and there is no such file in its folder; expected "
                "it beside the graph, under that name"
            )
        self._data[file] = None
        numbers = [said.get("offset") or "0", said.get("length") or str(wanted)]
        if not all(re.fullmatch("[0-9]{1,18}", n) for n in numbers) or sum(map(int, numbers)) > file.stat().st_size:
            raise _damaged(file, f"the tensor {shown(tensor.name)} lies beyond its end")
        return int(numbers[1])

    def _kind(self, tensor: Any) -> str:
        try:
            return str(self._onnx.TensorProto.DataType.Name(tensor.data_type))
        except ValueError:
            return f"of the unknown type {tensor.data_type}"

    def _bytes(self, tensor: Any) -> int:
        n_bits: int = prod(tensor.dims) * _WIDTHS.get(self._kind(tensor), 0)
        return -(-n_bits // 8)

    # --- linear layers, and their bits ------------------------------------------------------------

    def _layers(self) -> Iterator[GraphLayer]:
        seen: set[str] = set()
        for node in self._nodes:
            place, places = _LAYERS.get(node.op_type, (len(node.input), ()))
            if place >= len(node.input):
                continue
            name, passed = self._source(node.input[place])
            tensor, is_packed = self._tensors.get(name), node.op_type in _PACKED
            if tensor is None or name in seen or (len(tensor.dims) != 2 and not is_packed):  # noqa: PLR2004 -- a matrix
                continue
            seen.add(name)
            quantizing = [step for step in passed if step.op_type == "DequantizeLinear"]
            width, n_weights = _WIDTHS.get(self._kind(tensor), 0), prod(tensor.dims)
            if is_packed:
                n_weights = _attribute(node, "K") * _attribute(node, "N")
                width = 4 if node.op_type == "MatMulBnb4" else _attribute(node, "bits") or 4
                if not 0 < n_weights * width <= 8 * self._bytes(tensor):
                    raise _damaged(self._file, f"the weight {shown(name)} has fewer codes than its layer weights")
            beside = {part for step in quantizing for part in step.input[1:]}
            beside |= {node.input[place] for place in places if place < len(node.input)}
            if node.op_type == "MatMulInteger":  # it multiplies codes alone; onnxruntime names the scale after them
                beside |= _named_after(name)
            yield GraphLayer(
                name=name,
                operator=node.op_type,
                how=self._how(node, is_dequantized=bool(quantizing)),
                width=width,
                n_weights=n_weights,
                code_bytes=self._bytes(tensor),
                beside=frozenset(beside & self._tensors.keys()),
            )

    def _source(self, name: str) -> tuple[str, list[Any]]:
        """Return the tensor that a value comes from, and the nodes between them."""
        passed: list[Any] = []
        for _ in range(_STEPS):
            node = self._made_by.get(name)
            if name in self._tensors or node is None or node.op_type not in _PASSED or not node.input:
                break
            passed.append(node)
            name = node.input[0]
        return name, passed

    def _how(self, node: Any, *, is_dequantized: bool) -> str:
        """Return the kind of a layer's quantization; "" for floats."""
        if node.op_type in _PACKED:
            return "weight-only"
        if not _LAYERS[node.op_type][1]:  # an operator of floats
            inputs = self._source(node.input[0])[1] if is_dequantized else []
            static = any(step.op_type == "DequantizeLinear" for step in inputs)
            return "" if not is_dequantized else "static QDQ" if static else "weight-only QDQ"
        made = self._made_by.get(node.input[0])
        static = node.op_type in {"QLinearMatMul", "QGemm"} or (made is not None and made.op_type == "QuantizeLinear")
        return "static QOperator" if static else "dynamic"

    def _bits(self, layers: tuple[GraphLayer, ...], n_parameters: int, aside: set[str]) -> BitsReport | None:
        """Return bits per weight; None where codes have no scale or go into an unknown operator."""
        packed = [layer for layer in layers if layer.how]
        matrices = {
            name
            for name, tensor in self._tensors.items()
            if self._kind(tensor) in _CODES and len(tensor.dims) > 1 and name not in aside
        }
        strange = any(node.op_type not in _COUNTED and matrices.intersection(node.input) for node in self._nodes)
        scaled = [any(self._kind(self._tensors[part]) in _FLOATS for part in layer.beside) for layer in packed]
        if strange or not all(scaled):
            return None
        counted = packed or layers
        codes = sum(layer.code_bytes for layer in counted)
        return stored_bits(
            codes=codes,
            with_scales=codes + sum(self._bytes(self._tensors[name]) for layer in counted for name in layer.beside),
            everything=sum(map(self._bytes, self._tensors.values())),
            n_weights=sum(layer.n_weights for layer in counted),
            n_parameters=n_parameters,
            is_packed=bool(packed),
        )


def _messages(message: Any) -> Iterator[Any]:
    """Yield all parts of a protobuf message at any depth, those of subgraphs and functions included."""
    for field_, value in message.ListFields():
        if field_.message_type is not None:
            for part in value if isinstance(value, Sequence) else (value,):
                yield part
                yield from _messages(part)


def _named_after(name: str) -> set[str]:
    """Return the names that onnxruntime gives to the scale and zero point of codes."""
    base = name.removesuffix("_quantized")
    return {f"{base}_scale", f"{base}_zero_point"} if base != name else set()


def _attribute(node: Any, name: str) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), 0)


def _dimensions(value: Any) -> tuple[int | None, ...]:
    """Return the sizes of an input or output, None for free ones."""
    sizes = value.type.tensor_type.shape.dim
    return tuple(int(size.dim_value) if size.HasField("dim_value") and size.dim_value > 0 else None for size in sizes)


def _damaged(file: Path, why: str) -> UnsupportedError:
    return UnsupportedError(f"{file} is damaged or cut short, expected an ONNX model: {why}. Copy it here again")
