"""transformers' HqqConfig(dynamic_config=...).

Loaded with transformers 5.23 and hqq 0.2.8. Both know a layer by its kind alone: numbers, `model`
and `layers` are dropped from its name, so that `self_attn.q_proj` is one setting for all blocks.
Only an allocation that gives a kind of layer the same width in every block can be expressed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quantdrift.allocation.export.base import as_json, refuse, whole_groups
from quantdrift.allocation.stored.record import AllocatedLayer
from quantdrift.widths import FULL_BITS

__all__ = ["Hqq", "linear_tag"]

_DROPPED = ("model", "layers")
_GROUPS_OF = 8
_USAGE = """\
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
    usage: str = _USAGE
    widths: tuple[int, ...] = (2, 3, 4, 5, 6, 8)
    needs_units: bool = False

    def check(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> None:
        """Refuse kinds of layers with several widths, and groups that hqq has not."""
        kinds: dict[str, list[AllocatedLayer]] = {}
        for layer in layers:
            kinds.setdefault(linear_tag(layer.name), []).append(layer)
        mixed = {
            tag: members
            for tag, members in kinds.items()
            if len({member.width for member in members}) > 1
        }
        for tag, members in mixed.items():
            other = next(member for member in members if member.width != members[0].width)
            refuse(
                [members[0], other],
                f"HqqConfig has one setting for {tag} in all blocks"
                + (
                    f", and so for {len(mixed) - 1} other kinds of layers" if len(mixed) > 1 else ""
                ),
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
