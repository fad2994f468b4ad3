"""An allocation in the words of the libraries and runtimes that quantize by themselves: a function for each format."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantdrift.allocation.record import AllocatedLayer, Allocation
from quantdrift.allocation.units import runtime_units
from quantdrift.display import json_text
from quantdrift.errors import UnknownNameError, UnsupportedError
from quantdrift.spec import FULL_BITS

Layers = Sequence[AllocatedLayer]

_NUMBERED = re.compile(r"[0-9]+\.(?P<rest>.+)")
_HOLDERS = ("model.", "auto_model.")
_NO_MODULE = re.compile(r".*\.(?:gate_up_proj|up_proj|down_proj|weight)\.[0-9]+|(?:.*\.)?(?:in|q|k|v)_proj_weight")
"""A matrix in a stack of experts, and the input projections that attention keeps itself."""


Content = tuple[str | Mapping[str, object], Sequence[str]]
"""A text or a JSON object, and notes for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """A format that a quantization library or a runtime reads.

    Attributes:
        name: what the format is called on the command line.
        file: usual name of the file.
        usage: how the file is used: Python that names it "FILE", or a line for the shell with FILE.
        widths: bits per weight that it can express; unquantized layers (16) are possible in all.
        content: from layers, with the names that runtimes know them by, and group size to the file and notes for the
            user; refuses what else the format cannot express.
        needs_units: whether what reads it multiplies query, key and value at once, so that they need one width.
        whole_groups: whether groups have to divide the layers' inputs.
    """

    name: str
    file: str
    usage: str
    widths: tuple[int, ...]
    content: Callable[[Layers, int | None], Content]
    needs_units: bool = False
    whole_groups: bool = False


EXPORTERS: dict[str, Exporter] = {}
"""Format to exporter, in the order in which they are shown."""


def _format(name: str, **settings: Any) -> Callable[[Callable[[Layers, int | None], Content]], Exporter]:
    """Take a function into the table of formats."""

    def added(content: Callable[[Layers, int | None], Content]) -> Exporter:
        EXPORTERS[name] = Exporter(name=name, content=content, **settings)
        return EXPORTERS[name]

    return added


def exporter(name: str) -> Exporter:
    """The exporter of that format, one of `EXPORTERS`."""
    if name not in EXPORTERS:
        raise UnknownNameError("format", name, EXPORTERS, hint=f"(one of {', '.join(EXPORTERS)})")
    return EXPORTERS[name]


def export_allocation(allocation: Allocation, exporter: Exporter) -> tuple[str, tuple[str, ...]]:
    """The file of an allocation in a format, and notes for the user."""
    layers, group_size = runtime_layers(allocation), allocation.group_size
    quantized = [layer for layer in layers if layer.width != FULL_BITS]
    widths = ",".join(map(str, exporter.widths))
    if wrong := [layer for layer in quantized if layer.width not in exporter.widths]:
        offered = "4,8" if {4, 8} <= set(exporter.widths) else widths
        has = f"{exporter.name} has widths of {widths.replace(',', ', ')}"
        raise _refused(wrong, has, f"allocate with some of these, such as +widths={offered}")
    if exporter.needs_units and (apart := _untied(layers)):
        why = f"what reads {exporter.name} multiplies them at once and needs one width for them"
        raise _refused(apart, why, "allocate with +units=fused")
    if group_size and exporter.whole_groups and (short := [x for x in quantized if x.shape[1] % group_size]):
        needs = f"{exporter.name} needs input widths that groups of {group_size} divide; the first has"
        remedy = "allocate with a group size that does, or leave the layers out with --keep"
        raise _refused(short, f"{needs} {short[0].shape[1]}", remedy)
    content, notes = exporter.content(layers, group_size)
    return content if isinstance(content, str) else f"{json_text(content)}\n", tuple(notes)


def usage_of(exporter: Exporter, file: str) -> str:
    """Lines that use a file, at the place where it was written: Python as it stands, or a line for the shell."""
    if '"FILE"' in exporter.usage:
        return exporter.usage.replace('"FILE"', repr(file))
    return exporter.usage.replace("FILE", shlex.quote(file))


# --- names -------------------------------------------------------------------------------------------


