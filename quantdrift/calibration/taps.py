"""Seeing the inputs of a model's linear layers while it runs.

Most layers are modules, and a hook sees what they are called with. Some weights are used without a
call of their module (attention output projections, experts kept as one parameter): those are seen
at the matrix product itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from quantdrift.models.layers import LinearLayer

__all__ = ["Arrive", "ProductTap", "hooked_inputs", "plain_products"]

Arrive = Callable[[int, Tensor, Tensor | None], None]
"""Called with the layer's number, its input [..., in_features] and, where known, which rows count:
bool, shaped as the input without its last axis."""

_DEPTH_OF_MASK = 3


class _Local(threading.local):
    """What a thread is in the middle of."""

    def __init__(self) -> None:
        self.mask: Tensor | None = None
        self.masks: list[Tensor | None] = []
        self.called: int | None = None


@contextmanager
def hooked_inputs(
    modules: Sequence[nn.Module], layers: Sequence[LinearLayer], arrive: Arrive
) -> Iterator[_Local]:
    """Inside, `arrive` is called before each of the layers' modules runs.

    Args:
        modules: the model.
        layers: its layers; their numbers are positions in this sequence.
        arrive: as above; it may block.
    """
    local = _Local()
    with ExitStack() as stack:
        for root in modules:
            for name, module in root.named_modules():
                if name.count(".") < _DEPTH_OF_MASK:
                    enter, leave = _mask_hooks(local)
                    hook = module.register_forward_pre_hook(enter, with_kwargs=True)
                    stack.callback(hook.remove)
                    stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        for number, layer in enumerate(layers):
            for module in layer.modules:
                before, after = _layer_hooks(local, number, arrive)
                hook = module.register_forward_pre_hook(before, with_kwargs=True)
                stack.callback(hook.remove)
                stack.callback(module.register_forward_hook(after, always_call=True).remove)
        yield local


def _mask_hooks(local: _Local) -> tuple[Callable[..., None], Callable[..., None]]:
    """Take the mask that a module is given for as long as it runs."""

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given: Any = kwargs.get("attention_mask")
        if given is None and args and isinstance(args[0], Mapping):  # a SentenceTransformer
            given = args[0].get("attention_mask")
        local.masks.append(local.mask)
        if isinstance(given, Tensor) and given.dim() == 2 and not given.is_floating_point():  # noqa: PLR2004 -- one row per input
            local.mask = given.bool()

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if local.masks:
            local.mask = local.masks.pop()

    return enter, leave


def _layer_hooks(
    local: _Local, number: int, arrive: Arrive
) -> tuple[Callable[..., None], Callable[..., None]]:
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0] if args else kwargs.get("input")
        if isinstance(x, Tensor):
            arrive(number, x, _fitting(local.mask, x))
            local.called = number

    def after(module: nn.Module, args: Any, output: Any) -> None:
        local.called = None

    return before, after


def _fitting(mask: Tensor | None, x: Tensor) -> Tensor | None:
    """The mask where it speaks of the rows of x: padding is no calibration token."""
    fits = mask is not None and mask.shape == x.shape[:-1] and mask.device == x.device
    return mask if fits else None


class ProductTap(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Sees products with weights whose module is not called; for one thread.

    Args:
        layers: the layers, as for `hooked_inputs`.
        arrive: likewise.
        local: what `hooked_inputs` gave, so that a layer is not seen twice.
    """

    def __init__(self, layers: Sequence[LinearLayer], arrive: Arrive, local: _Local) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self._numbers: dict[object, int] = {
            (layer.weight.data_ptr(), frozenset(layer.weight.shape)): number
            for number, layer in enumerate(layers)
        }
        self._stacks: dict[object, list[tuple[int, int]]] = {}
        for number, layer in enumerate(layers):
            if layer.expert is not None:
                stack = layer.parameter
                key = (stack.data_ptr(), tuple(stack.shape))
                self._stacks.setdefault(key, []).append((number, layer.expert))
        self._arrive, self._local = arrive, local

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = _OPERANDS.get(func)
        if operands is not None:
            x, weight = args[operands[0]], args[operands[1]]
            number = self._numbers.get((_address(weight), frozenset(weight.shape)))
            if number is not None and number != self._local.called:
                self._arrive(number, x, None)
        elif func is _aten.bmm.default:
            x, stack = args[0], args[1]
            for number, expert in self._stacks.get((_address(stack), tuple(stack.shape)), ()):
                # tokens that are not for an expert come to it as zeros
                self._arrive(number, x[expert][x[expert].any(dim=-1)], None)
        return func(*args, **(kwargs or {}))


def _address(tensor: Tensor) -> int | None:
    """Where a tensor's numbers are; None for a sparse one, which has no such place."""
    try:
        return tensor.data_ptr()
    except (RuntimeError, NotImplementedError):
        return None


_aten = torch.ops.aten
_OPERANDS = {
    _aten.linear.default: (0, 1),
    _aten.addmm.default: (1, 2),
    _aten.mm.default: (0, 1),
    _aten.matmul.default: (0, 1),
}
"""Product to the positions of its input and its weight."""


@contextmanager
def plain_products(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, nothing is fused that would hide a product with a layer's weight.

    Args:
        modules: the model. Torch's encoder layers run as separate operations, and experts one by
            one.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    configs: dict[int, Any] = {}
    for root in modules:
        for module in root.modules():
            config = getattr(module, "config", None)
            if getattr(config, "_experts_implementation", None) is not None:
                configs[id(config)] = config
    chosen = [(config, config._experts_implementation) for config in configs.values()]
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for config, _ in chosen:
            config._experts_implementation = "eager"
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for config, before in chosen:
            config._experts_implementation = before
