"""llm-compressor and compressed-tensors: config groups, one for each width.

Checked for its form only: neither library was at hand, their documentation and sources were. What
llm-compressor writes with it vLLM runs, with one width for layers that it multiplies at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quantdrift.allocation.export.base import as_json, whole_groups
from quantdrift.allocation.export.names import anywhere
from quantdrift.allocation.stored.record import AllocatedLayer
from quantdrift.widths import FULL_BITS

__all__ = ["CompressedTensors"]

_RUN_EVERYWHERE = (4, 8)
_USAGE = """\
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
    usage: str = _USAGE
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
    return {
        "num_bits": width,
        "type": "int",
        "symmetric": True,
        "dynamic": False,
        **size,
        **grouped,
    }
