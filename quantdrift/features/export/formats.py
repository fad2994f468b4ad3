"""An allocation in the words of the libraries and runtimes that quantize by themselves: a function for each format."""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantdrift.allocation.record import AllocatedLayer, Allocation
from quantdrift.allocation.units import runtime_units
from quantdrift.base.display import json_text
from quantdrift.base.errors import UnknownNameError, UnsupportedError
from quantdrift.base.text import some
from quantdrift.scheme import FULL_BITS

Layers = Sequence[AllocatedLayer]
Content = str | Mapping[str, object]
"""A text or a JSON object."""

_INSIDE = re.compile(r"(?:[0-9]+\.(?:auto_)?model\.)?([^0-9].*)")
_NO_MODULE = re.compile(r".*\.(?:gate_up_proj|up_proj|down_proj|weight)\.[0-9]+|(?:.*\.)?(?:in|q|k|v)_proj_weight")
"""A matrix in a stack of experts, and the input projections that attention keeps itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """A format that a quantization library or a runtime reads.

    Attributes:
        name: what the format is called on the command line.
        file: usual name of the file.
        usage: how the file is used: Python that names it "FILE", or a line for the shell with FILE.
        widths: bits per weight that it can express; unquantized layers (16) are possible in all.
        content: from layers, with the names that runtimes know them by, and group size to the file; refuses what else
            the format cannot express.
        note: what the user should know of any such file.
        needs_units: whether what reads it multiplies query, key and value at once, so that they need one width.
        whole_groups: whether groups have to divide the layers' inputs.
    """

    name: str
    file: str
    usage: str
    widths: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    content: Callable[[Layers, int | None], Content]
    note: str = ""
    needs_units: bool = False
    whole_groups: bool = False


def exporter(name: str) -> Exporter:
    """The exporter of that format, one of `EXPORTERS`."""
    if name not in EXPORTERS:
        raise UnknownNameError("format", name, EXPORTERS, hint=f"(one of {', '.join(EXPORTERS)})")
    return EXPORTERS[name]


def export_allocation(allocation: Allocation, exporter: Exporter) -> tuple[str, str]:
    """The file of an allocation in a format, and a note for the user, empty where there is none."""
    layers, group_size = runtime_layers(allocation), allocation.group_size
    quantized = [layer for layer in layers if layer.width != FULL_BITS]
    if wrong := [layer for layer in quantized if layer.width not in exporter.widths]:
        has = f"{exporter.name} has widths of {', '.join(map(str, exporter.widths))}"
        raise _refused(
            wrong, has, "allocate with some of these, such as +widths=4,8 and an average between them (W4.5)"
        )
    untied = _untied(layers)
    if exporter.needs_units and untied:
        why = f"what reads {exporter.name} multiplies them at once and needs one width for them"
        raise _refused(untied, why, "allocate with +units=fused")
    if group_size and exporter.whole_groups and (short := [x for x in quantized if x.shape[1] % group_size]):
        needs = f"{exporter.name} needs input widths that groups of {group_size} divide; the first has"
        raise _refused(short, f"{needs} {short[0].shape[1]}", "allocate with another group size")
    content = exporter.content(layers, group_size)
    note = _VLLM if untied and exporter.name == "gptqmodel" else exporter.note
    return content if isinstance(content, str) else f"{json_text(content)}\n", note


_VLLM = (
    "vLLM and SGLang cannot run it: layers that they multiply at once have different widths here. Allocate with "
    "+units=fused for them"
)


def usage_of(exporter: Exporter, file: str) -> str:
    """Lines that use a file, at the place where it was written: Python as it stands, or a line for the shell."""
    if '"FILE"' in exporter.usage:
        return exporter.usage.replace('"FILE"', repr(file))
    return exporter.usage.replace("FILE", shlex.quote(file))


def runtime_layers(allocation: Allocation) -> tuple[AllocatedLayer, ...]:
    """The layers inside the transformers model, named by their path in it."""
    inside: dict[str, AllocatedLayer] = {}
    outside = []
    for layer in allocation.layers:
        match = _INSIDE.fullmatch(layer.name)
        if match is not None and match[1] not in inside:
            inside[match[1]] = layer.model_copy(update={"name": match[1]})
        elif layer.width != FULL_BITS:
            outside.append(layer)
    if outside:
        why = "outside the transformers model, which is all that runtimes load"
        raise _refused(outside, why, f"leave them unquantized: quantdrift allocate ... --keep '{outside[0].name}'")
    if parts := [layer for name, layer in inside.items() if _NO_MODULE.fullmatch(name)]:
        raise _refused(parts, "part of a larger module, which no format can give a width alone", "use quantdrift run")
    if all(layer.width == FULL_BITS for layer in inside.values()):
        raise UnsupportedError("expected an allocation with a layer of 2 to 8 bits; none of this one is quantized")
    return tuple(inside.values())


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


def _refused(layers: Layers, why: str, remedy: str) -> UnsupportedError:
    return UnsupportedError(f"{some([f'{layer.name} ({layer.width} bits)' for layer in layers])}: {why}; {remedy}")


def _untied(layers: Layers) -> list[AllocatedLayer]:
    """Layers that vLLM and SGLang multiply at once and that do not all have the same width."""
    units = runtime_units([layer.name for layer in layers]).tolist()
    pairs = {(unit, layer.width) for unit, layer in zip(units, layers, strict=True)}
    widths = Counter(unit for unit, _ in pairs)
    return [layer for unit, layer in zip(units, layers, strict=True) if widths[unit] > 1]


# --- GPTQModel: the arguments of its QuantizeConfig, widths of layers under `dynamic` ----------------

_GPTQMODEL_GROUPS = (16, 32, 64, 128, 256, 512, 1024)
_FUSED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "query", "key", "value"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
}
"""Last part of a layer's name to that of the layer vLLM and SGLang make of it and its siblings."""


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
    return {"bits": common, "group_size": size, "sym": True, "desc_act": False, "dynamic": dynamic}


