"""From a format's name to its exporter."""

from __future__ import annotations

from quantdrift.allocation.export.autoround import AutoRound
from quantdrift.allocation.export.base import Exporter
from quantdrift.allocation.export.compressed_tensors import CompressedTensors
from quantdrift.allocation.export.gptqmodel import GPTQModel
from quantdrift.allocation.export.hqq import Hqq
from quantdrift.allocation.export.llama_cpp import LlamaCpp
from quantdrift.allocation.export.onnxruntime import OnnxRuntime
from quantdrift.allocation.export.torchao import TorchAO
from quantdrift.errors import UnknownNameError

__all__ = ["EXPORTERS", "exporter"]

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