def runtime_layers(allocation: Allocation) -> tuple[AllocatedLayer, ...]:
    """The layers inside the transformers model, named by their path in it."""
    inside, outside = [], []
    for layer in allocation.layers:
        name: str | None = layer.name
        if numbered := _NUMBERED.fullmatch(layer.name):
            rest: str = numbered["rest"]
            name = next((rest.removeprefix(holder) for holder in _HOLDERS if rest.startswith(holder)), None)
        if name is not None:
            inside.append(layer.model_copy(update={"name": name}))
        elif layer.width != FULL_BITS:
            outside.append(layer.name)
    if outside:
        raise UnsupportedError(
            f"{some(outside)}: outside the transformers model, which is all that runtimes load; leave such layers "
            f"unquantized: quantdrift allocate ... --keep '{outside[0]}'"
        )
    counts = Counter(layer.name for layer in inside)
    if twice := [name for name, count in counts.items() if count > 1]:
        expected = "expected an allocation of one transformers model"
        raise UnsupportedError(f"{some(twice)}: in more than one of the model's modules; {expected}")
    if parts := [name for name in counts if _NO_MODULE.fullmatch(name)]:
        raise UnsupportedError(
            f"{some(parts)}: part of a larger module (a stack of experts, or attention with projections of its own), "
            "which no format can give a width alone"
        )
    if all(layer.width == FULL_BITS for layer in inside):
        raise UnsupportedError(
            "no layer of the transformers model is quantized; expected an allocation with a width of 2 to 8 for one"
        )
    return tuple(inside)


def anywhere(name: str, names: Sequence[str]) -> str:
    r"""A regular expression for a layer, whatever model class holds the transformers model.

    An encoder's `layers.0.mlp.up_proj` is `model.layers.0.mlp.up_proj` in a causal LM. The expression matches both,
    and needs no more than re, PCRE and std::regex have in common. Where one of all names ends in `name`, only the
    whole name matches.

    >>> anywhere("layers.0.fc", ["layers.0.fc", "layers.10.fc"])
    '^(?:.*\\.)?layers\\.0\\.fc$'
    """
    held = any(other.endswith(f".{name}") for other in names)
    before = "" if held else r"(?:.*\.)?"
    return f"^{before}{re.escape(name)}$"


def some(names: Sequence[str]) -> str:
    """A few of the names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""  # noqa: PLR2004 -- as many are shown
    return ", ".join(names[:3]) + more


def _refused(layers: Layers, why: str, remedy: str) -> UnsupportedError:
    shown = some([f"{layer.name} ({layer.width} bits)" for layer in layers])
    return UnsupportedError(f"{shown}: {why}; {remedy}")


def _untied(layers: Layers) -> list[AllocatedLayer]:
    """Layers that vLLM and SGLang multiply at once and that do not all have the same width."""
    units = runtime_units([layer.name for layer in layers]).tolist()
    widths: dict[int, set[int]] = {}
    for layer, unit in zip(layers, units, strict=True):
        widths.setdefault(unit, set()).add(layer.width)
    return [layer for layer, unit in zip(layers, units, strict=True) if len(widths[unit]) > 1]


def _vllm_note(layers: Layers) -> Sequence[str]:
    note = (
        "vLLM and SGLang cannot run it: layers that they multiply at once have different widths here. Allocate with "
        "+units=fused for them"
    )
    return [note] if _untied(layers) else []


# --- GPTQModel: the arguments of its QuantizeConfig, widths of layers under `dynamic` ----------------

_GPTQMODEL_GROUPS = (16, 32, 64, 128, 256, 512, 1024)
_FUSED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "query", "key", "value"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
}
"""Last part of a layer's name to that of the layer vLLM and SGLang make of it and its siblings."""


