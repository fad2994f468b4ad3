"""A digest that tells the weights of two models apart."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["add_tensor", "weights_fingerprint"]


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
