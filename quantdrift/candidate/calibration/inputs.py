"""The inputs of a model's linear layers: observed while it runs, summed into moments, and quantized."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from quantdrift.candidate.quantized import Moments
from quantdrift.models.layers import LinearLayer, MemoryRange, memory_range

Arrive = Callable[[int, Tensor, Tensor | None], Tensor | None]
"""Called with a layer's number, its input [..., in_features] and, if known, the mask of rows that count:
bool, in the shape of the input without its last axis. A tensor that it returns replaces the input."""

_ATEN = torch.ops.aten
_FACTORS = {_ATEN.linear.default: 0, _ATEN.matmul.default: 0, _ATEN.mm.default: 0, _ATEN.addmm.default: 1}
"""Operations that multiply an input by a matrix, to the position of the input; the matrix is the next argument."""

_DEPTH_OF_MASK = 3
_BLOCK = 384
"""Columns of a second moment to compute at a time."""


# --- observed-------------------------------------------------------------------------------------


class _Masks(threading.local):
    """The attention masks of the calls that a thread is in; the innermost is last."""

    def __init__(self) -> None:
        self.stack: list[Tensor | None] = [None]


@contextmanager
def hooked_inputs(modules: Sequence[nn.Module], layers: Sequence[LinearLayer], arrive: Arrive) -> Iterator[None]:
    """Inside, `arrive` is called before each of the layers multiplies an input; it may block.

    The input of a layer is observed when its module is called; for experts and torch's own attention, when their module
    multiplies by the whole matrix. Padding does not count if the attention mask that a module near the root gets fits
    the rows of the layer, or the rows from which a mixture selects those of an expert.
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
        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            x, mask = args[0] if args else kwargs.get("input"), masks.stack[-1]
            if not isinstance(x, Tensor):
                return None
            fits = mask is not None and mask.shape == x.shape[:-1] and mask.device == x.device
            if (other := arrive(number, x, mask if fits else None)) is None:
                return None
            return ((other, *args[1:]), kwargs) if args else (args, {**kwargs, "input": other})

        return before

    def watch(module: nn.Module, numbers: Mapping[MemoryRange, int]) -> Callable[..., Any]:
        forward = module.forward

        def watched(*args: Any, **kwargs: Any) -> Any:
            mask = masks.stack[-1]
            if mask is not None:  # torch's attention has the tokens of all inputs first
                mask = (mask.T if isinstance(module, nn.MultiheadAttention) else mask).flatten()
            with _Products(numbers, arrive, mask):
                return forward(*args, **kwargs)

        return watched

    with ExitStack() as stack:
        for name, module in (named for root in modules for named in root.named_modules()):
            if name.count(".") < _DEPTH_OF_MASK:
                stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        inside: dict[nn.Module, dict[MemoryRange, int]] = {}
        for number, layer in enumerate(layers):
            for module in layer.modules:
                stack.callback(module.register_forward_pre_hook(tell(number), with_kwargs=True).remove)
            if layer.inside is not None and (place := memory_range(layer.weight)) is not None:
                inside.setdefault(layer.inside, {})[place] = number
        for module, numbers in inside.items():
            stack.enter_context(computing_by(module, watch(module, numbers)))
        yield


