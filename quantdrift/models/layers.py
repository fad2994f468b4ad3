"""The linear layers of a model, and which of them a forward pass reaches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["LinearLayer", "WeightUse", "find_linears", "modules_of", "weights_fingerprint"]

_SEARCH_DEPTH = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearLayer:
    """One nn.Linear; layers that share a weight are one.

    Attributes:
        name: path in the model; of tied layers the first.
        weight: parameter [out_features, in_features].
    """

    name: str
    weight: Tensor


def modules_of(model: object) -> list[nn.Module]:
    """The torch modules of a model object of any harness: itself, or what its attributes hold.

    Args:
        model: a module, or an object that keeps modules in attributes, lists or dicts.

    Returns:
        Outermost modules, each once; empty if there is none (an API client, bm25).
    """
    found: list[nn.Module] = []
    seen: set[int] = set()

    def search(value: object, depth: int) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, nn.Module):
            found.append(value)
        elif depth < _SEARCH_DEPTH:
            if isinstance(value, dict):
                parts: Sequence[object] = list(value.values())
            elif isinstance(value, list | tuple):
                parts = value
            else:
                parts = list(getattr(value, "__dict__", {}).values())
            for part in parts:
                search(part, depth + 1)

    search(model, 0)
    inner = {id(child) for root in found for child in root.modules() if child is not root}
    return [module for module in found if id(module) not in inner]


def find_linears(modules: Sequence[nn.Module]) -> list[LinearLayer]:
    """Every nn.Linear of the modules, tied ones once, in order of definition.

    Args:
        modules: outermost modules; with more than one, names start with its number.
    """
    layers: dict[int, LinearLayer] = {}
    for number, root in enumerate(modules):
        prefix = f"{number}." if len(modules) > 1 else ""
        for name, module in root.named_modules():
            if isinstance(module, nn.Linear):
                layer = LinearLayer(name=prefix + name, weight=module.weight)
                layers.setdefault(module.weight.data_ptr(), layer)
    return list(layers.values())


class WeightUse(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Notes which weights the result of what runs inside it depends on.

    It follows the data from operation to operation, and the result is what the last operation on
    floating-point numbers gives. So a layer that is called for nothing (BERT's pooler, where the
    embedding is a mean over tokens) does not count, and one whose weight a fused operation takes
    without calling the layer (attention output projections) does.
    """

    def __init__(self, layers: Sequence[LinearLayer]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self._weights = {
            layer.weight.untyped_storage().data_ptr(): frozenset([layer.name]) for layer in layers
        }
        # By storage: what is written through one view is read through another.
        self._sources: dict[StorageWeakRef, frozenset[str]] = {}
        self._last: frozenset[str] = frozenset()

    @property
    def used(self) -> frozenset[str]:
        """Names of the layers that the result depends on."""
        return self._last

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sources: frozenset[str] = frozenset()
        for tensor in _tensors((args, kwargs or {})):
            sources |= self._of(tensor)
        for output in _tensors(result):
            storage = _storage(output)
            if storage is not None:
                key = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # untyped in torch
                self._sources[key] = self._sources.get(key, frozenset()) | sources
            if output.is_floating_point():
                self._last = sources
        return result

    def _of(self, tensor: Tensor) -> frozenset[str]:
        storage = _storage(tensor)
        if storage is None:
            return frozenset()
        if storage.data_ptr() in self._weights:
            return self._weights[storage.data_ptr()]
        key = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # untyped in torch
        return self._sources.get(key, frozenset())


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


def weights_fingerprint(modules: Sequence[nn.Module]) -> str:
    """A digest of all parameters and buffers: names, dtypes, shapes and bytes.

    Returns:
        32 hex digits. The same weights give the same digest on any machine of the same byte order.
    """
    digest = hashlib.blake2b(digest_size=16)
    for module in modules:
        for name, tensor in sorted(module.state_dict().items()):
            if not isinstance(tensor, Tensor):
                continue
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
            data = tensor.detach().cpu().contiguous().flatten()
            if data.numel():
                digest.update(data.view(torch.uint8).numpy().data)
    return digest.hexdigest()
