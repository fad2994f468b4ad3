"""What a checkpoint stores for a model: which linear layers are packed, and in how many bits.

Packed formats keep several tensors for a linear layer (codes, scales, zero points), all of them
below the layer's name. So nothing here needs to know a format.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quantdrift.bits import BitsReport
from quantdrift.display import shown
from quantdrift.errors import UnsupportedError
from quantdrift.models.stored_size import stored_size
from quantdrift.records import parse_json, read_json

__all__ = [
    "StoredLayers",
    "StoredTensor",
    "read_head",
    "stored_layers",
    "stored_tensors",
    "weight_files",
]

_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""Types that hold weights as they are; a code has any other."""
_MAX_HEAD = 100_000_000
"""Bytes of a head, as in safetensors' own reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        dtype: as safetensors spells it, e.g. F16 or I32.
        shape: its shape.
        n_bytes: what it takes.
    """

    dtype: str
    shape: tuple[int, ...]
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLayers:
    """The linear layers of a model, by how a checkpoint stores them.

    Attributes:
        packed: names of layers that are quantized.
        plain: names of layers whose weight is stored in floating point.
        missing: names of layers of which nothing is stored.
        bits: what the checkpoint costs in bits per weight.
    """

    packed: tuple[str, ...]
    plain: tuple[str, ...]
    missing: tuple[str, ...]
    bits: BitsReport


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a model folder by name, read from the heads of its files.

    Args:
        folder: with model.safetensors, its shards, or pytorch_model.bin.

    Raises:
        UnsupportedError: there are no weights, or they cannot be read.
    """
    found: dict[str, StoredTensor] = {}
    try:
        files = weight_files(folder, "model.safetensors")
        old = [] if files else weight_files(folder, "pytorch_model.bin")
        for file in files:
            found |= read_head(file)
        for file in old:
            state = torch.load(file, map_location="meta", weights_only=True)
            found |= {name: _described(tensor) for name, tensor in state.items()}
    except (OSError, ValueError, KeyError, RuntimeError, AttributeError) as error:
        raise UnsupportedError(f"the weights in {folder} cannot be read: {error}") from error
    if not files and not old:
        raise UnsupportedError(
            f"{folder} holds no weights: expected model.safetensors (or shards of it) or "
            "pytorch_model.bin"
        )
    return found


def weight_files(folder: Path, name: str) -> list[Path]:
    """The file of that name in a folder, or the shards that its index lists; empty if neither.

    Args:
        folder: of a model.
        name: such as model.safetensors.

    Raises:
        UnsupportedError: the index is damaged, or leads out of the folder.
    """
    if (folder / name).is_file():  # transformers, too, looks for it first
        return [folder / name]
    index = folder / f"{name}.index.json"
    if not index.is_file():
        return []
    try:
        shards = set(read_json(index, limit=_MAX_HEAD)["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedError(
            f"{index} is damaged, expected a weight_map from names to files: {error}"
        ) from error
    for file in shards:
        if not isinstance(file, str) or Path(file).name != file:
            raise UnsupportedError(
                f"{index} names the file {shown(str(file))}; expected files beside it"
            )
    return [folder / file for file in sorted(shards)]


def stored_layers(
    tensors: Mapping[str, StoredTensor], body: nn.Module, *, others: Sequence[nn.Module] = ()
) -> StoredLayers:
    """Sort a model's linear layers by how they are stored, and count the bits.

    A layer is packed if something else than a floating-point weight of its shape lies below its
    name. The largest of its tensors holds the codes.

    Args:
        tensors: of the checkpoint.
        body: the model unquantized, on any device, also meta: names and shapes count.
        others: modules beside it (a projection after the pooling), stored as they are.
    """
    layers = {
        name: module for name, module in body.named_modules() if isinstance(module, nn.Linear)
    }
    prefix = _prefix(tensors, layers, body)
    below: dict[str, dict[str, StoredTensor]] = {name: {} for name in layers}
    named = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    layer_of = {name: layer for name in named if (layer := _layer_of(name, layers)) is not None}
    for name, layer in layer_of.items():
        below[layer][name.removeprefix(f"{layer}.")] = named[name]
    packed, plain, missing = [], [], []
    for name, module in layers.items():
        parts = below[name].keys() - {"bias"}
        weight = below[name].get("weight")
        whole = weight is not None and weight.shape == tuple(module.weight.shape)
        if not parts:
            missing.append(name)
        elif parts == {"weight"} and whole and weight is not None and weight.dtype in _FLOATS:
            plain.append(name)
        else:
            packed.append(name)
    counted = packed or plain
    n_weights = sum(layers[name].weight.numel() for name in counted)
    sizes = [[t.n_bytes for part, t in below[name].items() if part != "bias"] for name in counted]
    rest = {id(p): p for module in others for p in module.parameters()}.values()
    n_bytes, n_parameters = stored_size({k: t.n_bytes for k, t in named.items()}, layer_of, body)
    n_parameters += sum(p.numel() for p in rest)
    n_bytes += sum(p.numel() * p.element_size() for p in rest)
    of_all = 8 * n_bytes / n_parameters
    bits = BitsReport(
        linear=8 * sum(map(max, sizes)) / n_weights if n_weights else of_all,
        linear_with_scales=8 * sum(map(sum, sizes)) / n_weights if n_weights else of_all,
        all_parameters=of_all,
        n_quantized=n_weights if packed else 0,
        n_parameters=n_parameters,
    )
    return StoredLayers(packed=tuple(packed), plain=tuple(plain), missing=tuple(missing), bits=bits)


def _prefix(tensors: Mapping[str, Any], layers: Mapping[str, Any], body: nn.Module) -> str:
    """What the names in a file begin with: a model saved with a head has its body below a name."""
    base = getattr(body, "base_model_prefix", "")
    candidates = ["", *([f"{base}."] if base else [])]
    return max(
        candidates,
        key=lambda prefix: sum(
            name.startswith(prefix) and _layer_of(name.removeprefix(prefix), layers) is not None
            for name in tensors
        ),
    )


def _layer_of(name: str, layers: Mapping[str, Any]) -> str | None:
    """The layer that a tensor lies below: the longest name that it begins with."""
    while "." in name:
        name = name.rpartition(".")[0]
        if name in layers:
            return name
    return None


def read_head(file: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file by name, as its head tells them.

    Raises:
        UnsupportedError: it is cut short, or damaged.
    """
    try:
        tensors, told, there = _head(file)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _damaged(file, str(error)) from error
    if told != there:
        raise _damaged(file, f"its head tells of {told:,} bytes, and {there:,} are there")
    return tensors


