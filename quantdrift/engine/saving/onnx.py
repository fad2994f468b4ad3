"""A sentence encoder as an ONNX folder: its transformer as a graph with packed weights, and its settings."""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.engine.layers import WeightUse, find_linears
from quantdrift.engine.quantizers.base import QuantizedWeight, n_groups
from quantdrift.engine.saving.candidate import Candidate, save_model_files
from quantdrift.engine.weights import weights_fingerprint
from quantdrift.errors import UnsupportedError
from quantdrift.extras import extras_named
from quantdrift.models.saved import ONNX_MODEL
from quantdrift.progress import Progress

OUTPUT = "last_hidden_state"
AGREEMENT = 1e-4
"""Relative difference to torch above which nothing is written."""
_ONE_FILE = 1_900_000_000
"""Bytes of weights that go into the .onnx file itself; protobuf ends at 2 GiB."""
_TEXTS = (
    "How does the boundary layer of a wing change with the angle of attack?",
    "no",
    "A quantized model can keep its mean score and still give different answers to many of its "
    "users, which only shows when inputs are looked at one by one. " * 4,
)
"""Of different lengths, so that padding is looked at too."""


def need_exporter() -> None:
    """Ask for the packages that exporting and running needs; MissingExtraError if one is not installed."""
    with extras_named(needed_for="writing ONNX"):
        for package in ("onnxscript", "onnx_ir", "onnxruntime"):
            __import__(package)


def save_onnx(candidate: Candidate, folder: Path, progress: Progress) -> dict[str, Any]:
    """Write the model for onnxruntime, with the candidate's codes as packed weights.

    The graph computes in float32, whatever the model's dtype is. Quantized layers behind the transformers model
    (dense layers of sentence-transformers) keep the grid's values as floats.
    """
    need_exporter()
    transformer_of(candidate.model)  # refuses before a copy is made
    model: Any = copy.deepcopy(candidate.model).float()
    if len(find_linears([model])) != len(find_linears([candidate.model])):
        raise UnsupportedError("weights that share memory fall apart in float32. Use --format safetensors")
    candidate.put_into(model)
    transformer = transformer_of(model)
    with torch.no_grad():
        with progress.stage("exporting to ONNX", 1) as tell:
            graph = export_graph(transformer, model_inputs(model, transformer, _TEXTS[:2]))
            tell(1)
        stored = _put_codes(candidate, model, graph, progress)
        save_graph(graph, folder / ONNX_MODEL)
        del graph
        _save_settings(model, transformer, folder)
        with progress.stage("running it beside torch", 1) as tell:
            checked = _check(model, transformer, folder)
            tell(1)
    return {"dtype": "float32", **checked, "stored": stored}


