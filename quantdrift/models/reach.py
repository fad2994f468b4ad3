"""Which weights the result of a forward pass depends on."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from quantdrift.models.layers import LinearLayer, MemoryRange, memory_range

__all__ = ["WeightUse"]

Layers = int
"""A set of layers: bit i for the i-th. A mixture has thousands, and every operation joins sets."""


class WeightUse(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Notes which weights the result of what runs inside it depends on.

    It follows the data from operation to operation, and the result is what the last operation on
    floating-point numbers gives. So a layer that is called for nothing (BERT's pooler, where the
    embedding is a mean over tokens) does not count, and one whose weight a fused operation takes
    without calling the layer (attention output projections) does. Of a stack of experts only those
    count that a token was sent to, if only one of zeros.
    """

    def __init__(self, layers: Sequence[LinearLayer]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self._names = [layer.name for layer in layers]
        self._weights = _WeightMap(layers)
        # By storage: what is written through one view is read through another.
        self._sources: dict[StorageWeakRef, Layers] = {}
        self._last: Layers = 0

    @property
    def used(self) -> frozenset[str]:
        """Names of the layers that the result depends on."""
        return frozenset(name for i, name in enumerate(self._names) if self._last >> i & 1)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        sources: Layers = 0
        stack, experts = self._chosen(func, args, kwargs)
        for tensor in _tensors((args, kwargs)):
            if tensor is stack:
                for expert in experts:
                    sources |= self._of(tensor[expert])
            else:
                sources |= self._of(tensor)
        for output in _tensors(result):
            # A view of weights depends on what it shows, not on all that it was taken from.
            shown = self._weights.within(memory_range(output))
            storage = _storage(output)
            if storage is not None and not shown:
                key = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # untyped in torch
                self._sources[key] = self._sources.get(key, 0) | sources
            if output.is_floating_point():
                self._last = shown or sources
        return result

    def _chosen(self, func: Any, args: Any, kwargs: Any) -> tuple[Tensor | None, Sequence[int]]:
        """The stack of experts of which an operation takes only some, and which; mostly none."""
        names = _TAKES_SOME.get(func._schema.name)
        if names is None:
            return None, ()
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        stack, choice = given[names[0]], given.get(names[1])
        if not self._weights.within(memory_range(stack)) or given.get("dim", 0) != 0:
            return None, ()
        if names[1] == "indices":
            choice = choice[0]
        if choice is None or choice.dtype in (torch.bool, torch.uint8):
            return None, ()
        if names[1] == "offs":  # where each expert's rows end
            rows = pairwise([0, *choice.tolist()])
            return stack, [expert for expert, (start, end) in enumerate(rows) if start < end]
        return stack, choice.unique().tolist()

    def _of(self, tensor: Tensor) -> Layers:
        if tensor.numel() == 0:  # an expert's answer to no tokens
            return 0
        weights = self._weights.within(memory_range(tensor))
        if weights:
            return weights
        storage = _storage(tensor)
        if storage is None:
            return 0
        key = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # untyped in torch
        return self._sources.get(key, 0)


class _WeightMap:
    """Where the layers' weights lie in memory."""

    def __init__(self, layers: Sequence[LinearLayer]) -> None:
        places: dict[torch.device, list[tuple[int, int, Layers]]] = {}
        for i, layer in enumerate(layers):
            place = memory_range(layer.weight)
            if place is not None:
                places.setdefault(place[0], []).append((*place[1:], 1 << i))
        self._places = {device: sorted(found) for device, found in places.items()}
        self._starts = {
            device: [start for start, _, _ in found] for device, found in self._places.items()
        }
        # Nothing before the first place where this exceeds an address reaches that address.
        self._ends = {
            device: list(accumulate((end for _, end, _ in found), max))
            for device, found in self._places.items()
        }

    def within(self, place: MemoryRange | None) -> Layers:
        """The layers that have a part of their weight in a range."""
        layers: Layers = 0
        if place is None or place[0] not in self._places:
            return layers
        device, start, end = place
        first = bisect_right(self._ends[device], start)
        behind = bisect_left(self._starts[device], end)
        for _, its_end, layer in self._places[device][first:behind]:
            if its_end > start:
                layers |= layer
        return layers


# Experts run in a loop, or by an operation that gets the whole stack: a selection of a matrix for
# every token, or a grouped product where each expert takes the next few rows of the input. Names of
# the arguments that are the stack and the choice.
_TAKES_SOME = {
    "aten::index": ("self", "indices"),
    "aten::index_select": ("self", "index"),
    "aten::_grouped_mm": ("mat2", "offs"),
    "transformers::grouped_mm_fallback": ("weight", "offs"),
}


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    try:
        storage = tensor.untyped_storage()
        storage.data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse and fake tensors have none
        return None
    return storage


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
