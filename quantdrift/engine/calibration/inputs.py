"""The inputs of a model's linear layers: seen while it runs, summed up, and quantized."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from quantdrift.engine.layers import LinearLayer
from quantdrift.engine.quantizers.base import Moments

Arrive = Callable[[int, Tensor, Tensor | None], None]
"""Called with the layer's number, its input [..., in_features] and, where known, which rows count:
bool, shaped as the input without its last axis."""

_DEPTH_OF_MASK = 3
_BLOCK = 384
"""Columns of a second moment that are computed at a time."""


# --- seen -----------------------------------------------------------------------------------------


class _Masks(threading.local):
    """The attention masks of the calls that a thread is in, innermost last."""

    def __init__(self) -> None:
        self.stack: list[Tensor | None] = [None]


@contextmanager
def hooked_inputs(modules: Sequence[nn.Module], layers: Sequence[LinearLayer], arrive: Arrive) -> Iterator[None]:
    """Inside, `arrive` is called before each of the layers' modules runs; it may block.

    Padding does not count where the mask that a module near the root is given speaks of a layer's rows.
    """
    masks = _Masks()

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = kwargs.get("attention_mask")
        if given is None and args and isinstance(args[0], Mapping):  # a SentenceTransformer
            given = args[0].get("attention_mask")
        per_token = isinstance(given, Tensor) and given.dim() == 2 and not given.is_floating_point()  # noqa: PLR2004 -- one row per input
        masks.stack.append(given.bool() if per_token and given is not None else masks.stack[-1])

    def leave(*_: object) -> None:
        masks.stack[1:] = masks.stack[1:-1]

    def tell(number: int) -> Callable[..., None]:
        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x, mask = args[0] if args else kwargs.get("input"), masks.stack[-1]
            if isinstance(x, Tensor):
                fits = mask is not None and mask.shape == x.shape[:-1] and mask.device == x.device
                arrive(number, x, mask if fits else None)

        return before

    with ExitStack() as stack:
        for name, module in (named for root in modules for named in root.named_modules()):
            if name.count(".") < _DEPTH_OF_MASK:
                stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        for number, layer in enumerate(layers):
            for module in layer.modules:
                stack.callback(module.register_forward_pre_hook(tell(number), with_kwargs=True).remove)
        yield


@contextmanager
def plain_products(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, nothing is fused that would hide a layer's call or product: torch's encoder layers, experts."""
    fast = torch.backends.mha.get_fastpath_enabled()
    configs = [getattr(module, "config", None) for root in modules for module in root.modules()]
    chosen = [
        (config, how) for config in configs if (how := getattr(config, "_experts_implementation", None)) is not None
    ]
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for config, _ in chosen:
            config._experts_implementation = "eager"  # type: ignore[union-attr]  # it has one
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for config, before in chosen:
            config._experts_implementation = before  # type: ignore[union-attr]  # as above


# --- summed up ------------------------------------------------------------------------------------


def gram(rows: Tensor) -> Tensor:
    """rows^T rows of float32 [n_tokens, in_features], of which half is computed and half mirrored."""
    n = rows.shape[1]
    product = rows.new_empty(n, n)
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        product[start:stop, start:] = rows[:, start:stop].T @ rows[:, start:]
        product[stop:, start:stop] = product[start:stop, stop:].T
    return product


def moments_of(inputs: Sequence[tuple[Tensor, Tensor | None]], in_features: int, *, second: bool) -> Moments:
    """The moments over all tokens of several inputs."""
    device = inputs[0][0].device if inputs else torch.device("cpu")
    total = torch.zeros(in_features, in_features if second else 0, device=device)
    absolute = torch.zeros(in_features, device=device)
    largest = torch.zeros((), device=device)
    n_tokens = 0
    for x, mask in inputs:
        rows = (x.reshape(-1, in_features) if mask is None else x[mask]).to(torch.float32)
        if not len(rows):
            continue
        if second:
            total += gram(rows)
        absolute += rows.abs().sum(dim=0)
        largest = torch.maximum(largest, rows.abs().max())
        n_tokens += len(rows)
    count = max(1, n_tokens)
    return Moments(second=total / count, mean_abs=absolute / count, absmax=float(largest), n_tokens=n_tokens)


def output_error(weight: Tensor, low: Tensor, second: Tensor) -> float | None:
    """Relative squared error of a layer's output, ||X (W - Q)^T||^2 / ||X W^T||^2."""
    exact = weight.to(torch.float32)
    error = exact - low.to(torch.float32)
    power = float(((exact @ second) * exact).sum())
    return max(0.0, float(((error @ second) * error).sum()) / power) if power > 0 else None


# --- quantized: at the input of every linear layer, on a fixed range or on one for each token -----


def fake_quantize(x: Tensor, *, absmax: float | None, bits: int) -> Tensor:
    """Round a tensor to a symmetric grid and clip what lies beyond (paper, appendix on A8).

    scale = absmax / (2^(bits-1) - 1), value = clamp(round(x / scale)) * scale, halves to even. Without an absmax, every
    row of the last dimension (a token) has that of its own.
    """
    levels = 2 ** (bits - 1) - 1
    if absmax == 0:
        return torch.zeros_like(x)
    exact = x.to(torch.float32)
    if absmax is None:  # of a row of zeros any scale will do, but 0
        scale = (exact.abs().amax(dim=-1, keepdim=True) / levels).clamp_min(torch.finfo(torch.float32).tiny)
    else:
        scale = absmax / levels
    codes = torch.round(exact / scale).clamp_(-levels, levels)
    quantized: Tensor = (codes * scale).to(x.dtype)
    return quantized


class Rounding(Protocol):
    """Rounds the input of a layer to a grid that ends at `absmax`, or where the input itself says."""

    def __call__(self, x: Tensor, *, absmax: float | None) -> Tensor:
        """The rounded input, in its shape and number type."""
        ...


@contextmanager
def quantized_inputs(
    layers: Sequence[LinearLayer], ranges: Mapping[str, float | None], rounding: Rounding
) -> Iterator[set[str]]:
    """Inside, the layers' modules get rounded inputs; gives the names of those that were called.

    Args:
        layers: of the model.
        ranges: layer name to the end of its grid, None for one that its input says; a layer without is left alone.
        rounding: of an input.
    """
    called: set[str] = set()

    def quantize(name: str, absmax: float | None) -> Callable[..., tuple[Any, Any]]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            called.add(name)
            if args and isinstance(args[0], Tensor):
                args = (rounding(args[0], absmax=absmax), *args[1:])
            elif isinstance(x := kwargs.get("input"), Tensor):
                kwargs = {**kwargs, "input": rounding(x, absmax=absmax)}
            return args, kwargs

        return hook

    with plain_products([]), ExitStack() as stack:  # torch's encoder would hand over nested tensors
        for layer in layers:
            for module in layer.modules if layer.name in ranges else ():
                hook = quantize(layer.name, ranges[layer.name])
                stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield called