def transformer_of(model: Any) -> nn.Module:
    """The transformers model inside a SentenceTransformer, which is what gets exported."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 -- seconds to import
    from sentence_transformers.sentence_transformer.modules import Transformer  # noqa: PLC0415 -- as above

    first: Any = model[0] if isinstance(model, SentenceTransformer) and len(model) else model
    if type(first) is not Transformer:
        raise UnsupportedError(
            "ONNX is written of sentence-transformers models that begin with a Transformer module; "
            f"this one begins with {type(first).__module__}.{type(first).__name__}. "
            "Use --format safetensors"
        )
    config = first.modality_config.get("text", {})
    taken = config.get("method_output_name", OUTPUT)
    if config.get("method", "forward") != "forward" or taken != OUTPUT:
        raise UnsupportedError(
            f"ONNX is written of models whose text embedding begins with {OUTPUT}; this one takes "
            f"{taken} of {config['method']}(). Use --format safetensors"
        )
    transformer: nn.Module = first.auto_model
    return transformer


def model_inputs(model: Any, transformer: nn.Module, texts: Sequence[str]) -> dict[str, Tensor]:
    """What a SentenceTransformer gives its transformers model for some texts, as one batch."""
    known = inspect.signature(transformer.forward).parameters
    return {
        name: value.to(next(transformer.parameters()).device)
        for name, value in model.preprocess(list(texts)).items()
        if isinstance(value, Tensor) and name in known
    }


def export_graph(transformer: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    """A transformers model as an onnx_ir.Model; batch and sequence are free.

    Initializers keep the names of parameters, with "model." before them. They are not copied: what they hold is what
    the parameters hold when the graph is saved.
    """
    import onnx_ir as ir  # noqa: PLC0415 -- an optional extra

    free = torch.export.Dim.DYNAMIC
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                _States(transformer, list(inputs)).eval(),
                tuple(inputs.values()),
                input_names=list(inputs),
                output_names=[OUTPUT],
                dynamo=True,  # the older exporter bakes the length of the example in
                dynamic_shapes=(tuple({0: free, 1: free} for _ in inputs),),
                optimize=False,  # folding would rename weights; onnxruntime optimizes when it loads
                verbose=False,
            )
    except Exception as error:  # the exporter's own, or whatever the model's code raises
        first: BaseException = error
        while first.__cause__ is not None:  # the exporter's own are pages of advice
            first = first.__cause__
        line = next(iter(str(first).strip().splitlines()), "")
        raise UnsupportedError(
            f"torch {torch.__version__} cannot export {type(transformer).__name__} to ONNX: "
            f"{type(first).__name__}: {line}. Use --format safetensors"
        ) from error
    assert program is not None  # it is None only where a file is asked for
    model = program.model
    (states,) = model.graph.outputs
    for value in (*model.graph.inputs, states):
        rest = () if value is not states or states.shape is None else tuple(states.shape)[2:]
        value.shape = ir.Shape(["batch", "sequence", *rest])
    return model


class _States(nn.Module):
    """A transformers model that takes its inputs by position and returns one tensor."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model = model
        self._names = names

    def forward(self, *inputs: Tensor) -> Tensor:
        states: Tensor = self.model(**dict(zip(self._names, inputs, strict=True)))[OUTPUT]
        return states


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's warnings on what it did not find and what it renamed."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def save_graph(model: Any, path: Path) -> None:
    """Write an onnx_ir.Model, without what it does not use; large weights go into a file beside it."""
    import onnx_ir as ir  # noqa: PLC0415 -- an optional extra
    from onnx_ir.passes import common  # noqa: PLC0415 -- an optional extra

    common.RemoveUnusedNodesPass()(model)
    common.ClearMetadataAndDocStringPass()(model)  # it names files of the machine it was made on
    model.graph.name = "quantdrift"
    model.opset_imports["com.microsoft"] = 1
    weights = model.graph.initializers.values()
    n_bytes = sum(value.const_value.nbytes for value in weights if value.const_value is not None)
    path.parent.mkdir(parents=True, exist_ok=True)
    ir.save(model, path, external_data=None if n_bytes <= _ONE_FILE else f"{path.name}.data")


def _put_codes(candidate: Candidate, model: Any, graph: Any, progress: Progress) -> dict[str, str]:
    """Replace the products of all layers; how each is stored, by name."""
    from quantdrift.engine.saving.onnx_graph import replace_products  # noqa: PLC0415 -- needs onnx_ir

    transformer = transformer_of(model)
    linears = {layer.name: layer for layer in find_linears([model])}
    names: dict[int, list[str]] = {}
    for name, parameter in transformer.named_parameters(remove_duplicate=False):
        names.setdefault(parameter.data_ptr(), []).append(f"model.{name}")
    with WeightUse(list(linears.values())) as use:
        states: Tensor = transformer(**model_inputs(model, transformer, _TEXTS[:2]))[OUTPUT]
        states.sum()  # what the output depends on is what the last operation does
    stored: dict[str, str] = {}
    failed: dict[str, str] = {}
    with progress.stage("packing codes", len(candidate.layers)) as tell:
        for layer in candidate.layers:
            linear = linears[layer.name]
            parameters = names.get(linear.parameter.data_ptr(), [])
            if not parameters:
                stored[layer.name] = "float values of the grid"
            elif layer.name not in use.used:
                stored[layer.name] = "left out: unused layer (does not affect embeddings)"
            elif linear.parameter.dim() != 2:  # noqa: PLR2004 -- a matrix
                failed[layer.name] = "it is one of several matrices in one parameter"
            elif not any(name in graph.graph.initializers for name in parameters):
                failed[layer.name] = "the exported graph has no weight of that name"
            else:
                assert layer.quantized is not None  # a candidate has none that are left alone
                packed = pack(layer.quantized)
                stored[layer.name] = packed.described
                why = replace_products(graph.graph, layer.name, parameters, packed, transposed=linear.transposed)
                failed |= {} if why is None else {layer.name: why}
            tell(1)
    if failed:
        first = [f"{name} ({reason})" for name, reason in list(failed.items())[:3]]
        raise UnsupportedError(
            f"{len(failed)} of {len(candidate.layers)} quantized layers have no matrix product of "
            f"their own in the ONNX graph, and would be stored in float: {'; '.join(first)}. "
            "Use --format safetensors"
        )
    return stored


