"""What a model's library wrote, looked at before it is believed.

A library may save something else than the weights that the model has: of a model with an adapter,
for instance, transformers saves the adapter alone, and loads it onto the full-precision model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quantdrift.errors import UnsupportedError
from quantdrift.models.fingerprint import weights_fingerprint
from quantdrift.models.layers import LinearLayer, find_linears
from quantdrift.saving.candidate import Candidate

__all__ = ["check_written"]


def check_written(candidate: Candidate, folder: Path, fingerprint: str) -> None:
    """Refuse a folder that does not hold the weights of the quantized layers.

    A layer's weight has to lie in the files byte for byte, under whatever name. Where one does not,
    as some libraries cut weights up or join them, the folder is loaded and compared as a whole.
    Files that are not safetensors are not looked at.

    Args:
        candidate: what was saved; it is in place.
        folder: what was written.
        fingerprint: digest of the candidate's weights.

    Raises:
        UnsupportedError: names a layer.
    """
    files = sorted(folder.rglob("*.safetensors"))
    names = {layer.name for layer in candidate.layers}
    layers = [layer for layer in find_linears([candidate.module]) if layer.name in names]
    missing = _not_in_files(layers, files) if files else []
    if missing and _loaded_fingerprint(candidate.model, folder) != fingerprint:
        kind = type(candidate.model).__name__
        raise UnsupportedError(
            f"{kind}.save_pretrained wrote something else than the quantized model: {len(missing)} "
            f"of {len(layers)} layers are not in its files, {missing[0].name} for one. A model "
            "with an adapter has to be merged with it first (merge_and_unload) and saved"
        )


def _not_in_files(layers: list[LinearLayer], files: list[Path]) -> list[LinearLayer]:
    wanted = {(layer.parameter.dtype, tuple(layer.parameter.shape)) for layer in layers}
    found = {_digest(tensor) for tensor in _tensors(files, wanted)}
    parameters = {id(layer.parameter): layer.parameter for layer in layers}
    there = {key: _digest(parameter) in found for key, parameter in parameters.items()}
    return [layer for layer in layers if not there[id(layer.parameter)]]


def _tensors(
    files: list[Path], wanted: set[tuple[torch.dtype, tuple[int, ...]]]
) -> Iterator[Tensor]:
    """The tensors of some types and shapes, one at a time."""
    from safetensors import safe_open  # noqa: PLC0415 -- comes with transformers

    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 -- no dict
                tensor: Tensor = opened.get_tensor(name)
                if (tensor.dtype, tuple(tensor.shape)) in wanted:
                    yield tensor


def _digest(tensor: Tensor) -> bytes:
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.blake2b(data.numpy().data, digest_size=16).digest()


def _loaded_fingerprint(model: Any, folder: Path) -> str | None:
    """Digest of the weights that the model's own library loads; None where it cannot."""
    load = getattr(type(model), "from_pretrained", type(model))
    try:
        return weights_fingerprint([load(str(folder))])
    except Exception:  # whatever it says, these files are not the model's
        return None
