"""The layers of a model that a pair can quantize, or why there are none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from quantdrift.errors import UnsupportedError
from quantdrift.models.layers import LinearLayer, find_linears

__all__ = ["quantizable_layers"]

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Of full-precision weights; an 8-bit float is a quantized one."""


def quantizable_layers(modules: Sequence[nn.Module], name: str) -> list[LinearLayer]:
    """The linear layers, all with floating-point weights in memory.

    Args:
        modules: the outermost torch modules of the model.
        name: of the model, for messages.

    Raises:
        UnsupportedError: there are none, or one is quantized already or not loaded.
    """
    layers = find_linears(modules)
    if not layers:
        raise UnsupportedError(
            f"{name} has no nn.Linear layer, so there is nothing to quantize; a pair needs a "
            "torch model with linear layers (not bm25, a static embedding or an API)"
        )
    for layer in layers:
        if layer.parameter.dtype not in _DTYPES or layer.parameter.is_meta:
            state = "not loaded" if layer.parameter.is_meta else str(layer.parameter.dtype)
            raise UnsupportedError(
                f"the layer {layer.name} of {name} is {state}; a pair starts from a model with "
                "floating-point weights, not one that is already quantized or offloaded"
            )
    return layers