@_format(
    "gptqmodel",
    file="quantize_config.json",
    usage="""\
import json
from gptqmodel import GPTQModel, QuantizeConfig

config = QuantizeConfig(**json.load(open("FILE")))
# model = GPTQModel.load("MODEL", config); model.quantize(texts); model.save("FOLDER")
""",
    widths=(2, 3, 4, 5, 6, 7, 8),
)
def _gptqmodel(layers: Layers, group_size: int | None) -> Content:
    if group_size is not None and group_size not in _GPTQMODEL_GROUPS:
        has = f"gptqmodel has groups of {', '.join(map(str, _GPTQMODEL_GROUPS))} and whole channels, not of"
        raise _refused(layers, f"{has} {group_size}", "allocate with one of these, such as -g128 or -channel")
    size = -1 if group_size is None else group_size
    # an expression for each unit that has a fused name and one width, or else for each layer
    names, apart = [layer.name for layer in layers], {layer.name for layer in _untied(layers)}
    units: dict[tuple[str, str], list[AllocatedLayer]] = {}
    for layer in layers:
        parent, _, last = layer.name.rpartition(".")
        fused = _FUSED.get(last, last) if layer.name not in apart else last
        units.setdefault((parent, fused), []).append(layer)
    dynamic: dict[str, dict[str, int]] = {}
    for (parent, fused), members in units.items():
        pattern = anywhere(members[0].name, names)
        lasts = [member.name.removeprefix(f"{parent}.") for member in members]
        if parent and len(lasts) > 1:
            ending = "|".join(map(re.escape, [*lasts, fused]))
            pattern = pattern.removesuffix(f"{re.escape(lasts[0])}$") + f"(?:{ending})$"
        if members[0].width == FULL_BITS:
            dynamic[f"-:{pattern}"] = {}
        else:
            dynamic[pattern] = {"bits": members[0].width, "group_size": size}
    ((common, _),) = Counter(layer.width for layer in layers if layer.width != FULL_BITS).most_common(1)
    config = {"bits": common, "group_size": size, "sym": True, "desc_act": False, "dynamic": dynamic}
    return config, _vllm_note(layers)


# --- transformers' HqqConfig(dynamic_config=...): one setting for a kind of layer -------------------


@_format(
    "hqq",
    file="hqq_config.json",
    usage="""\
import json
from transformers import HqqConfig

config = HqqConfig(**json.load(open("FILE")))
# AutoModel.from_pretrained("MODEL", quantization_config=config)
""",
    widths=(2, 3, 4, 5, 6, 8),
    whole_groups=True,
)
def _hqq(layers: Layers, group_size: int | None) -> Content:
    if group_size is not None and group_size % 8:
        has = f"hqq has groups of multiples of 8, not of {group_size}"
        raise _refused(layers, has, "allocate with one of these, such as -g64")
    kinds: dict[str, AllocatedLayer] = {}
    for layer in layers:
        other = kinds.setdefault(tag := linear_tag(layer.name), layer)
        if other.width != layer.width:
            raise _refused(
                [other, layer],
                f"HqqConfig has one setting for {tag} in all blocks",
                "give the kinds of layers one width each with --keep '*.KIND=BITS', or use a format that tells blocks "
                "apart (gptqmodel, torchao)",
            )
    grid = {"group_size": group_size, "axis": 1}
    quantized = {tag: {"nbits": layer.width, **grid} for tag, layer in kinds.items() if layer.width != FULL_BITS}
    return {"dynamic_config": quantized}, ()


def linear_tag(name: str) -> str:
    """What HqqConfig calls the kind of a layer: its path without numbers, `model` and `layers`.

    >>> linear_tag("model.layers.31.self_attn.k_proj")
    'self_attn.k_proj'
    """
    parts = name.split(".")
    return ".".join(part for part in parts if part not in {"model", "layers"} and not part.isnumeric())


# --- llm-compressor and compressed-tensors: config groups, one for each width ------------------------


@_format(
    "compressed_tensors",
    file="modifier.json",
    usage="""\
import json
from llmcompressor.modifiers.quantization import GPTQModifier

recipe = GPTQModifier(**json.load(open("FILE")))
# llmcompressor.oneshot(model="MODEL", recipe=recipe, dataset=...)
""",
    widths=(2, 3, 4, 5, 6, 7, 8),
    needs_units=True,
    whole_groups=True,
)
def _compressed_tensors(layers: Layers, group_size: int | None) -> Content:
    names, widths = [layer.name for layer in layers], {layer.width for layer in layers}
    grid = {"strategy": "channel"} if group_size is None else {"strategy": "group", "group_size": group_size}
    grid = {"type": "int", "symmetric": True, "dynamic": False, **grid}

    def targets(width: int) -> list[str]:
        return [f"re:{anywhere(layer.name, names)}" for layer in layers if layer.width == width]

    groups = {
        f"group_{number}": {"targets": targets(width), "weights": {"num_bits": width, **grid}}
        for number, width in enumerate(sorted(widths - {FULL_BITS}))
    }
    newest = "widths other than 4 and 8 are run by the newest vLLM only, not by SGLang or older ones; +widths=4,8 suits"
    return {"config_groups": groups, "ignore": targets(FULL_BITS)}, () if widths <= {4, 8, FULL_BITS} else [newest]


# --- torchao: FqnToConfig with an IntxWeightOnlyConfig for each layer, in torchao's own JSON --------


