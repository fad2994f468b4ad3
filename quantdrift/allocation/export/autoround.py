"""AutoRound's `layer_config`.

Checked for its form only: the library was not at hand, its documentation was. It takes a key that
is no layer's whole name for a part of names, so that an encoder's names do for a causal LM, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quantdrift.allocation.export.base import as_json, refuse, vllm_cannot
from quantdrift.allocation.stored.record import AllocatedLayer
from quantdrift.widths import FULL_BITS

__all__ = ["AutoRound"]

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
        odd = [
            layer
            for layer in layers
            if layer.width != FULL_BITS and any(size % _SHAPES_OF for size in layer.shape)
        ]
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
