"""Full-precision weights, put aside while quantized ones are in their place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from quantdrift.errors import RunError
from quantdrift.measurement.disk import reserve
from quantdrift.models.layers import LinearLayer

__all__ = ["put_aside"]


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
