"""What an export format is, and what is asked of an allocation before a line is written."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from quantdrift.allocation.record import AllocatedLayer, Allocation
from quantdrift.allocation.solver import runtime_units
from quantdrift.display import json_text
from quantdrift.errors import UnknownNameError, UnsupportedError
from quantdrift.spec import FULL_BITS

# --- The names that runtimes know layers by, from those in an allocation --------------------------

_NUMBERED = re.compile(r"[0-9]+\.(?P<rest>.+)")
_HOLDERS = ("model.", "auto_model.")
_NO_MODULE = re.compile(r".*\.(?:gate_up_proj|up_proj|down_proj|weight)\.[0-9]+|(?:.*\.)?(?:in|q|k|v)_proj_weight")
"""A matrix in a stack of experts, and the input projections that attention keeps itself."""
_SHOWN = 3


def runtime_layers(allocation: Allocation) -> tuple[AllocatedLayer, ...]:
    """The layers inside the transformers model, named by their path in it.

    Args:
        allocation: with names as `find_linears` gives them.

    Returns:
        The layers in their order; those outside the transformers model, which are not quantized,
        are left out.

    Raises:
        UnsupportedError: a layer outside the transformers model is to be quantized, a layer is not
            a module of its own, two get one name, or nothing is left to quantize.
    """
    inside, outside = [], []
    for layer in allocation.layers:
        name = _inside(layer.name)
        if name is not None:
            inside.append(replace(layer, name=name))
        elif layer.width != FULL_BITS:
            outside.append(layer.name)
    if outside:
        raise UnsupportedError(
            f"{some(outside)}: outside the transformers model, which is all that runtimes load; "
            f"leave such layers unquantized: quantdrift allocate ... --keep '{outside[0]}'"
        )
    names = [layer.name for layer in inside]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise UnsupportedError(
            f"{some(twice)}: in more than one of the model's modules; expected an allocation of one transformers model"
        )
    if parts := [name for name in names if _NO_MODULE.fullmatch(name)]:
        raise UnsupportedError(
            f"{some(parts)}: part of a larger module (a stack of experts, or attention with "
            "projections of its own), which no format can give a width alone"
        )
    if all(layer.width == FULL_BITS for layer in inside):
        raise UnsupportedError(
            "no layer of the transformers model is quantized; expected an allocation with a width "
            "of 2 to 8 for at least one"
        )
    return tuple(inside)


def anywhere(name: str, names: Sequence[str]) -> str:
    r"""A regular expression for a layer, whatever model class holds the transformers model.

    An encoder's `layers.0.mlp.up_proj` is `model.layers.0.mlp.up_proj` in a causal LM. The
    expression matches both, and needs no more than re, PCRE and std::regex have in common.

    Args:
        name: of the layer.
        names: of all layers; where one of them ends in `name`, only the whole name matches.

    >>> anywhere("layers.0.fc", ["layers.0.fc", "layers.10.fc"])
    '^(?:.*\\.)?layers\\.0\\.fc$'
    """
    held = any(other.endswith(f".{name}") for other in names)
    before = "" if held else r"(?:.*\.)?"
    return f"^{before}{re.escape(name)}$"


def some(names: Sequence[str]) -> str:
    """A few of the names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _inside(name: str) -> str | None:
    """Path inside the transformers model; None for a layer outside it."""
    numbered = _NUMBERED.fullmatch(name)
    if numbered is None:
        return name
    rest: str = numbered["rest"]
    return next((rest.removeprefix(h) for h in _HOLDERS if rest.startswith(h)), None)


# --- What an export format is, and what is asked of an allocation before a line is written --------


