"""The layers of a model that a pair quantizes, and those that it leaves alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from quantdrift.errors import UnsupportedError
from quantdrift.models.head import NO_HEAD, Head, find_head, head_modules, named_head
from quantdrift.models.layers import LinearLayer, find_linears, left_out

__all__ = ["HEAD", "QuantizableLayers", "quantizable_layers"]

HEAD = "classification head"
"""Why a layer is left out."""
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Of full-precision weights; an 8-bit float is a quantized one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizableLayers:
    """The linear layers of a model.

    Attributes:
        layers: those that are quantized, in order of definition.
        left_out: name to reason of those that are not.
        head: the classification head that was found or named.
    """

    layers: list[LinearLayer]
    left_out: dict[str, str]
    head: Head | None


def quantizable_layers(
    modules: Sequence[nn.Module], name: str, *, head: str | None = None
) -> QuantizableLayers:
    """The linear layers, all with floating-point weights in memory; a classification head is out.

    Args:
        modules: the outermost torch modules of the model.
        name: of the model, for messages.
        head: paths of modules to leave out in place of the head that is found, with commas between;
            "none" leaves out no head.

    Raises:
        UnsupportedError: there are none, one is quantized already or not loaded, or there is none
            in what `head` names.
        UnknownNameError: the model has no module that `head` names.
    """
    linears = find_linears(modules)
    if not linears:
        raise UnsupportedError(
            f"{name} has no nn.Linear layer, so there is nothing to quantize; a pair needs a "
            "torch model with linear layers (not bm25, a static embedding or an API)"
        )
    found = find_head(modules) if head is None else named_head(modules, head)
    out = [] if found is None else _in_head(linears, modules, found)
    if found is not None and not out and head is not None:
        raise UnsupportedError(
            f"+head={head}: there is no linear layer in it that {name} would have quantized. Leave "
            "it out, or name a module that holds one"
        )
    layers = [layer for layer in linears if layer not in out]
    if not layers:
        shown = ", ".join(layer.name for layer in out)
        raise UnsupportedError(
            f"{name} has no nn.Linear layer but its classification head ({shown}), which stays at "
            f"full precision, so there is nothing to quantize; +head={NO_HEAD} quantizes the head"
        )
    for layer in layers:
        if layer.parameter.dtype not in _DTYPES or layer.parameter.is_meta:
            state = "not loaded" if layer.parameter.is_meta else str(layer.parameter.dtype)
            raise UnsupportedError(
                f"the layer {layer.name} of {name} is {state}; a pair starts from a model with "
                "floating-point weights, not one that is already quantized or offloaded"
            )
    others = left_out(modules)
    return QuantizableLayers(
        layers=layers, left_out=others | {layer.name: HEAD for layer in out}, head=found
    )


def _in_head(
    linears: Sequence[LinearLayer], modules: Sequence[nn.Module], head: Head
) -> list[LinearLayer]:
    """The layers of a head; one whose weight a layer elsewhere shares is among them."""
    inside = dict(head_modules(modules, head))
    known = {id(module) for module in inside.values()}
    return [
        layer
        for layer in linears
        if any(id(module) in known for module in layer.modules)
        # experts and the projections of attention have no module of their own
        or any(layer.name.startswith(f"{path}.") for path in inside)
    ]
