"""Writes a sentence encoder as an ONNX folder: its transformer as a graph with packed weights, and its settings."""

import copy
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.base.display import first_line
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.progress import Progress
from quantdrift.builtin.onnx.running import ONNX_MODEL, graph_digest, load_onnx
from quantdrift.candidate.calibration.in_order import put_in_place
from quantdrift.candidate.libraries import quiet
from quantdrift.candidate.quantized import QuantizedWeight, in_groups
from quantdrift.models.layers import LinearLayer, find_linears
from quantdrift.models.weights import weights_fingerprint

OUTPUT = "last_hidden_state"
AGREEMENT = 1e-4
"""Largest relative difference to torch; above it nothing is written."""
_INSTEAD = "use --format safetensors"
_ONE_FILE = 1_900_000_000
"""Most bytes of weights in the .onnx file itself; protobuf ends at 2 GiB."""
_TEXTS = (
    "How does the boundary layer of a wing change with the angle of attack?",
    "no",
    "A quantized model can keep its mean score and still give different answers to many of its "
    "users, which only shows when inputs are looked at one by one. " * 4,
)
"""Texts of different lengths, so that padding is compared too."""


def save_onnx(model: Any, codes: Mapping[str, QuantizedWeight], folder: Path, progress: Progress) -> dict[str, Any]:
    """Write a SentenceTransformer for onnxruntime, with the codes of its layers as packed weights.

    The graph computes in float32, whatever the model's dtype is. Quantized layers after the transformers model
    (dense layers of sentence-transformers) are stored as floats, with the values of the grid.
    """
    _transformer_of(model)  # a model that cannot be written is refused before it is copied
    layers, model = find_linears([model]), copy.deepcopy(model).cpu().float()
    linears = {layer.name: layer for layer in find_linears([model])}
    if len(linears) != len(layers):
        raise UnsupportedError(f"weights that share memory no longer do in float32; {_INSTEAD}")
    for name, quantized in codes.items():
        put_in_place(linears[name], quantized)
    transformer = _transformer_of(model)
    arguments = inspect.signature(transformer.forward).parameters
    given = model.preprocess(list(_TEXTS))
    inputs = {name: value for name, value in given.items() if isinstance(value, Tensor) and name in arguments}
    with torch.no_grad():
        wanted = _encode(model)
        with progress.stage("exporting to ONNX", 1) as tell:
            inside = set(transformer.modules())
            described = {
                name: put_codes(linears[name], made) if inside.issuperset(linears[name].modules) else ""
                for name, made in codes.items()
            }
            graph = export_graph(States(transformer, list(inputs)), inputs)
            stored = {name: _stored(linears[name], how, transformer, graph) for name, how in described.items()}
            save_graph(graph, folder / ONNX_MODEL)
            tell(1)
        _save_settings(model, transformer, folder)
        with progress.stage("running it beside torch", 1) as tell:
            checked = _check(folder, wanted)
            tell(1)
    return {"dtype": "float32", **checked, "stored": stored}


def _transformer_of(model: Any) -> nn.Module:
    """Return the transformers model inside a SentenceTransformer, which is exported."""
    from sentence_transformers.sentence_transformer.modules import Transformer  # noqa: PLC0415 -- seconds to import

    first: Any = model[0] if len(model) else model
    text = first.modality_config.get("text", {}) if type(first) is Transformer else {"method": "none"}
    if (text.get("method", "forward"), text.get("method_output_name", OUTPUT)) != ("forward", OUTPUT):
        raise UnsupportedError(
            f"ONNX is written of models whose first module is a Transformer of sentence-transformers that gives its "
            f"{OUTPUT}; this one begins with {type(first).__name__}, {text}; {_INSTEAD}"
        )
    transformer: nn.Module = first.auto_model
    return transformer