def _save_settings(model: Any, transformer: nn.Module, folder: Path) -> None:
    """Everything of the model but the transformer's weights, which the graph holds."""

    def settings_only(folder: str, **_: object) -> None:
        config: Any = copy.copy(transformer.config)
        config.architectures = [type(transformer).__name__]
        config.save_pretrained(folder)

    transformer.__dict__["save_pretrained"] = settings_only  # shadows the method, for this object
    save_model_files(model, folder)


def _check(model: Any, transformer: nn.Module, folder: Path) -> dict[str, Any]:
    """Load what was written and compare it with the candidate in torch; UnsupportedError if they differ."""
    from quantdrift.engine.encoders.onnx import file_digest, load_onnx  # noqa: PLC0415 -- needs onnxruntime

    written: Any = load_onnx(folder)
    inputs = model_inputs(model, transformer, _TEXTS)
    tokens = inputs["attention_mask"].bool() if "attention_mask" in inputs else ...
    ours = written[0].auto_model(**inputs)[OUTPUT]
    theirs = transformer(**inputs)[OUTPUT].to(ours.device)
    found = {
        # as one vector: a single token can be at the edge of a LayerNorm, in torch as well
        "states": _difference(ours[tokens].flatten(), theirs[tokens].flatten()),
        "embeddings": _difference(_encode(written), _encode(model)),
    }
    worst = max(found.values())
    if not all(value <= AGREEMENT for value in found.values()):  # NaN is not
        raise UnsupportedError(
            f"onnxruntime and torch give different results for this model: {worst:.1e} relative, "
            f"expected at most {AGREEMENT:.0e}; nothing was written. Use --format safetensors, and "
            "please report the model"
        )
    return {
        "candidate_fingerprint": weights_fingerprint([written]),
        "onnx": {"digest": file_digest(folder).hex(), "difference_to_torch": found},
    }


def _encode(model: Any) -> Tensor:
    embeddings: Tensor = model.encode(list(_TEXTS), show_progress_bar=False, convert_to_tensor=True)
    return embeddings.cpu()