@_format(
    "torchao",
    file="torchao_config.json",
    usage="""\
import json
from torchao.core.config import config_from_dict
from transformers import TorchAoConfig

config = TorchAoConfig(config_from_dict(json.load(open("FILE"))))
# AutoModel.from_pretrained("MODEL", quantization_config=config)
""",
    widths=(2, 3, 4, 5, 6, 7, 8),
    whole_groups=True,
)
def _torchao(layers: Layers, group_size: int | None) -> Content:
    def made(kind: str, data: dict[str, Any], version: int = 1) -> dict[str, object]:
        return {"_type": kind, "_version": version, "_data": data}

    axis, group = made("PerAxis", {"axis": 0}), made("PerGroup", {"group_size": group_size})
    mapping = {"_type": "MappingType", "_data": "SYMMETRIC"}
    grid = {"granularity": axis if group_size is None else group, "mapping_type": mapping}

    def config(width: int) -> dict[str, object] | None:
        weights = {"_type": "torch.dtype", "_data": f"int{width}"}
        return None if width == FULL_BITS else made("IntxWeightOnlyConfig", {"weight_dtype": weights, **grid}, 2)

    names = [layer.name for layer in layers]
    configs = {f"re:{anywhere(layer.name, names)}": config(layer.width) for layer in layers}
    note = "torchao keeps each of these codes in a byte, whatever its width"
    return made("FqnToConfig", {"fqn_to_config": configs}), [note]


# --- llama.cpp: `--tensor-type` arguments of llama-quantize ------------------------------------------

