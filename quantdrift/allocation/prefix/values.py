"""What modules return, taken apart and put together again."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Hollow", "Poison", "hollowed", "mapped", "n_bytes", "tensors_in"]

Poison = dict[tuple[torch.device, torch.dtype], Tensor]
"""Memory full of nan, shared by all hollow tensors of a device and type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hollow:
    """A tensor of which nobody needs more than its shape."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def filled(self, poison: Poison) -> Tensor:
        """A tensor of that shape, all nan: a result that depends on it shows it."""
        needed = 1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        key = self.device, self.dtype
        found = poison.get(key)
        if found is None or len(found) < needed:
            with torch.inference_mode(False):
                found = torch.full((needed,), torch.nan, dtype=self.dtype, device=self.device)
            poison[key] = found
        return found.as_strided(self.shape, self.stride)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same containers anew, with every tensor in them changed.

    Containers are tuples, lists, mappings and dataclasses; anything else is taken as it is.
    """
    if isinstance(value, Tensor | Hollow):
        return change(value)
    same = value
    if isinstance(value, tuple):
        parts = [mapped(part, change) for part in value]
        kind: Any = type(value)
        same = kind(*parts) if hasattr(value, "_fields") else kind(parts)
    elif isinstance(value, list):
        same = copy.copy(value)
        same[:] = [mapped(part, change) for part in value]
    elif isinstance(value, MutableMapping):  # outputs of transformers are dataclasses as well
        same = copy.copy(value)
        for key in list(value):
            same[key] = mapped(value[key], change)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        same = copy.copy(value)
        for name, part in vars(value).items() if hasattr(value, "__dict__") else ():
            object.__setattr__(same, name, mapped(part, change))
    return same


def hollowed(value: Any) -> Any:
    """The same with floating-point tensors hollow; others may steer what is computed."""
    return mapped(value, _hollow)


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in a value."""
    found: list[Tensor] = []

    def note(tensor: Any) -> Any:
        if isinstance(tensor, Tensor):
            found.append(tensor)
        return tensor

    mapped(value, note)
    return found


def n_bytes(value: Any) -> int:
    """Memory that the tensors of a value keep from being freed."""
    sizes: dict[int, int] = {}
    for tensor in tensors_in(value):
        try:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        except (RuntimeError, NotImplementedError):  # sparse
            sizes[-id(tensor)] = tensor.numel() * tensor.element_size()
    return sum(sizes.values())


def _hollow(tensor: Any) -> Any:
    plain = isinstance(tensor, Tensor) and tensor.layout is torch.strided and not tensor.is_nested
    if not plain or not tensor.is_floating_point() or tensor.numel() == 0:
        return tensor
    return Hollow(
        shape=tensor.shape, stride=tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