def export_graph(module: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    """Export a module of `*inputs` [batch, sequence, ...] as an onnx_ir.Model with free batch and sequence sizes.

    Weights keep their names and are not copied: the graph is saved with the values that the module has then.
    """
    from onnx_ir.passes import common  # noqa: PLC0415 -- an optional extra

    free = torch.export.Dim.DYNAMIC
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                module.eval(),
                tuple(inputs.values()),
                input_names=list(inputs),
                output_names=[OUTPUT],
                dynamo=True,  # the older exporter bakes the length of the example in
                dynamic_shapes=(tuple({0: free, 1: free} for _ in inputs),),
                optimize=False,  # folding would rename weights; onnxruntime optimizes at loading
                verbose=False,
            )
    except Exception as error:  # the exporter's, or any other that the model's code raises
        first: BaseException = error
        while first.__cause__ is not None:  # the exporter adds pages of advice
            first = first.__cause__
        raise UnsupportedError(
            f"torch {torch.__version__} cannot export this model to ONNX: {first_line(first)}; {_INSTEAD}"
        ) from error
    assert program is not None  # it is None only where a file is given
    common.RemoveUnusedNodesPass()(program.model)
    common.ClearMetadataAndDocStringPass()(program.model)  # it names files of this machine
    return program.model


class States(nn.Module):
    """A transformers model that takes its inputs by position and returns one tensor."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model = model
        self._names = names

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the states of tokens."""
        states: Tensor = self.model(**dict(zip(self._names, inputs, strict=True)))[OUTPUT]
        return states


def save_graph(model: Any, path: Path) -> None:
    """Write an onnx_ir.Model; large weights go into a file beside it."""
    import onnx_ir as ir  # noqa: PLC0415 -- an optional extra

    model.graph.name = "quantdrift"
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.shape = ir.Shape(["batch", "sequence", *tuple(value.shape)[2:]])
    n_bytes = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    ir.save(model, path, external_data=None if n_bytes <= _ONE_FILE else f"{path.name}.data")


def _stored(layer: LinearLayer, how: str, transformer: nn.Module, graph: Any) -> str:
    """Say how the graph stores a layer, and refuse one that it would store as floats."""
    names = {id(part): f"model.{name}" for name, part in transformer.named_modules()}
    inside = [names[id(module)] for module in layer.modules if id(module) in names]
    parameters, place = transformer.named_parameters(remove_duplicate=False), layer.parameter.data_ptr()
    floats = [f"model.{name}" for name, parameter in parameters if parameter.data_ptr() == place]
    weights = graph.graph.initializers
    if any(name in weights for name in floats):
        raise UnsupportedError(f"{layer.name} would be stored as floats: it is no module that is called; {_INSTEAD}")
    if any(f"{name}.packed_codes" in weights for name in inside):
        return how
    return "left out: unused layer (does not affect embeddings)" if floats else "float values of the grid"


def _save_settings(model: Any, transformer: nn.Module, folder: Path) -> None:
    """Save all of the model but the transformer's weights, which are in the graph."""

    def settings_only(folder: str, **_: object) -> None:
        config: Any = copy.copy(transformer.config)
        config.architectures = [type(transformer).__name__]
        config.save_pretrained(folder)

    transformer.__dict__["save_pretrained"] = settings_only  # shadows the method, for this object
    model.save_pretrained(str(folder), create_model_card=False)


def _check(folder: Path, wanted: Tensor) -> dict[str, Any]:
    """Compare the written model with the candidate in torch; UnsupportedError if they differ."""
    written: Any = load_onnx(folder)
    ours = _encode(written).double()
    apart = float(((ours - wanted.double()).norm(dim=-1) / wanted.double().norm(dim=-1)).max())
    if not apart <= AGREEMENT:  # NaN is not
        raise UnsupportedError(
            f"onnxruntime and torch give different results for this model: {apart:.1e} relative, "
            f"expected at most {AGREEMENT:.0e}; nothing was written. Please report the model, and {_INSTEAD}"
        )
    return {
        "candidate_fingerprint": weights_fingerprint([written]),
        "onnx": {"digest": graph_digest(folder), "difference_to_torch": {"embeddings": apart}},
    }


def _encode(model: Any) -> Tensor:
    embeddings: Tensor = model.encode(list(_TEXTS), show_progress_bar=False, convert_to_tensor=True)
    return embeddings.cpu()


# --- a quantized weight in the layout of onnxruntime's MatMulNBits --------------------------------

