"""An ONNX graph that somebody else wrote: what goes in and comes out, how it is quantized, what it stores.

It is read as data, by the onnx package, before onnxruntime is given it: a file may come from anybody, and its weights
may lie in files that it names.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from quantdrift.base.display import shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.extras import extras_named
from quantdrift.base.records import open_file
from quantdrift.checkpoints.named import first_line

_MOST = (1 << 31) - 1
"""Bytes of a graph; protobuf ends there, and what is larger lies in files beside it."""
_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
"""Operators that onnxruntime has itself; those of others are libraries that would be loaded."""
_IN_MEMORY = "_ORT_MEM_ADDR_"
"""What onnxruntime takes for an address in memory where a file's name belongs."""
_WIDTHS: Mapping[str, int] = {
    **{"DOUBLE": 64, "INT64": 64, "UINT64": 64, "FLOAT": 32, "INT32": 32, "UINT32": 32},
    **{"FLOAT16": 16, "BFLOAT16": 16, "INT16": 16, "UINT16": 16, "INT8": 8, "UINT8": 8, "BOOL": 8},
    **{"FLOAT8E4M3FN": 8, "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8, "FLOAT8E8M0": 8},
    **{"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2},
}
"""Bits of a number, by the type's name."""
_FLOATS = frozenset({"DOUBLE", "FLOAT", "FLOAT16", "BFLOAT16"})
_LAYERS: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "MatMul": (1, ()),
    "Gemm": (1, ()),
    "FusedMatMul": (1, ()),
    "FusedGemm": (1, ()),
    "Attention": (1, ()),
    "MatMulNBits": (1, (2, 3, 4)),
    "MatMulBnb4": (1, (2,)),
    "MatMulInteger": (1, (3,)),
    "DynamicQuantizeMatMul": (1, (2, 3)),
    "MatMulIntegerToFloat": (1, (3, 5)),
    "QLinearMatMul": (3, (4, 5)),
    "QGemm": (3, (4, 5)),
    "QAttention": (1, (4, 7)),
}
"""Operator of a linear layer to the place of its weight among its inputs, and those of what is stored for it."""
_INTEGER = frozenset({"MatMulInteger", "MatMulIntegerToFloat"})
_PASSED = frozenset({"Cast", "DequantizeLinear", "Identity", "QuantizeLinear", "Reshape", "Transpose"})
"""Between a weight and its product; the first input is what comes through."""
_STEPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLayer:
    """A linear layer as a graph has it.

    Attributes:
        name: of the weight.
        operator: that multiplies, e.g. "MatMulInteger".
        how: it is quantized: "dynamic", "static QDQ", "static QOperator", "weight-only QDQ" or "weight-only"; empty
            for floats.
        width: bits of a code, or of a float.
        n_weights: of the layer.
        code_bytes: that the weight takes.
        side_bytes: that scales, zero points and group indices take.
    """

    name: str
    operator: str
    how: str
    width: int
    n_weights: int
    code_bytes: int
    side_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxGraph:
    """What an ONNX file says.

    Attributes:
        file: where it lies.
        inputs: name to dimensions; None for one that is free.
        outputs: likewise.
        layers: the linear layers.
        n_parameters: numbers of the model; codes count, scales and zero points do not.
        n_bytes: of everything that is stored.
        dtype: type of most of the numbers that are not quantized, e.g. "float16".
        data: files beside it that hold weights.
        made: what wrote it, for the record.
    """

    file: Path
    inputs: Mapping[str, tuple[int | None, ...]]
    outputs: Mapping[str, tuple[int | None, ...]]
    layers: tuple[GraphLayer, ...]
    n_parameters: int
    n_bytes: int
    dtype: str
    data: tuple[Path, ...] = ()
    made: Mapping[str, Any] = field(default_factory=dict)

    @property
    def packed(self) -> tuple[GraphLayer, ...]:
        """The layers that are quantized."""
        return tuple(layer for layer in self.layers if layer.how)

    def bits(self) -> dict[str, Any]:
        """The fields of a `BitsReport`, counted over the quantized layers, or over all if none is."""
        counted = self.packed or self.layers
        n_weights = sum(layer.n_weights for layer in counted)
        codes = sum(layer.code_bytes for layer in counted)
        of_all = 8 * self.n_bytes / max(self.n_parameters, 1)
        return {
            "linear": 8 * codes / n_weights if n_weights else of_all,
            "linear_with_scales": 8 * (codes + sum(layer.side_bytes for layer in counted)) / n_weights
            if n_weights
            else of_all,
            "all_parameters": of_all,
            "n_quantized": n_weights if self.packed else 0,
            "n_parameters": self.n_parameters,
        }

    def describe(self) -> dict[str, Any]:
        """How it is quantized, as JSON values."""
        widths = Counter(layer.width for layer in self.packed)
        return {
            "method": dict(Counter(layer.how for layer in self.packed)) or "none",
            **({"bits": next(iter(widths))} if len(widths) == 1 else {}),
            **({"layers_by_bits": {str(width): n for width, n in sorted(widths.items())}} if len(widths) > 1 else {}),
            "operators": dict(Counter(layer.operator for layer in self.packed)),
            "float_layers": len(self.layers) - len(self.packed),
            "external_data": [path.name for path in self.data],
            **self.made,
        }

    def digest(self) -> bytes:
        """A digest of the graph and of the weights beside it: 16 bytes."""
        digest = hashlib.blake2b(digest_size=16)
        for path in (self.file, *self.data):
            with open_file(path) as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
            digest.update(b"\0")
        return digest.digest()


def read_graph(file: Path) -> OnnxGraph:
    """Read a graph, not its external weights; UnsupportedError if it is damaged or leads out of its folder."""
    with extras_named(needed_for=f"the ONNX model {file}"):
        import onnx  # noqa: PLC0415 -- an optional extra
    try:
        with open_file(file) as opened:
            content = opened.read(_MOST)  # of one that is larger, the rest is missing
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's own, of which there are several
        raise _damaged(file, first_line(error)) from error
    if not model.graph.output:
        raise _damaged(file, "it holds no graph")
    return _Reader(onnx.TensorProto.DataType.Name, model, file).graph()


class _Reader:
    """Walks through a model that is parsed."""

    def __init__(self, type_name: Any, model: Any, file: Path) -> None:
        self._type_name, self._model, self._file = type_name, model, file
        self._nodes: list[Any] = []
        self._tensors: dict[str, Any] = {}
        self._data: dict[Path, None] = {}
        domains = {*_DOMAINS, *(function.domain for function in model.functions)}
        for function in model.functions:
            self._walk(function.node, domains)
        self._collect(model.graph, domains)
        self._made_by = {name: node for node in self._nodes for name in node.output}
        self._used_by: dict[str, list[Any]] = {}
        for node in self._nodes:
            for name in node.input:
                self._used_by.setdefault(name, []).append(node)

    def _collect(self, graph: Any, domains: set[str]) -> None:
        for tensor in graph.initializer:
            self._add(tensor.name, tensor)
        for sparse in graph.sparse_initializer:
            self._add(sparse.values.name, sparse.values)
            self._add(f"{sparse.values.name} (indices)", sparse.indices)
        self._walk(graph.node, domains)

    def _walk(self, nodes: Any, domains: set[str]) -> None:
        for node in nodes:
            if node.domain not in domains:
                raise UnsupportedError(
                    f"{self._file} has operators of the domain {shown(node.domain)} ({shown(node.op_type)}), which a "
                    "library of its own would have to run; expected operators that onnxruntime has itself"
                )
            self._nodes.append(node)
            for attribute in node.attribute:
                tensors = [*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors]
                sparse = [*([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else [])]
                for inner in (*sparse, *attribute.sparse_tensors):
                    tensors += [inner.values, inner.indices]
                for number, tensor in enumerate(tensors):
                    constant = node.op_type == "Constant" and node.output and not number
                    self._add(node.output[0] if constant else f"{node.name} {attribute.name} {number}", tensor)
                for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                    self._collect(graph, domains)

    def _add(self, name: str, tensor: Any) -> None:
        """Remember a tensor whose data are all there."""
        self._tensors.setdefault(name, tensor)
        wanted, kind = self._bytes(tensor), self._kind(tensor)
        if any(size < 0 for size in tensor.dims) or (wanted and kind not in _WIDTHS):
            raise _damaged(self._file, f"the tensor {shown(name)} is {kind} {list(tensor.dims)[:8]}")
        if tensor.data_location == 1:  # EXTERNAL
            there = self._in_file(name, tensor, wanted)
        elif tensor.HasField("raw_data"):
            there = len(tensor.raw_data)
        else:  # lists of numbers, of which onnxruntime checks the length; texts have none
            return
        if there != wanted:
            raise _damaged(self._file, f"the tensor {shown(name)} has {there:,} bytes, expected {wanted:,}")

    def _in_file(self, name: str, tensor: Any, wanted: int) -> int:
        """Bytes of a tensor that lies in a file of its own, in the graph's folder or below it."""
        said = {entry.key: entry.value for entry in tensor.external_data}
        location = said.get("location", "")
        path = PurePosixPath(location.replace("\\", "/"))
        leads_out = path.is_absolute() or ".." in path.parts or PureWindowsPath(location).drive
        if not location or leads_out or _IN_MEMORY in location:
            raise UnsupportedError(
                f"{self._file} keeps weights in {shown(location)}, which is not in its folder; expected files beside it"
            )
        file = self._file.parent / path
        # a hub's cache has links in its folders, and all files they lead to in one other
        homes = (self._file.parent.resolve(), self._file.resolve().parent)
        if not file.is_file() or not any(file.resolve().is_relative_to(home) for home in homes):
            raise UnsupportedError(
                f"{self._file} keeps weights in {shown(location)}, and there is no such file in its folder; expected "
                "it beside the graph, under that name"
            )
        self._data[file] = None
        try:
            offset = int(said.get("offset") or 0)
            length = int(said.get("length") or wanted)
        except ValueError:
            offset, length = -1, 0
        if offset < 0 or length < 0 or offset + length > file.stat().st_size:
            raise _damaged(file, f"the tensor {shown(name)} lies behind its end")
        return length

    def _kind(self, tensor: Any) -> str:
        try:
            return str(self._type_name(tensor.data_type))
        except ValueError:
            return f"of the unknown type {tensor.data_type}"

    def _bytes(self, tensor: Any) -> int:
        n_bits: int = prod(tensor.dims) * _WIDTHS.get(self._kind(tensor), 0)
        return -(-n_bits // 8)

    def graph(self) -> OnnxGraph:
        """What was found."""
        graph, opsets = self._model.graph, {each.domain or "ai.onnx": each.version for each in self._model.opset_import}
        given = {value.name for value in graph.initializer}  # older graphs list weights as inputs, too
        layers = tuple(self._layers())
        aside = self._scales()
        floats: Counter[str] = Counter()
        numbers = 0
        for name, tensor in self._tensors.items():
            kind, size = self._kind(tensor), prod(tensor.dims)
            if kind in _FLOATS and name not in aside:
                floats[kind] += size
            # int64 is for shapes and positions
            numbers += 0 if name in aside or kind in {"INT64", "BOOL", "STRING"} else size
        bits = {layer.name: layer for layer in layers}
        numbers += sum(layer.n_weights - prod(self._tensors[name].dims) for name, layer in bits.items())
        most = {"FLOAT": "float32", "DOUBLE": "float64"}
        dtype = floats.most_common(1)[0][0] if floats else "FLOAT"
        return OnnxGraph(
            file=self._file,
            inputs={value.name: _dimensions(value) for value in graph.input if value.name not in given},
            outputs={value.name: _dimensions(value) for value in graph.output},
            layers=layers,
            n_parameters=numbers,
            n_bytes=sum(map(self._bytes, self._tensors.values())),
            dtype=most.get(dtype, dtype.lower()),
            data=tuple(sorted(self._data)),
            made={
                "accuracy_level": sorted({self._attribute(n, "accuracy_level") for n in self._of("MatMulNBits")}),
                "opset": opsets,
                "producer": shown(f"{self._model.producer_name} {self._model.producer_version}".strip() or "unknown"),
            },
        )

    def _of(self, operator: str) -> Iterator[Any]:
        return (node for node in self._nodes if node.op_type == operator)

    def _attribute(self, node: Any, name: str) -> int:
        return next((int(each.i) for each in node.attribute if each.name == name), 0)

    def _scales(self) -> set[str]:
        """Names of scales, zero points and group indices."""
        found = {name for node in self._nodes for name in self._beside(node)}
        for operator in ("DequantizeLinear", "QuantizeLinear"):
            found |= {name for node in self._of(operator) for name in node.input[1:]}
        return found

    def _beside(self, node: Any) -> list[str]:
        """Names of what is stored for a layer beside its weight."""
        _, places = _LAYERS.get(node.op_type, (0, ()))
        names = [node.input[place] for place in places if place < len(node.input)]
        if node.op_type == "MatMulInteger":  # its result is cast, and multiplied with the product of both scales
            cast = [use for use in self._used_by.get(node.output[0], ()) if use.op_type == "Cast"]
            after = {name for use in (node, *cast) for name in use.output}
            scaled = [use for name in after for use in self._used_by.get(name, ()) if use.op_type == "Mul"]
            scales = [self._made_by.get(name) for use in scaled for name in use.input if name not in after]
            names += [name for both in scales if both is not None and both.op_type == "Mul" for name in both.input]
            names += [name for use in scaled for name in use.input]
        return [name for name in names if name in self._tensors]

    def _source(self, name: str) -> tuple[str, list[Any]]:
        """The tensor behind a value, and the nodes that it passes."""
        passed: list[Any] = []
        for _ in range(_STEPS):
            node = self._made_by.get(name)
            if name in self._tensors or node is None or node.op_type not in _PASSED or not node.input:
                break
            passed.append(node)
            name = node.input[0]
        return name, passed

    def _layers(self) -> Iterator[GraphLayer]:
        seen: set[str] = set()
        for node in self._nodes:
            place, _ = _LAYERS.get(node.op_type, (len(node.input), ()))
            if place >= len(node.input):
                continue
            name, passed = self._source(node.input[place])
            tensor = self._tensors.get(name)
            is_packed = node.op_type in {"MatMulNBits", "MatMulBnb4"}
            if tensor is None or name in seen or (len(tensor.dims) != 2 and not is_packed):  # noqa: PLR2004 -- a matrix
                continue
            seen.add(name)
            quantizing = [one for one in passed if one.op_type == "DequantizeLinear"]
            width, n_weights = _WIDTHS[self._kind(tensor)], prod(tensor.dims)
            if is_packed:
                n_weights = self._attribute(node, "K") * self._attribute(node, "N")
                width = 4 if node.op_type == "MatMulBnb4" else self._attribute(node, "bits") or 4
                if not 0 < n_weights * width <= 8 * self._bytes(tensor):
                    raise _damaged(self._file, f"the weight {shown(name)} has fewer codes than its layer weights")
            beside = {*self._beside(node), *(part for one in quantizing for part in one.input[1:])}
            yield GraphLayer(
                name=name,
                operator=node.op_type,
                how=self._how(node, quantizing, is_packed=is_packed),
                width=width,
                n_weights=n_weights,
                code_bytes=self._bytes(tensor),
                side_bytes=sum(self._bytes(self._tensors[part]) for part in beside if part in self._tensors),
            )

    def _how(self, node: Any, quantizing: list[Any], *, is_packed: bool) -> str:
        """How a layer is quantized; empty if it is not."""
        operator, made = node.op_type, self._made_by.get(node.input[0])
        if is_packed:
            return "weight-only"
        if operator in {"MatMul", "Gemm", "FusedMatMul", "FusedGemm", "Attention"}:
            inputs = self._source(node.input[0])[1] if quantizing else []
            static = any(one.op_type == "DequantizeLinear" for one in inputs)
            return "" if not quantizing else "static QDQ" if static else "weight-only QDQ"
        dynamic = {
            "DynamicQuantizeMatMul": True,
            "QAttention": node.input[3] not in self._tensors if len(node.input) > 3 else False,  # noqa: PLR2004 -- scale
        }
        by_input = operator in _INTEGER and (made is None or made.op_type != "QuantizeLinear")
        return "dynamic" if dynamic.get(operator, by_input) else "static QOperator"


def _dimensions(value: Any) -> tuple[int | None, ...]:
    """Of an input or output; None for those that are free."""
    sizes = value.type.tensor_type.shape.dim
    return tuple(int(size.dim_value) if size.HasField("dim_value") and size.dim_value > 0 else None for size in sizes)


def _damaged(file: Path, why: str) -> UnsupportedError:
    return UnsupportedError(f"{file} is damaged or cut short, expected an ONNX model: {why}. Copy it here again")


# --- where a graph lies ---------------------------------------------------------------------------


def graphs_in(folder: Path) -> list[str]:
    """The ONNX files of a model's folder, as optimum, sentence-transformers and the hub lay them: paths in it."""
    found = [*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")]
    return sorted(file.relative_to(folder).as_posix() for file in found if file.is_file())


def holds_weights(folder: Path) -> bool:
    """Whether a folder holds weights of torch, too."""
    return any(
        next(folder.glob(kind), None) for kind in ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
    )


def only_graph(folder: Path, name: str) -> str:
    """The one graph of a folder; an error that lists them if there are several."""
    graphs = graphs_in(folder)
    if len(graphs) > 1:
        listed = ", ".join(graphs[:12]) + (f" and {len(graphs) - 12} more" if len(graphs) > 12 else "")  # noqa: PLR2004
        raise UnsupportedError(
            f"{name} holds {len(graphs)} ONNX models: {listed}; name the one to run: {name.rstrip('/')}/{graphs[0]}"
        )
    return graphs[0]


def folder_of(file: Path) -> Path:
    """The model's folder of an ONNX file: where its config.json lies, the file's own folder or the one above."""
    for folder in (file.parent, file.parent.parent):
        if (folder / "config.json").is_file() or (folder / "modules.json").is_file():
            return folder
    raise UnsupportedError(
        f"{file} has no config.json beside it or in the folder above; expected a model's folder (config.json, "
        "tokenizer.json) with the graph at its top or in onnx/"
    )
