"""Quantized activations: one fixed range per tensor, at the input of every linear layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.models.layers import LinearLayer

__all__ = ["fake_quantize", "quantized_inputs"]


def fake_quantize(x: Tensor, *, absmax: float, bits: int) -> Tensor:
    """Round a tensor to a symmetric grid and clip what lies beyond (paper, appendix on A8).

    scale = absmax / (2^(bits-1) - 1), value = clamp(round(x / scale)) * scale, halves to even.

    Args:
        x: float, any shape; the arithmetic is done in float32.
        absmax: end of the range, fixed by calibration; 0 gives zeros.
        bits: 4 to 8.

    Returns:
        As x.
    """
    levels = 2 ** (bits - 1) - 1
    if absmax == 0:
        return torch.zeros_like(x)
    scale = absmax / levels
    codes = torch.round(x.to(torch.float32) / scale).clamp_(-levels, levels)
    quantized: Tensor = (codes * scale).to(x.dtype)
    return quantized


@contextmanager
def quantized_inputs(
    layers: Sequence[LinearLayer], ranges: Mapping[str, float], bits: int
) -> Iterator[None]:
    """Inside, the layers' modules get quantized inputs.

    Args:
        layers: the layers; one whose weight is used without a call of its module is passed over.
        ranges: layer name to the largest absolute input that calibration saw.
        bits: 4 to 8.
    """
    with ExitStack() as stack:
        for layer in layers:
            if layer.name in ranges:
                for module in layer.modules:
                    hook = _hook(ranges[layer.name], bits)
                    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
                    stack.callback(handle.remove)
        yield


def _hook(absmax: float, bits: int) -> Callable[..., tuple[Any, Any]]:
    def quantize(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args and isinstance(args[0], Tensor):
            args = (fake_quantize(args[0], absmax=absmax, bits=bits), *args[1:])
        elif isinstance(x := kwargs.get("input"), Tensor):
            kwargs = {**kwargs, "input": fake_quantize(x, absmax=absmax, bits=bits)}
        return args, kwargs

    return quantize
