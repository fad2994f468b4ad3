"""A digest that tells the weights of two models apart."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["weights_fingerprint"]


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
