"""Full-precision weights, put aside while quantized ones are in their place."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.engine.layers import LinearLayer
from quantdrift.engine.store import reserve
from quantdrift.errors import RunError

# --- Full-precision weights, put aside while quantized ones are in their place --------------------


@contextmanager
def put_aside(layers: Sequence[LinearLayer]) -> Iterator[list[Tensor]]:
    """Copies of the layers' weights; when the block is left, the layers have them back.

    Weights of an accelerator go to main memory. Weights that are in main memory already go to a
    mapped temporary file: the system keeps it in memory while there is room, and a model that fills
    the memory still fits.

    Raises:
        RunError: there is no room for the file.
    """
    copies: list[Tensor] = []
    for layer in layers:
        weight = layer.weight
        copies.append(_mapped_copy(weight) if weight.device.type == "cpu" else weight.cpu())
    try:
        yield copies
    finally:
        for layer, original in zip(layers, copies, strict=True):
            layer.weight.copy_(original)


def _mapped_copy(weight: Tensor) -> Tensor:
    """A copy in a temporary file that is gone when the copy is, also after a kill."""
    handle, name = tempfile.mkstemp(prefix="quantdrift-weights-")
    os.close(handle)
    path = Path(name)
    try:
        try:
            reserve(path, weight.numel() * weight.element_size())
        except OSError as error:
            raise RunError(
                f"no room in {path.parent} to put {weight.numel():,} weights aside: {error}. "
                "Set TMPDIR to a folder on a disk with as much room as the model takes"
            ) from error
        mapped = torch.from_file(name, shared=True, size=weight.numel(), dtype=weight.dtype)
        return mapped.view(weight.shape).copy_(weight)
    finally:
        with suppress(PermissionError):  # Windows keeps a mapped file until it is closed
            path.unlink()


# --- A digest that tells the weights of two models apart ------------------------------------------


def weights_fingerprint(modules: Sequence[nn.Module]) -> str:
    """A digest of all parameters and buffers: names, dtypes, shapes and bytes.

    Returns:
        32 hex digits. The same weights give the same digest on any machine of the same byte order.
    """
    digest = hashlib.blake2b(digest_size=16)
    for module in modules:
        for name, tensor in sorted(module.state_dict().items()):
            add_tensor(digest, name, tensor)
    return digest.hexdigest()


def add_tensor(digest: Any, name: str, value: object) -> None:
    """Add a tensor to a digest, or what a packed one consists of; anything else is passed over.

    Args:
        digest: of hashlib.
        name: of the tensor.
        value: what a state dict holds under that name.
    """
    if not isinstance(value, Tensor):
        return
    if hasattr(value, "__tensor_flatten__"):
        inner, settings = value.__tensor_flatten__()
        digest.update(f"{name}:{type(value).__name__}:{settings};".encode())
        for part in inner:
            add_tensor(digest, f"{name}.{part}", getattr(value, part))
        return
    digest.update(f"{name}:{value.dtype}:{tuple(value.shape)};".encode())
    data = value.detach().cpu().contiguous().flatten()
    if data.numel():
        digest.update(data.view(torch.uint8).numpy().data)


# --- A model that is as it was when others are done with it ---------------------------------------


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """When the block is left, by an error too, the model's modules have what they had before.

    That is: submodules, attributes, hooks, training or evaluation mode, the memory and device of
    every parameter and buffer, and the attributes of configurations. What was written into the same
    memory stays.

    Args:
        model: the outermost module that the block may change.
    """
    modules = list(model.modules())
    configs = {id(c): c for m in modules if (c := getattr(m, "config", None)) is not None}
    objects: list[Any] = [*modules, *configs.values()]
    attributes = [(vars(one), dict(vars(one))) for one in objects]
    parts = [(inner, dict(inner)) for one in modules for inner in vars(one).values() if _is_dict(inner)]
    tensors = [(one, one.data) for one in (*model.parameters(), *model.buffers())]
    try:
        yield
    finally:
        for now, before in (*attributes, *parts):
            now.clear()
            now.update(before)
        for tensor, data in tensors:
            tensor.data = data


def _is_dict(value: object) -> bool:
    """Of hooks, parameters, buffers and submodules, which modules keep in dictionaries."""
    return isinstance(value, dict)


# --- What decides embeddings beside weights and inputs --------------------------------------------


def runtime_of(weight: Tensor) -> dict[str, str]:
    """Libraries, device and dtype of a model.

    Args:
        weight: one of its weights.
    """
    names = ("torch", "transformers", "sentence-transformers")
    installed = {name: _version(name) for name in names}
    return {**installed, "device": weight.device.type, "dtype": str(weight.dtype)}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