@contextmanager
def computing_by(module: nn.Module, instead: Callable[..., Any]) -> Iterator[None]:
    """Inside, another function replaces the forward of a module."""
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = instead
    try:
        yield
    finally:
        del module.__dict__["forward"]
        if before is not None:
            module.__dict__["forward"] = before


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Observes the products with some weight matrices inside it.

    Args:
        numbers: memory of a matrix to the layer's number.
        arrive: called with the other factor.
        mask: the module's rows that count, bool [n_rows]; None if unknown.
    """

    def __init__(self, numbers: Mapping[MemoryRange, int], arrive: Arrive, mask: Tensor | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self._numbers, self._arrive, self._mask, self._chosen = numbers, arrive, mask, mask

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        at = _FACTORS.get(func)
        place = None if at is None else memory_range(args[at + 1])
        if at is not None and place is not None and (number := self._numbers.get(place)) is not None:
            other = self._arrive(number, args[at], self._counting(args[at]))
            args = args if other is None else (*args[:at], other, *args[at + 1 :])
        elif func is _ATEN.index.Tensor and self._mask is not None and len(args[1]) == 1:
            rows = args[1][0]  # the rows of one expert, whose number and order stay
            if rows is not None and rows.dim() == 1 and len(args[0]) == len(self._mask):
                self._chosen = self._mask.to(rows.device)[rows]
        return func(*args, **(kwargs or {}))

    def _counting(self, x: Tensor) -> Tensor | None:
        """Return the mask of rows of an input that count; None if unknown."""
        for mask in (self._chosen, self._mask):
            if mask is not None and mask.shape.numel() == x.shape[:-1].numel():
                return mask.to(x.device).reshape(x.shape[:-1])
        return None


def was_watched(layer: LinearLayer, layers: Sequence[LinearLayer], n_tokens: Sequence[int]) -> bool:
    """Say whether a layer would have been observed if a token had reached it, given the tokens at each layer.

    Either all experts in one parameter can be observed, or none of them.
    """
    together = (n for other, n in zip(layers, n_tokens, strict=True) if other.parameter is layer.parameter)
    return bool(layer.modules) or any(together)


@contextmanager
def plain_products(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, torch's encoder layers and experts are not fused, as that would hide calls and products of layers."""
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


# --- moments --------------------------------------------------------------------------------------


def add_gram(total: Tensor, rows: Tensor) -> None:
    """Add rows^T rows of float32 [n_tokens, in_features] in place; half of it is computed, the other half mirrored."""
    n = rows.shape[1]
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        total[start:stop, start:] += rows[:, start:stop].T @ rows[:, start:]
        total[stop:, start:stop] = total[start:stop, stop:].T


def moments_of(inputs: Sequence[tuple[Tensor, Tensor | None]], in_features: int, *, second: bool) -> Moments:
    """Compute the moments over all tokens of several inputs."""
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
            add_gram(total, rows)
        parts = torch.split(rows, _BLOCK, dim=1)  # a copy of all rows would be the largest tensor of the calibration
        absolute += torch.cat([part.abs().sum(dim=0) for part in parts])
        largest = torch.maximum(largest, torch.stack(rows.aminmax()).abs().max())
        n_tokens += len(rows)
    count = max(1, n_tokens)
    return Moments(second=total.div_(count), mean_abs=absolute / count, absmax=float(largest), n_tokens=n_tokens)


def output_error(weight: Tensor, low: Tensor, second: Tensor) -> float | None:
    """Return the relative squared error of a layer's output, ||X (W - Q)^T||^2 / ||X W^T||^2."""
    exact = weight.to(torch.float32)
    power = output_power(exact, second)
    return max(0.0, output_power(exact - low.to(torch.float32), second) / power) if power > 0 else None


def output_power(weight: Tensor, second: Tensor) -> float:
    """Compute tr(W second W^T), the mean power of a layer's output; of the symmetric product only half is computed."""
    n, total = weight.shape[1], 0.0
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        product = (weight[:, start:stop] @ second[start:stop, start:]).mul_(weight[:, start:])
        total += 2 * float(product.sum()) - float(product[:, : stop - start].sum())
    return total


# --- quantized, on a fixed range or a range for each token ----------------------------------------


def fake_quantize(x: Tensor, *, absmax: float | None, bits: int) -> Tensor:
    """Round a tensor to a symmetric grid and clip values beyond it (paper, appendix on A8).

    scale = absmax / (2^(bits-1) - 1), value = clamp(round(x / scale)) * scale, halves to even. Without an absmax, every
    row of the last dimension (a token) has its own.
    """
    levels = 2 ** (bits - 1) - 1
    if absmax == 0:
        return torch.zeros_like(x)
    exact = x.to(torch.float32)
    if absmax is None:  # a row of zeros needs some scale other than 0
        scale = (exact.abs().amax(dim=-1, keepdim=True) / levels).clamp_min(torch.finfo(torch.float32).tiny)
    else:
        scale = absmax / levels
    codes = torch.round(exact / scale).clamp_(-levels, levels)
    quantized: Tensor = (codes * scale).to(x.dtype)
    return quantized


class Rounding(Protocol):
    """Rounds the input of a layer to a grid that ends at `absmax`, or at a maximum of the input itself."""

    def __call__(self, x: Tensor, *, absmax: float | None) -> Tensor:
        """Return the rounded input, in its shape and number type."""