class Exporter(Protocol):
    """A format that a quantization library or a runtime reads."""

    @property
    def name(self) -> str:
        """What the format is called on the command line."""

    @property
    def file(self) -> str:
        """Usual name of the file."""

    @property
    def usage(self) -> str:
        """How the file is used: Python that names it "FILE", or a line for the shell with FILE."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Bits per weight that it can express; unquantized layers (16) are possible in all."""

    @property
    def needs_units(self) -> bool:
        """Whether what reads it multiplies query, key and value at once, so that they need one
        width.
        """

    def check(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> None:
        """Refuse what the format cannot express, beyond widths and units.

        Args:
            layers: with the names that runtimes know them by.
            group_size: input weights that share a scale, None for a whole output channel.

        Raises:
            UnsupportedError: names the layers, and what to do.
        """

    def render(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> str:
        """The file, of layers that have been checked."""

    def notes(self, layers: Sequence[AllocatedLayer]) -> Sequence[str]:
        """What the user should know of this file: where it differs, what cannot run it."""


def export_allocation(allocation: Allocation, exporter: Exporter) -> tuple[str, tuple[str, ...]]:
    """Write an allocation in a format.

    Args:
        allocation: which one.
        exporter: the format.

    Returns:
        The file, and notes for the user.

    Raises:
        UnsupportedError: the format cannot express it; names the layers, and what to do. It is
            raised before anything is written.
    """
    layers = runtime_layers(allocation)
    _check_widths(layers, exporter)
    if exporter.needs_units and (apart := untied(layers)):
        refuse(
            apart,
            f"what reads {exporter.name} multiplies them at once and needs one width for them",
            "allocate with +units=fused",
        )
    exporter.check(layers, allocation.group_size)
    return exporter.render(layers, allocation.group_size), tuple(exporter.notes(layers))


def usage_of(exporter: Exporter, file: str) -> str:
    """Lines that use a file: Python that runs as it stands, or a line for the shell.

    Args:
        exporter: of its format.
        file: where it was written.
    """
    quoted = '"FILE"'
    if quoted in exporter.usage:
        return exporter.usage.replace(quoted, repr(file))
    return exporter.usage.replace("FILE", shlex.quote(file))


def untied(layers: Sequence[AllocatedLayer]) -> list[AllocatedLayer]:
    """Layers that vLLM and SGLang multiply at once and that do not all have the same width."""
    units = runtime_units([layer.name for layer in layers]).tolist()
    widths: dict[int, set[int]] = {}
    for layer, unit in zip(layers, units, strict=True):
        widths.setdefault(unit, set()).add(layer.width)
    return [layer for layer, unit in zip(layers, units, strict=True) if len(widths[unit]) > 1]


def vllm_cannot(layers: Sequence[AllocatedLayer]) -> tuple[str, ...]:
    """A note that vLLM and SGLang cannot run the widths, where they cannot."""
    if not untied(layers):
        return ()
    return (
        "vLLM and SGLang cannot run it: layers that they multiply at once have different widths "
        "here. Allocate with +units=fused for them",
    )


def whole_groups(layers: Sequence[AllocatedLayer], group_size: int | None, *, who: str) -> None:
    """Refuse layers whose last group would be shorter.

    Raises:
        UnsupportedError: names them.
    """
    if group_size is None:
        return
    short = [layer for layer in layers if layer.width != FULL_BITS and layer.shape[1] % group_size]
    if short:
        refuse(
            short,
            f"{who} needs input widths that groups of {group_size} divide; the first has {short[0].shape[1]}",
            "allocate with a group size that does, or leave the layers out with --keep",
        )


def refuse(layers: Sequence[AllocatedLayer], why: str, remedy: str) -> None:
    """Raise UnsupportedError with layers and widths, the reason, and what to do."""
    shown = some([f"{layer.name} ({layer.width} bits)" for layer in layers])
    raise UnsupportedError(f"{shown}: {why}; {remedy}")


def as_json(content: Mapping[str, object]) -> str:
    """Indented, with a line break at the end."""
    return f"{json_text(content)}\n"


def _check_widths(layers: Sequence[AllocatedLayer], exporter: Exporter) -> None:
    possible = ", ".join(map(str, exporter.widths))
    wrong = [layer for layer in layers if layer.width not in {*exporter.widths, FULL_BITS}]
    if wrong:
        refuse(
            wrong,
            f"{exporter.name} has widths of {possible}",
            f"allocate with some of these, such as +widths={_two(exporter.widths)}",
        )


def _two(widths: Sequence[int]) -> str:
    return "4,8" if {4, 8} <= set(widths) else ",".join(map(str, widths))


# --- AutoRound's `layer_config` -------------------------------------------------------------------

_SHAPES_OF = 32
_USAGE = """\
import json
from auto_round import AutoRound

with open("FILE") as file:
    widths = json.load(file)
rounded = AutoRound("MODEL", layer_config=widths)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRound:
    """The argument `layer_config` of AutoRound, a setting for each layer."""

    name: str = "autoround"
    file: str = "layer_config.json"
    usage: str = _USAGE
    widths: tuple[int, ...] = (2, 3, 4, 8)
    needs_units: bool = False

    def check(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> None:
        """Refuse shapes that AutoRound passes over."""
        odd = [layer for layer in layers if layer.width != FULL_BITS and any(size % _SHAPES_OF for size in layer.shape)]
        if odd:
            refuse(
                odd,
                f"AutoRound passes over layers whose shape {_SHAPES_OF} does not divide; the first "
                f"is {odd[0].shape[0]} by {odd[0].shape[1]}",
                "leave such layers unquantized with --keep",
            )

    def render(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> str:
        """A JSON object: AutoRound(model, layer_config=json.load(file))."""
        size = -1 if group_size is None else group_size
        return as_json(
            {
                layer.name: (
                    {"bits": FULL_BITS}
                    if layer.width == FULL_BITS
                    else {"bits": layer.width, "group_size": size, "sym": True}
                )
                for layer in layers
            }
        )

    def notes(self, layers: Sequence[AllocatedLayer]) -> Sequence[str]:
        """Whether vLLM and SGLang can run it."""
        return vllm_cannot(layers)


# --- llm-compressor and compressed-tensors: config groups, one for each width ---------------------

_RUN_EVERYWHERE = (4, 8)
_COMPRESSED_TENSORS_USAGE = """\
import json
from llmcompressor.modifiers.quantization import GPTQModifier

with open("FILE") as file:
    recipe = GPTQModifier(**json.load(file))
# llmcompressor.oneshot(model="MODEL", recipe=recipe, dataset=...)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedTensors:
    """Arguments of llm-compressor's QuantizationModifier and GPTQModifier."""

    name: str = "compressed_tensors"
    file: str = "modifier.json"
    usage: str = _COMPRESSED_TENSORS_USAGE
    widths: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    needs_units: bool = True

    def check(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> None:
        """Refuse layers whose last group would be shorter."""
        whole_groups(layers, group_size, who="compressed-tensors")

    def render(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> str:
        """A JSON object: GPTQModifier(**json.load(file))."""
        names = [layer.name for layer in layers]

        def targets(width: int) -> list[str]:
            matched = [layer.name for layer in layers if layer.width == width]
            return [f"re:{anywhere(name, names)}" for name in matched]

        used = sorted({layer.width for layer in layers} - {FULL_BITS})
        groups = {
            f"group_{number}": {"targets": targets(width), "weights": _weights(width, group_size)}
            for number, width in enumerate(used)
        }
        return as_json({"config_groups": groups, "ignore": targets(FULL_BITS)})

    def notes(self, layers: Sequence[AllocatedLayer]) -> Sequence[str]:
        """Where not every runtime has the widths."""
        if all(layer.width in {*_RUN_EVERYWHERE, FULL_BITS} for layer in layers):
            return ()
        return [
            "widths other than 4 and 8 are run by the newest vLLM only, not by SGLang or older "
            "ones; +widths=4,8 suits all"
        ]


def _weights(width: int, group_size: int | None) -> dict[str, object]:
    size = {"strategy": "channel"} if group_size is None else {"strategy": "group"}
    grouped = {} if group_size is None else {"group_size": group_size}
    return {"num_bits": width, "type": "int", "symmetric": True, "dynamic": False, **size, **grouped}


# --- GPTQModel: the arguments of its QuantizeConfig, widths of layers under `dynamic` -------------

_GROUP_SIZES = (16, 32, 64, 128, 256, 512, 1024)
_FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "query": "qkv_proj",
    "key": "qkv_proj",
    "value": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
"""Last part of a layer's name to that of the layer vLLM and SGLang make of it and its siblings."""
_GPTQMODEL_USAGE = """\
import json
from gptqmodel import GPTQModel, QuantizeConfig

with open("FILE") as file:
    config = QuantizeConfig(**json.load(file))
# model = GPTQModel.load("MODEL", config); model.quantize(texts); model.save("FOLDER")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTQModel:
    """Arguments of gptqmodel's QuantizeConfig; an expression per layer under `dynamic`."""

    name: str = "gptqmodel"
    file: str = "quantize_config.json"
    usage: str = _GPTQMODEL_USAGE
    widths: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    needs_units: bool = False

    def check(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> None:
        """Refuse group sizes that its kernels have not."""
        if group_size is not None and group_size not in _GROUP_SIZES:
            refuse(
                layers,
                f"gptqmodel has groups of {', '.join(map(str, _GROUP_SIZES))} and whole channels, not of {group_size}",
                "allocate with one of these, such as -g128 or -channel",
            )

    def render(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> str:
        """A JSON object: QuantizeConfig(**json.load(file))."""
        common = Counter(layer.width for layer in layers if layer.width != FULL_BITS)
        size = -1 if group_size is None else group_size
        dynamic: dict[str, dict[str, int]] = {}
        for pattern, width in _patterns(layers):
            if width == FULL_BITS:
                dynamic[f"-:{pattern}"] = {}
            else:
                dynamic[pattern] = {"bits": width, "group_size": size}
        config = {"bits": common.most_common(1)[0][0], "group_size": size, "sym": True}
        return as_json({**config, "desc_act": False, "dynamic": dynamic})

    def notes(self, layers: Sequence[AllocatedLayer]) -> Sequence[str]:
        """Whether vLLM and SGLang can run it."""
        return vllm_cannot(layers)


def _patterns(layers: Sequence[AllocatedLayer]) -> list[tuple[str, int]]:
    """Expression and width, one for each unit that has a fused name and one width, or layer."""
    names = [layer.name for layer in layers]
    apart = {layer.name for layer in untied(layers)}
    units: dict[tuple[str, str], list[AllocatedLayer]] = {}
    for layer in layers:
        parent, _, last = layer.name.rpartition(".")
        fused = _FUSED.get(last, last) if layer.name not in apart else last
        units.setdefault((parent, fused), []).append(layer)
    found = []
    for (parent, fused), members in units.items():
        pattern = anywhere(members[0].name, names)
        lasts = [member.name.removeprefix(f"{parent}.") for member in members]
        if parent and len(lasts) > 1:
            ending = "|".join(map(re.escape, [*lasts, fused]))
            pattern = pattern.removesuffix(f"{re.escape(lasts[0])}$") + f"(?:{ending})$"
        found.append((pattern, members[0].width))
    return found


# --- transformers' HqqConfig(dynamic_config=...) --------------------------------------------------

_DROPPED = ("model", "layers")
_GROUPS_OF = 8
_HQQ_USAGE = """\
import json
from transformers import HqqConfig

with open("FILE") as file:
    config = HqqConfig(**json.load(file))
# AutoModel.from_pretrained("MODEL", quantization_config=config)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hqq:
    """Arguments of transformers' HqqConfig; a setting for each kind of layer."""

    name: str = "hqq"
    file: str = "hqq_config.json"
    usage: str = _HQQ_USAGE
    widths: tuple[int, ...] = (2, 3, 4, 5, 6, 8)
    needs_units: bool = False

    def check(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> None:
        """Refuse kinds of layers with several widths, and groups that hqq has not."""
        kinds: dict[str, list[AllocatedLayer]] = {}
        for layer in layers:
            kinds.setdefault(linear_tag(layer.name), []).append(layer)
        mixed = {tag: members for tag, members in kinds.items() if len({member.width for member in members}) > 1}
        for tag, members in mixed.items():
            other = next(member for member in members if member.width != members[0].width)
            refuse(
                [members[0], other],
                f"HqqConfig has one setting for {tag} in all blocks"
                + (f", and so for {len(mixed) - 1} other kinds of layers" if len(mixed) > 1 else ""),
                "give the kinds one width each with --keep '*.KIND=BITS', or use a format that "
                "tells blocks apart (gptqmodel, torchao)",
            )
        if group_size is not None and group_size % _GROUPS_OF:
            refuse(
                layers,
                f"hqq has groups of multiples of {_GROUPS_OF}, not of {group_size}",
                "allocate with one of these, such as -g64",
            )
        whole_groups(layers, group_size, who="hqq")

    def render(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> str:
        """A JSON object: HqqConfig(**json.load(file)). What is not listed stays as it is."""
        dynamic = {
            linear_tag(layer.name): {"nbits": layer.width, "group_size": group_size, "axis": 1}
            for layer in layers
            if layer.width != FULL_BITS
        }
        return as_json({"dynamic_config": dynamic})

    def notes(self, layers: Sequence[AllocatedLayer]) -> Sequence[str]:
        """Nothing."""
        return ()


def linear_tag(name: str) -> str:
    """What HqqConfig calls the kind of a layer: its path without numbers, `model` and `layers`.

    >>> linear_tag("model.layers.31.self_attn.k_proj")
    'self_attn.k_proj'
    """
    parts = name.split(".")
    return ".".join(part for part in parts if part not in _DROPPED and not part.isnumeric())


# --- llama.cpp: `--tensor-type` arguments of llama-quantize ---------------------------------------

TYPES: dict[int, tuple[tuple[str, int, float], ...]] = {
    2: (("q2_K", 256, 2.625),),
    3: (("q3_K", 256, 3.4375),),
    4: (("q4_K", 256, 4.5), ("q4_0", 32, 4.5)),
    5: (("q5_K", 256, 5.5), ("q5_0", 32, 5.5)),
    6: (("q6_K", 256, 6.5625),),
    8: (("q8_0", 32, 8.5),),
    FULL_BITS: (("f16", 1, 16.0),),
}
"""Width to types, the preferred one first: name, inputs of a block, bits per weight."""
_BLOCKS = (
    re.compile(r"(?:\w+\.)?encoder\.layer\.(?P<block>[0-9]+)\.(?P<part>.+)"),
    re.compile(r"(?:\w+\.)?transformer\.layer\.(?P<block>[0-9]+)\.(?P<part>.+)"),
    re.compile(r"(?:model\.)?layers\.(?P<block>[0-9]+)\.(?P<part>.+)"),
)
_PARTS: tuple[dict[str, str], ...] = (
    {
        "attention.self.query": "attn_q",
        "attention.self.key": "attn_k",
        "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output",
        "intermediate.dense": "ffn_up",
        "output.dense": "ffn_down",
    },
    {
        "attention.q_lin": "attn_q",
        "attention.k_lin": "attn_k",
        "attention.v_lin": "attn_v",
        "attention.out_lin": "attn_output",
        "ffn.lin1": "ffn_up",
        "ffn.lin2": "ffn_down",
    },
    {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    },
)
"""For each of `_BLOCKS`, a layer's path in its block to the tensor's name in a GGUF file."""

_NOT_IN_FILE = "pooler.dense"
"""A BERT's last layer, which conversion to GGUF drops: embeddings are made without it."""
_HEAD = "output.weight"
"""It has an option of its own; as an expression it would match attn_output.weight, too."""
_LLAMA_CPP_USAGE = """\
llama-quantize $(cat FILE) model-f16.gguf model.gguf Q4_K_M
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCpp:
    """Arguments of llama-quantize, one for each tensor; the shell needs no quotes for them."""

    name: str = "llama_cpp"
    file: str = "tensor_types.txt"
    usage: str = _LLAMA_CPP_USAGE
    widths: tuple[int, ...] = (2, 3, 4, 5, 6, 8)
    needs_units: bool = False

    def check(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> None:
        """Refuse layers of other architectures, and inputs that no type's block divides."""
        there = _in_file(layers)
        if not there:
            refuse(layers, "not part of a GGUF file", "use another format")
        if unknown := [layer for layer in there if tensor_name(layer.name) is None]:
            refuse(
                unknown,
                "the names of such layers in a GGUF file are not known here, only those of models "
                "that name layers as BERT, DistilBERT, Llama, Qwen and Gemma do",
                "use another format",
            )
        if odd := [layer for layer in there if _type(layer) is None]:
            refuse(
                odd,
                "the type of that width has blocks that do not divide the layer's inputs "
                f"({odd[0].shape[1]} in the first), and llama.cpp would take another one",
                "allocate with +widths=4,8, whose types have blocks of 32, or leave such layers "
                "unquantized with --keep",
            )

    def render(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> str:
        """Lines of `--tensor-type NAME=TYPE`."""
        lines = []
        for layer in _in_file(layers):
            chosen = _type(layer)
            assert chosen is not None  # checked before
            name = tensor_name(layer.name)
            option = "--output-tensor-type " if name == _HEAD else f"--tensor-type {name}="
            lines.append(f"{option}{chosen[0]}\n")
        return "".join(lines)

    def notes(self, layers: Sequence[AllocatedLayer]) -> Sequence[str]:
        """What the types take instead of the widths asked for."""
        there = _in_file(layers)
        total = sum(layer.n_weights for layer in there)
        asked = sum(layer.n_weights * layer.width for layer in there) / total
        taken = 0.0
        for layer in there:
            chosen = _type(layer)
            assert chosen is not None  # checked before
            taken += layer.n_weights * chosen[2] / total
        return [
            f"llama.cpp's types take {taken:.2f} bits per weight here, scales included, where the "
            f"widths are {asked:.2f} without; their groups are their own, and token embeddings "
            "follow the last argument"
        ]


def tensor_name(name: str) -> str | None:
    """The tensor of a layer in a GGUF file; None if the architecture is not known.

    >>> tensor_name("model.layers.3.mlp.down_proj")
    'blk.3.ffn_down.weight'
    """
    for block, parts in zip(_BLOCKS, _PARTS, strict=True):
        found = block.fullmatch(name)
        if found is not None and found["part"] in parts:
            return f"blk.{found['block']}.{parts[found['part']]}.weight"
    return _HEAD if name == "lm_head" else None


def _in_file(layers: Sequence[AllocatedLayer]) -> list[AllocatedLayer]:
    return [layer for layer in layers if layer.name != _NOT_IN_FILE]


def _type(layer: AllocatedLayer) -> tuple[str, int, float] | None:
    """The first type of the width whose blocks divide the layer's inputs."""
    return next((one for one in TYPES[layer.width] if layer.shape[1] % one[1] == 0), None)


# --- onnxruntime ----------------------------------------------------------------------------------

_BLOCK_SIZES = (16, 32, 64, 128, 256)
_ONE_VECTOR = re.compile(r"(?:.*\.)?(?:pooler\.dense|classifier(?:\..+)?|score)")
"""Layers that see one vector of a text: a Gemm node each, which the quantizer does not touch."""
_ONNXRUNTIME_USAGE = """\
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
    usage: str = _ONNXRUNTIME_USAGE
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
                "nodes_to_exclude": [node_name(layer.name) for layer in nodes if layer.width == FULL_BITS],
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
            "quantized to 4 bits without a word, so compare with the graph"
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


# --- torchao: FqnToConfig with an IntxWeightOnlyConfig for each layer, in torchao's own JSON ------

_TORCHAO_USAGE = """\
import json
from torchao.core.config import config_from_dict
from transformers import TorchAoConfig

with open("FILE") as file:
    config = TorchAoConfig(config_from_dict(json.load(file)))
# AutoModel.from_pretrained("MODEL", quantization_config=config)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchAO:
    """A torchao configuration, which transformers' TorchAoConfig takes."""

    name: str = "torchao"
    file: str = "torchao_config.json"
    usage: str = _TORCHAO_USAGE
    widths: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    needs_units: bool = False

    def check(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> None:
        """Refuse layers whose last group would be shorter."""
        whole_groups(layers, group_size, who="torchao")

    def render(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> str:
        """A JSON object for torchao.core.config.config_from_dict."""
        names = [layer.name for layer in layers]
        configs = {
            f"re:{anywhere(layer.name, names)}": (None if layer.width == FULL_BITS else _intx(layer.width, group_size))
            for layer in layers
        }
        return as_json(_object("FqnToConfig", 1, {"fqn_to_config": configs}))

    def notes(self, layers: Sequence[AllocatedLayer]) -> Sequence[str]:
        """What it takes in memory."""
        return ["torchao keeps each of these codes in a byte, whatever its width"]


def _intx(width: int, group_size: int | None) -> dict[str, object]:
    granularity = (
        _object("PerAxis", 1, {"axis": 0}) if group_size is None else _object("PerGroup", 1, {"group_size": group_size})
    )
    return _object(
        "IntxWeightOnlyConfig",
        2,
        {
            "weight_dtype": {"_type": "torch.dtype", "_data": f"int{width}"},
            "granularity": granularity,
            "mapping_type": {"_type": "MappingType", "_data": "SYMMETRIC"},
        },
    )


def _object(kind: str, version: int, data: dict[str, object]) -> dict[str, object]:
    return {"_type": kind, "_version": version, "_data": data}


# --- From a format's name to its exporter ---------------------------------------------------------

_ALL: tuple[Exporter, ...] = (
    GPTQModel(),
    Hqq(),
    CompressedTensors(),
    TorchAO(),
    LlamaCpp(),
    AutoRound(),
    OnnxRuntime(),
)
EXPORTERS: dict[str, Exporter] = {one.name: one for one in _ALL}
"""Format to exporter, in the order in which they are shown."""


def exporter(name: str) -> Exporter:
    """The exporter of that format.

    Args:
        name: one of `EXPORTERS`.

    Raises:
        UnknownNameError: no such format; carries the nearest names.
    """
    if name not in EXPORTERS:
        raise UnknownNameError("format", name, EXPORTERS, hint=f"(one of {', '.join(EXPORTERS)})")
    return EXPORTERS[name]