# --- llm-compressor and compressed-tensors: config groups, one for each width ------------------------


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
    return {"config_groups": groups, "ignore": targets(FULL_BITS)}


# --- torchao: FqnToConfig with an IntxWeightOnlyConfig for each layer, in torchao's own JSON --------


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
    return made("FqnToConfig", {"fqn_to_config": configs})


# --- llama.cpp: `--tensor-type` arguments of llama-quantize ------------------------------------------

_TYPES: dict[int, tuple[tuple[str, int], ...]] = {
    2: (("q2_K", 256),),
    3: (("q3_K", 256),),
    4: (("q4_K", 256), ("q4_0", 32)),
    5: (("q5_K", 256), ("q5_0", 32)),
    6: (("q6_K", 256),),
    8: (("q8_0", 32),),
    FULL_BITS: (("f16", 1),),
}
"""Width to types, the preferred one first: name, and inputs of a block."""
_BLOCK = re.compile(r"(?:(?:\w+\.)?(?:encoder|transformer)\.layer|(?:model\.)?layers)\.([0-9]+)\.(.+)")
_IN_FILE = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down", "ffn_gate")
_BERT = [*(f"attention.self.{x}" for x in ("query", "key", "value")), "attention.output.dense"]
_BERT += ["intermediate.dense", "output.dense"]
_DISTILBERT = [*(f"attention.{x}_lin" for x in ("q", "k", "v", "out")), "ffn.lin1", "ffn.lin2"]
_LLAMA = [*(f"self_attn.{x}_proj" for x in "qkvo"), *(f"mlp.{x}_proj" for x in ("up", "down", "gate"))]
_TENSORS = {
    layer: tensor for parts in (_BERT, _DISTILBERT, _LLAMA) for layer, tensor in zip(parts, _IN_FILE, strict=False)
}
"""A layer's path in its block to the tensor's name in a GGUF file; Qwen and Gemma have Llama's names."""


def _llama_cpp(layers: Layers, group_size: int | None) -> Content:
    lines = ""
    for layer in layers:
        if layer.name == "pooler.dense":  # conversion to GGUF drops it: embeddings are made without it
            continue
        match = _BLOCK.fullmatch(layer.name)
        if match is None or match[2] not in _TENSORS:
            names = "known are layers named as in BERT, DistilBERT, Llama, Qwen and Gemma"
            raise _refused([layer], f"its name in a GGUF file is not known; {names}", "use another format")
        kind = next((name for name, block in _TYPES[layer.width] if layer.shape[1] % block == 0), None)
        if kind is None:
            why = f"llama.cpp's type of that width has blocks that do not divide the layer's {layer.shape[1]} inputs"
            raise _refused([layer], why, "allocate with +widths=4,8, or leave such layers alone with --keep")
        lines += f"--tensor-type blk.{match[1]}.{_TENSORS[match[2]]}.weight={kind}\n"
    return lines


# --- the table of formats, in the order in which they are shown --------------------------------------

_FORMATS = (
    Exporter(
        name="gptqmodel",
        file="quantize_config.json",
        usage="import json, gptqmodel\n"
        'config = gptqmodel.QuantizeConfig(**json.load(open("FILE")))  # for GPTQModel.load("MODEL", config)\n',
        content=_gptqmodel,
    ),
    Exporter(
        name="compressed_tensors",
        file="modifier.json",
        usage="import json, llmcompressor.modifiers.quantization as modifiers\n"
        'recipe = modifiers.GPTQModifier(**json.load(open("FILE")))  # for llmcompressor.oneshot(recipe=recipe, ...)\n',
        content=_compressed_tensors,
        note="widths other than 4 and 8 are run by the newest vLLM only, not by SGLang or older ones",
        needs_units=True,
        whole_groups=True,
    ),
    Exporter(
        name="torchao",
        file="torchao_config.json",
        usage="import json, torchao.core.config, transformers\n"
        'config = transformers.TorchAoConfig(torchao.core.config.config_from_dict(json.load(open("FILE"))))\n',
        content=_torchao,
        note="torchao keeps each of these codes in a byte, whatever its width",
        whole_groups=True,
    ),
    Exporter(
        name="llama_cpp",
        file="tensor_types.txt",
        usage="llama-quantize $(cat FILE) model-f16.gguf model.gguf Q4_K_M\n",
        widths=(2, 3, 4, 5, 6, 8),
        content=_llama_cpp,
        note="llama.cpp's types have groups of their own and take more bits than these widths, as they hold scales",
    ),
)
EXPORTERS = {entry.name: entry for entry in _FORMATS}
"""Format to exporter."""
