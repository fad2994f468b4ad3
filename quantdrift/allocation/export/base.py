"""What an export format is, and what is asked of an allocation before a line is written."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Protocol

from quantdrift.allocation.export.names import runtime_layers, some
from quantdrift.allocation.solving.units import runtime_units
from quantdrift.allocation.stored.record import AllocatedLayer, Allocation
from quantdrift.display import json_text
from quantdrift.errors import UnsupportedError
from quantdrift.widths import FULL_BITS

__all__ = [
    "Exporter",
    "as_json",
    "export_allocation",
    "refuse",
    "untied",
    "usage_of",
    "vllm_cannot",
    "whole_groups",
]


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
            f"{who} needs input widths that groups of {group_size} divide; the first has "
            f"{short[0].shape[1]}",
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