def _difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest ||a - b|| / ||b|| of all vectors; NaN if there is one."""
    apart = (ours.double() - theirs.double()).norm(dim=-1) / theirs.double().norm(dim=-1)
    return float(apart.max())


# --- a quantized weight in the layout of onnxruntime's MatMulNBits --------------------------------

CONTAINERS = (2, 4, 8)
"""Widths that the operator has kernels for."""
BLOCK_SIZES = (16, 32, 64, 128, 256)
"""Block sizes that it has kernels for."""
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedWeight:
    """What MatMulNBits takes, and what stands beside it.

    Attributes:
        codes: uint8 [out_features, n_blocks, block_size * bits / 8], the first code of a byte in its lowest bits.
        scale: float32 [out_features, n_blocks].
        zero_point: uint8 [out_features, ceil(n_blocks * bits / 8)], packed like codes; None where it is 2^(bits-1)
            everywhere.
        bits: width of the container, at least that of the codes.
        block_size: input features that share a scale.
        in_features: columns that are meant; a last block may reach beyond them.
        group_size: input features that share a zero point, for `correction`.
        permutation: int64 [in_features], the order in which columns are stored; None for the given.
        input_scaling: float32 [in_features], to divide the input by; None for ones.
        correction: float32 [n_groups, out_features], to multiply sums over groups of the input with; None where zero
            points are whole numbers.
    """

    codes: NDArray[np.uint8]
    scale: NDArray[np.float32]
    zero_point: NDArray[np.uint8] | None
    bits: int
    block_size: int
    in_features: int
    group_size: int
    permutation: NDArray[np.int64] | None
    input_scaling: NDArray[np.float32] | None
    correction: NDArray[np.float32] | None

    @property
    def described(self) -> str:
        """How it is stored, for the record."""
        beside = {
            "input reordered": self.permutation,
            "input divided": self.input_scaling,
            "fractions of zero points beside it": self.correction,
        }
        parts = [f"MatMulNBits, {self.bits} bits, blocks of {self.block_size}"]
        return ", ".join([*parts, *(name for name, part in beside.items() if part is not None)])


def container_for(bits: int) -> int:
    """The narrowest container that holds codes of a width.

    >>> [container_for(bits) for bits in (2, 3, 4, 5, 8)]
    [2, 4, 4, 8, 8]
    """
    return next(width for width in CONTAINERS if width >= bits)


def block_size_for(in_features: int, group_size: int | None, bits: int) -> int:
    """The block size that takes the least room in a container of some bits; a block lies in one group.

    >>> block_size_for(384, 128, 4), block_size_for(384, 96, 4), block_size_for(384, None, 4)
    (128, 32, 128)
    """
    whole_row = n_groups(in_features, group_size) == 1
    fitting = [size for size in BLOCK_SIZES if whole_row or (group_size or 0) % size == 0]
    if not fitting:
        raise UnsupportedError(
            f"groups of {group_size} weights cannot be written as ONNX: onnxruntime's MatMulNBits "
            f"takes blocks of {', '.join(map(str, BLOCK_SIZES))}; use a group size that is a "
            "multiple of 16, per-channel scales, or --format safetensors"
        )

    def room(size: int) -> int:
        return -(-in_features // size) * (size * bits // 8 + _SCALE_BYTES)

    return min(fitting, key=lambda size: (room(size), -size))


def pack(quantized: QuantizedWeight) -> PackedWeight:
    """Lay out a quantized weight for MatMulNBits; no code changes its meaning."""
    codes = _numpy(quantized.codes)
    out_features, in_features = codes.shape
    permutation = None if quantized.permutation is None else _numpy(quantized.permutation)
    if permutation is not None:
        codes = codes[:, permutation]
    bits = container_for(quantized.bits)
    block_size = block_size_for(in_features, quantized.group_size, bits)
    n_blocks = -(-in_features // block_size)
    group_size = min(quantized.group_size or in_features, in_features)
    group_of_block = np.arange(n_blocks) * block_size // group_size

    offset = 2 ** (bits - 1)
    unsigned = np.zeros((out_features, n_blocks * block_size), np.uint8)
    unsigned[:, :in_features] = codes.astype(np.int16) + offset
    scale = _numpy(quantized.scale).astype(np.float32)
    zero_point = correction = None
    if quantized.zero_point is not None:
        exact = _numpy(quantized.zero_point).astype(np.float64) + offset
        whole = np.clip(np.rint(exact), 0, 2**bits - 1)
        if (whole != offset).any():
            zero_point = _packed(whole.astype(np.uint8)[:, group_of_block], bits)
        if (exact != whole).any():
            correction = ((whole - exact) * scale).T.astype(np.float32)
    return PackedWeight(
        codes=_packed(unsigned, bits).reshape(out_features, n_blocks, block_size * bits // 8),
        scale=np.ascontiguousarray(scale[:, group_of_block]),
        zero_point=zero_point,
        bits=bits,
        block_size=block_size,
        in_features=in_features,
        group_size=group_size,
        permutation=permutation,
        input_scaling=None if quantized.input_scaling is None else _numpy(quantized.input_scaling).astype(np.float32),
        correction=correction,
    )


def _packed(values: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Values of a row into bytes, the first in the lowest bits; the last byte is filled up."""
    per_byte = 8 // bits
    parts = np.pad(values, ((0, 0), (0, -values.shape[1] % per_byte))).reshape(len(values), -1, per_byte)
    shifted = parts << (bits * np.arange(per_byte, dtype=np.uint8))
    return np.asarray(np.bitwise_or.reduce(shifted, axis=2), dtype=np.uint8)


def _numpy(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().numpy()
