"""What a checkpoint stores for a model: which linear layers are packed, and in how many bits.

Packed formats keep several tensors for a linear layer (codes, scales, zero points), all of them below the layer's
name. So counting bits needs to know no format.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from torch import nn

from quantdrift.base.display import shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.records import open_file, parse_json, read_json
from quantdrift.engine.bits import BitsReport

_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""Types that hold weights as they are; a code has any other."""
_WEIGHTS = "model.safetensors"
_MAX_HEAD = 100_000_000
"""Bytes of a head, as in safetensors' own reader."""
_MATRIX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor in a file: its type, e.g. F16 or I32, its shape, and the bytes that it takes."""

    dtype: str
    shape: tuple[int, ...]
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLayers:
    """The names of a model's linear layers, by how a checkpoint stores them.

    Attributes:
        packed: quantized.
        plain: in floating point.
        missing: not at all.
        bits: what the checkpoint costs in bits per weight.
    """

    packed: tuple[str, ...]
    plain: tuple[str, ...]
    missing: tuple[str, ...]
    bits: BitsReport


# --- safetensors, and files of torch --------------------------------------------------------------


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a model folder by name, read from the heads of its files."""
    files = weight_files(folder, _WEIGHTS)
    if not files:
        raise UnsupportedError(
            f"{folder} holds no weights that are read: expected {_WEIGHTS} or shards of it, as save_pretrained of "
            "transformers writes them (not pickled ones, pytorch_model.bin)"
        )
    return {name: tensor for file in files for name, tensor in read_head(file).items()}


