"""GPTQModel: the arguments of its QuantizeConfig, widths of layers under `dynamic`.

Loaded with gptqmodel 7.6. What it quantizes with them vLLM and SGLang read, too, if tied layers
have one width: they look a fused layer up by its own name (qkv_proj, gate_up_proj), so that one
expression is written for a unit and matches its fused name as well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from quantdrift.allocation.export.base import as_json, refuse, untied, vllm_cannot
from quantdrift.allocation.export.names import anywhere
from quantdrift.allocation.stored.record import AllocatedLayer
from quantdrift.widths import FULL_BITS

__all__ = ["GPTQModel"]

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
_USAGE = """\
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
    usage: str = _USAGE
    widths: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    needs_units: bool = False

    def check(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> None:
        """Refuse group sizes that its kernels have not."""
        if group_size is not None and group_size not in _GROUP_SIZES:
            refuse(
                layers,
                f"gptqmodel has groups of {', '.join(map(str, _GROUP_SIZES))} and whole channels, "
                f"not of {group_size}",
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