_TYPES: dict[int, tuple[tuple[str, int, float], ...]] = {
    2: (("q2_K", 256, 2.625),),
    3: (("q3_K", 256, 3.4375),),
    4: (("q4_K", 256, 4.5), ("q4_0", 32, 4.5)),
    5: (("q5_K", 256, 5.5), ("q5_0", 32, 5.5)),
    6: (("q6_K", 256, 6.5625),),
    8: (("q8_0", 32, 8.5),),
    FULL_BITS: (("f16", 1, 16.0),),
}
"""Width to types, the preferred one first: name, inputs of a block, bits per weight."""
_BLOCK = re.compile(r"(?:(?:\w+\.)?(?:encoder|transformer)\.layer|(?:model\.)?layers)\.([0-9]+)\.(.+)")
_TENSORS = {
    "attention.self.query": "attn_q",  # BERT
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "attention.q_lin": "attn_q",  # DistilBERT
    "attention.k_lin": "attn_k",
    "attention.v_lin": "attn_v",
    "attention.out_lin": "attn_output",
    "ffn.lin1": "ffn_up",
    "ffn.lin2": "ffn_down",
    "self_attn.q_proj": "attn_q",  # Llama, Qwen, Gemma
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""A layer's path in its block to the tensor's name in a GGUF file."""
_NOT_IN_FILE = "pooler.dense"
"""A BERT's last layer, which conversion to GGUF drops: embeddings are made without it."""
_HEAD = "output.weight"
"""It has an option of its own; as an expression it would match attn_output.weight, too."""


def tensor_name(name: str) -> str | None:
    """The tensor of a layer in a GGUF file; None if the architecture is not known.

    >>> tensor_name("model.layers.3.mlp.down_proj")
    'blk.3.ffn_down.weight'
    """
    found = _BLOCK.fullmatch(name)
    if found is not None and found[2] in _TENSORS:
        return f"blk.{found[1]}.{_TENSORS[found[2]]}.weight"
    return _HEAD if name == "lm_head" else None


@_format(
    "llama_cpp",
    file="tensor_types.txt",
    usage="llama-quantize $(cat FILE) model-f16.gguf model.gguf Q4_K_M\n",
    widths=(2, 3, 4, 5, 6, 8),
)
def _llama_cpp(layers: Layers, group_size: int | None) -> Content:
    there = [layer for layer in layers if layer.name != _NOT_IN_FILE]
    if not there:
        raise _refused(layers, "not part of a GGUF file", "use another format")
    if unknown := [layer for layer in there if tensor_name(layer.name) is None]:
        raise _refused(
            unknown,
            "the names of such layers in a GGUF file are not known here, only those of models that name layers as "
            "BERT, DistilBERT, Llama, Qwen and Gemma do",
            "use another format",
        )
    lines, taken = "", 0.0
    for layer in there:
        kind = next((kind for kind in _TYPES[layer.width] if layer.shape[1] % kind[1] == 0), None)
        if kind is None:
            raise _refused(
                [layer],
                f"the type of that width has blocks that do not divide the layer's inputs ({layer.shape[1]} in the "
                "first), and llama.cpp would take another one",
                "allocate with +widths=4,8, whose types have blocks of 32, or leave such layers alone with --keep",
            )
        taken += layer.n_weights * kind[2]
        tensor = tensor_name(layer.name)
        option = "--output-tensor-type " if tensor == _HEAD else f"--tensor-type {tensor}="
        lines += f"{option}{kind[0]}\n"
    total = sum(layer.n_weights for layer in there)
    asked = sum(layer.n_weights * layer.width for layer in there) / total
    note = (
        f"llama.cpp's types take {taken / total:.2f} bits per weight here, scales included, where the widths are "
        f"{asked:.2f} without; their groups are their own, and token embeddings follow the last argument"
    )
    return lines, [note]


# --- AutoRound's `layer_config` ----------------------------------------------------------------------


@_format(
    "autoround",
    file="layer_config.json",
    usage="""\
import json
from auto_round import AutoRound

widths = json.load(open("FILE"))
rounded = AutoRound("MODEL", layer_config=widths)
""",
    widths=(2, 3, 4, 8),
)
def _autoround(layers: Layers, group_size: int | None) -> Content:
    odd = [layer for layer in layers if layer.width != FULL_BITS and any(size % 32 for size in layer.shape)]
    if odd:
        first = f"{odd[0].shape[0]} by {odd[0].shape[1]}"
        why = f"AutoRound passes over layers whose shape 32 does not divide; the first is {first}"
        raise _refused(odd, why, "leave such layers unquantized with --keep")
    grid = {"group_size": -1 if group_size is None else group_size, "sym": True}
    config = {x.name: {"bits": x.width, **(grid if x.width != FULL_BITS else {})} for x in layers}
    return config, _vllm_note(layers)


# --- onnxruntime: nodes that stay as they are, and the settings of each that does not ---------------

_ONNX_BLOCKS = (16, 32, 64, 128, 256)
_ONE_VECTOR = re.compile(r"(?:.*\.)?(?:pooler\.dense|classifier(?:\..+)?|score)")
"""Layers that see one vector of a text: a Gemm node each, which the quantizer does not touch."""


@_format(
    "onnxruntime",
    file="onnxruntime_nodes.json",
    usage="""\
import json
import onnx
from onnxruntime.quantization import matmul_nbits_quantizer as nbits

nodes = json.load(open("FILE"))
quantizer = nbits.MatMulNBitsQuantizer(
    onnx.load("model.onnx"),
    nodes_to_exclude=nodes["nodes_to_exclude"],
    algo_config=nbits.RTNWeightOnlyQuantConfig(
        customized_weight_config=nodes["customized_weight_config"]
    ),
)
quantizer.process()
quantizer.model.save_model_to_file("model-quantized.onnx")
""",
    widths=(4, 8),
)
def _onnxruntime(layers: Layers, group_size: int | None) -> Content:
    if group_size not in _ONNX_BLOCKS:
        shown = "whole channels" if group_size is None else f"groups of {group_size}"
        has = f"MatMulNBits has blocks of {', '.join(map(str, _ONNX_BLOCKS))}, not {shown}"
        raise _refused(layers, has, "allocate with one of these, such as -g32")
    nodes = [(node_name(layer.name), layer.width) for layer in layers if not _ONE_VECTOR.fullmatch(layer.name)]
    grid = {"group_size": group_size, "scheme": "sym"}
    config = {
        "nodes_to_exclude": [node for node, width in nodes if width == FULL_BITS],
        "customized_weight_config": {node: {"bits": width, **grid} for node, width in nodes if width != FULL_BITS},
    }
    notes = [
        "nodes are named as optimum's exporter names them; a node of another name would be quantized to 4 bits "
        "without a word, so compare with the graph"
    ]
    if gemm := [x.name for x in layers if x.width != FULL_BITS and _ONE_VECTOR.fullmatch(x.name)]:
        notes.append(f"{some(gemm)}: a Gemm in the graph, which stays unquantized")
    return config, notes


def node_name(name: str) -> str:
    """The node that multiplies by a layer's weight: numbers stay with the part before them.

    >>> node_name("encoder.layer.0.attention.self.query")
    '/encoder/layer.0/attention/self/query/MatMul'
    """
    path = "".join(f".{part}" if part.isdecimal() else f"/{part}" for part in name.split("."))
    return f"{path}/MatMul"