def weight_files(folder: Path, name: str) -> list[Path]:
    """The file of that name in a folder, or the shards that its index lists; empty if neither."""
    if (folder / name).is_file():  # transformers, too, looks for it first
        return [folder / name]
    index = folder / f"{name}.index.json"
    if not index.is_file():
        return []
    try:
        shards = set(read_json(index, limit=_MAX_HEAD)["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedError(f"{index} is damaged, expected a weight_map from names to files: {error}") from error
    for file in shards:
        if not isinstance(file, str) or Path(file).name != file:
            raise UnsupportedError(f"{index} names the file {shown(str(file))}; expected files beside it")
    return [folder / file for file in sorted(shards)]


def read_head(file: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file by name, as its head tells them; UnsupportedError if it is damaged."""
    try:
        size = file.stat().st_size
        with open_file(file) as opened:
            length = int.from_bytes(opened.read(8), "little")
            head = parse_json(opened.read(min(length, size, _MAX_HEAD)), strict=True)
        tensors = {
            name: StoredTensor(
                dtype=str(entry["dtype"]),
                shape=tuple(map(int, entry["shape"])),
                n_bytes=int(entry["data_offsets"][1]) - int(entry["data_offsets"][0]),
            )
            for name, entry in head.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _damaged(file, str(error)) from error
    said, there = sum(tensor.n_bytes for tensor in tensors.values()), size - 8 - length
    if said != there:
        raise _damaged(file, f"its head tells of {said:,} bytes, and {there:,} are there")
    return tensors


def _damaged(file: Path, why: str) -> UnsupportedError:
    return UnsupportedError(f"{file} is damaged or cut short, expected a safetensors file: {why}. Copy it here again")


# --- bits per weight ------------------------------------------------------------------------------


def stored_layers(
    tensors: Mapping[str, StoredTensor], body: nn.Module, *, others: Sequence[nn.Module] = ()
) -> StoredLayers:
    """Sort a model's linear layers by how they are stored, and count the bits.

    A layer is packed if something else than a floating-point weight of its shape lies below its name; the largest of
    its tensors holds the codes. A tensor counts if it lies in a module that has parameters, under whatever name
    (transformers renames some, and joins experts), and a parameter counts if anything of its module is stored: not a
    language model's head, nor a decoder that no embedding needs.
    """
    modules = {
        name: part for name, part in body.named_modules() if next(part.parameters(recurse=False), None) is not None
    }
    base = getattr(body, "base_model_prefix", "")  # a model saved with a head has its body below this name
    holders = {prefix: _holders(tensors, prefix, modules) for prefix in ("", f"{base}.")}
    prefix = max(holders, key=lambda prefix: len(holders[prefix]))
    below: dict[str, dict[str, StoredTensor]] = {name: {} for name in modules}
    for name, holder in holders[prefix].items():
        below[holder][name.removeprefix(f"{prefix}{holder}.")] = tensors[name]
    layers = {name: part for name, part in modules.items() if isinstance(part, nn.Linear)}
    parts = {name: {part: t for part, t in below[name].items() if part != "bias"} for name in layers}
    missing = tuple(name for name in layers if not parts[name])
    plain = tuple(name for name, layer in layers.items() if _is_plain(parts[name], layer))
    packed = tuple(name for name in layers if name not in (*missing, *plain))
    sizes = {name: [t.n_bytes for t in parts[name].values()] for name in packed or plain}
    held = {id(p): p.numel() for name in modules if below[name] for p in modules[name].parameters(recurse=False)}
    rest = {id(p): p for module in others for p in module.parameters()}.values()
    bits = _bits(
        list(sizes.values()),
        n_weights=sum(layers[name].weight.numel() for name in sizes),
        n_parameters=sum(held.values()) + sum(p.numel() for p in rest),
        everything=sum(tensors[name].n_bytes for name in holders[prefix])
        + sum(p.numel() * p.element_size() for p in rest),
        is_packed=bool(packed),
    )
    return StoredLayers(packed=packed, plain=plain, missing=missing, bits=bits)


def _bits(
    sizes: Sequence[Sequence[int]], *, n_weights: int, n_parameters: int, everything: int, is_packed: bool
) -> BitsReport:
    """The report of bytes: of the tensors of each layer, the largest of which holds the codes, and of all there are."""
    of_all = 8 * everything / max(n_parameters, 1)
    return BitsReport(
        linear=8 * sum(map(max, sizes)) / n_weights if n_weights else of_all,
        linear_with_scales=8 * sum(map(sum, sizes)) / n_weights if n_weights else of_all,
        all_parameters=of_all,
        n_quantized=n_weights if is_packed else 0,
        n_parameters=n_parameters,
    )


def _holders(names: Collection[str], prefix: str, modules: Collection[str]) -> dict[str, str]:
    """Of the names that begin with a prefix, the innermost of the modules that each lies in."""
    found = {}
    for name in names:
        place = name.removeprefix(prefix) if name.startswith(prefix) else ""
        while "." in place:
            place = place.rpartition(".")[0]
            if place in modules:
                found[name] = place
                break
    return found


def _is_plain(parts: Mapping[str, StoredTensor], layer: nn.Linear) -> bool:
    weight = parts.get("weight")
    if weight is None or len(parts) > 1:
        return False
    return weight.shape == tuple(layer.weight.shape) and weight.dtype in _FLOATS


# --- GGUF -----------------------------------------------------------------------------------------

_FLOAT_TYPES = frozenset({0, 1, 28, 30})
"""F32, F16, F64 and BF16; every other type is blocks of codes and scales."""
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LETTERS = 1 << 28
"""More than any name or template has."""
GgufTensors = dict[str, tuple[tuple[int, ...], int, int]]
"""By name: shape with the innermost dimension last, type number, bytes."""


def read_gguf_head(file: Path) -> GgufTensors:
    """The tensors of a GGUF file; UnsupportedError if it is none, of another version, or cut short."""
    try:
        with file.open("rb") as opened:
            if opened.read(4) != b"GGUF" or _number(opened, "I") not in {2, 3}:
                raise UnsupportedError(f"{file} is not a GGUF file of version 2 or 3")
            n_tensors, n_pairs = _number(opened, "Q"), _number(opened, "Q")
            pairs = {_string(opened): _value(opened, _number(opened, "I")) for _ in range(n_pairs)}
            places = []
            for _ in range(n_tensors):
                name, n_dims = _string(opened), _number(opened, "I")
                shape = tuple(_number(opened, "Q") for _ in range(n_dims))[::-1]
                places.append((name, shape, _number(opened, "I"), _number(opened, "Q")))
            alignment = int(pairs.get("general.alignment", 32))
            data = file.stat().st_size - -(-opened.tell() // alignment) * alignment
        # A tensor ends where the next begins, or up to an alignment before.
        after = dict(pairwise(sorted({offset for *_, offset in places} | {data})))
        return {name: (shape, kind, after[at] - at) for name, shape, kind, at in places}
    except (struct.error, OSError, ValueError, ArithmeticError, LookupError, TypeError) as error:
        raise UnsupportedError(f"{file} is damaged or cut short: {error}") from error


def _value(opened: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(opened)
    if kind != _ARRAY:
        return _number(opened, _NUMBERS[kind])
    if (inner := _number(opened, "I")) == _ARRAY:
        raise ValueError("a list of lists")
    return [_value(opened, inner) for _ in range(_number(opened, "Q"))]


def _number(opened: BinaryIO, code: str) -> Any:
    return struct.unpack(f"<{code}", opened.read(struct.calcsize(f"<{code}")))[0]


def _string(opened: BinaryIO) -> str:
    if (n_letters := _number(opened, "Q")) > _LETTERS:
        raise ValueError(f"it says that {n_letters:,} letters follow")
    return opened.read(n_letters).decode("utf-8")


def stored_gguf(file: Path, body: nn.Module) -> StoredLayers:
    """The weight matrices of a GGUF file by how they are stored, and their bits.

    Codes and scales share blocks there, so both are counted together. Names are the file's own.
    """
    tensors = read_gguf_head(file)
    matrices = {name: it for name, it in tensors.items() if name.startswith("blk.") and len(it[0]) == _MATRIX}
    packed = tuple(name for name, (_, kind, _) in matrices.items() if kind not in _FLOAT_TYPES)
    plain = tuple(name for name in matrices if name not in packed)
    counted = [matrices[name] for name in packed or plain]
    bits = _bits(
        [[size] for *_, size in counted],
        n_weights=sum(prod(shape) for shape, *_ in counted),
        n_parameters=sum(parameter.numel() for parameter in body.parameters()),
        everything=sum(size for *_, size in tensors.values()),
        is_packed=bool(packed),
    )
    return StoredLayers(packed=packed, plain=plain, missing=(), bits=bits)