CONTAINERS = (2, 4, 8)
"""Widths that MatMulNBits has kernels for."""
BLOCK_SIZES = (16, 32, 64, 128, 256)
"""Block sizes that MatMulNBits has kernels for."""
_FLOAT32_ARITHMETIC = 1
"""accuracy_level: the arithmetic of sums; 4 would also quantize the input to 8 bits."""


def put_codes(layer: LinearLayer, quantized: QuantizedWeight) -> str:
    """Let a layer's modules be exported as a product with packed codes, and say how they are stored.

    y = MatMulNBits(x / input_scaling, in the codes' order) + sums of x over groups (offset - zero_point) scale.
    """
    attributes, parts = pack(quantized)
    n_out, n_in = quantized.codes.shape
    size = min(quantized.group_size or n_in, n_in)

    def product(module: Any, x: Tensor) -> Tensor:
        held = dict(module.named_buffers(recurse=False))
        if "packed_scaling" in held:
            x = x / held["packed_scaling"]
        if "packed_order" in held:
            x = x[..., held["packed_order"]]
        operands = [x, held["packed_codes"], held["packed_scale"]]
        shape = (*x.shape[:-1], n_out)
        y: Tensor = torch.onnx.ops.symbolic(
            "com.microsoft::MatMulNBits", operands, attributes, dtype=x.dtype, shape=shape, version=1
        )
        if "packed_zeros" in held:
            y = y + in_groups(x, size).sum(dim=-1) @ held["packed_zeros"]
        return y if module.bias is None else y + module.bias

    for module in layer.modules:
        for name, part in parts.items():
            module.register_buffer(f"packed_{name}", part, persistent=False)
        module.__dict__["forward"] = lambda x, module=module: product(module, x)
    beside = {"order": "input reordered", "scaling": "input divided", "zeros": "zero points beside it"}
    how = f"MatMulNBits, {attributes['bits']} bits, blocks of {attributes['block_size']}"
    return ", ".join([how, *(words for name, words in beside.items() if name in parts)])


def pack(quantized: QuantizedWeight) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return attributes and tensors of a quantized weight for MatMulNBits; every code keeps its value.

    The tensors are codes, uint8 [out_features, n_blocks, block_size * bits / 8], a byte's first code in its lowest
    bits; scale, float32 [out_features, n_blocks]; and where there are some order, int64 [in_features], scaling, float32
    [in_features], and zeros, float32 [n_groups, out_features], for the sums of groups of the input.
    """
    if quantized.levels is not None:
        raise UnsupportedError(f"MatMulNBits of onnxruntime has no place for the numbers of a format; {_INSTEAD}")
    n_out, n_in = quantized.codes.shape
    bits = next(width for width in CONTAINERS if width >= quantized.bits)
    size = min(quantized.group_size or n_in, n_in)
    block = max((width for width in BLOCK_SIZES if size % width == 0), default=BLOCK_SIZES[0])
    if size % block and size < n_in:
        raise UnsupportedError(
            f"groups of {size} weights cannot be written as ONNX: onnxruntime's MatMulNBits takes blocks of 16 to 256; "
            f"use a group size that is a multiple of 16, per-channel scales, or {_INSTEAD}"
        )
    order, offset, per_byte = quantized.permutation, 2 ** (bits - 1), 8 // bits
    codes = quantized.codes.int() if order is None else quantized.codes.int()[:, order]
    codes = nn.functional.pad(codes + offset, (0, -n_in % block)).view(n_out, -1, per_byte)
    group = torch.arange(0, n_in, block) // size
    parts = {
        "codes": (codes << bits * torch.arange(per_byte)).sum(dim=2).to(torch.uint8).view(n_out, len(group), -1),
        "scale": quantized.scale[:, group].float().contiguous(),
        "order": order,
        "scaling": quantized.input_scaling,
        "zeros": None if quantized.zero_point is None else -(quantized.zero_point * quantized.scale).T.contiguous(),
    }
    attributes = {"K": n_in, "N": n_out, "bits": bits, "block_size": block, "accuracy_level": _FLOAT32_ARITHMETIC}
    return attributes, {name: part for name, part in parts.items() if part is not None}
