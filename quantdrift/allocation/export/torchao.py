"""torchao: FqnToConfig with an IntxWeightOnlyConfig for each layer, in torchao's own JSON.

Loaded with torchao 0.18 and transformers 5.23. The codes have the width that is asked for, but each
takes a byte: this shows the accuracy of the allocation and runs everywhere, without saving memory
below 8 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quantdrift.allocation.export.base import as_json, whole_groups
from quantdrift.allocation.export.names import anywhere
from quantdrift.allocation.stored.record import AllocatedLayer
from quantdrift.widths import FULL_BITS

__all__ = ["TorchAO"]
_USAGE = """\
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
    usage: str = _USAGE
    widths: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    needs_units: bool = False

    def check(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> None:
        """Refuse layers whose last group would be shorter."""
        whole_groups(layers, group_size, who="torchao")

    def render(self, layers: Sequence[AllocatedLayer], group_size: int | None) -> str:
        """A JSON object for torchao.core.config.config_from_dict."""
        names = [layer.name for layer in layers]
        configs = {
            f"re:{anywhere(layer.name, names)}": (
                None if layer.width == FULL_BITS else _intx(layer.width, group_size)
            )
            for layer in layers
        }
        return as_json(_object("FqnToConfig", 1, {"fqn_to_config": configs}))

    def notes(self, layers: Sequence[AllocatedLayer]) -> Sequence[str]:
        """What it takes in memory."""
        return ["torchao keeps each of these codes in a byte, whatever its width"]


def _intx(width: int, group_size: int | None) -> dict[str, object]:
    granularity = (
        _object("PerAxis", 1, {"axis": 0})
        if group_size is None
        else _object("PerGroup", 1, {"group_size": group_size})
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