def _head(file: Path) -> tuple[dict[str, StoredTensor], int, int]:
    """The tensors, the bytes that they take, and those that are there."""
    size = file.stat().st_size if file.is_file() else 0  # a pipe would be waited for
    with file.open("rb") if size else io.BytesIO() as opened:
        length = int.from_bytes(opened.read(8), "little")
        head = parse_json(opened.read(min(length, size, _MAX_HEAD)), once=True)
    tensors = {
        name: StoredTensor(
            dtype=str(entry["dtype"]),
            shape=tuple(map(int, entry["shape"])),
            n_bytes=int(entry["data_offsets"][1]) - int(entry["data_offsets"][0]),
        )
        for name, entry in head.items()
        if name != "__metadata__"
    }
    return tensors, sum(tensor.n_bytes for tensor in tensors.values()), size - 8 - length


def _damaged(file: Path, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{file} is damaged or cut short, expected a safetensors file: {why}. Copy it here again"
    )


def _described(tensor: torch.Tensor) -> StoredTensor:
    names = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16"}
    names[torch.bfloat16] = "BF16"
    return StoredTensor(
        dtype=names.get(tensor.dtype, str(tensor.dtype).removeprefix("torch.")),
        shape=tuple(tensor.shape),
        n_bytes=tensor.numel() * tensor.element_size(),
    )
