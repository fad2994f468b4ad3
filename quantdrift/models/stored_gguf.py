"""What a GGUF file stores: its architecture, its tensors and their bits.

Only the head of the file is read. Layout (GGUF 2 and 3, little endian): magic, version, numbers of
tensors and of key-value pairs, the pairs, then for every tensor its name, dimensions (innermost
first), type and offset; then, aligned, the data.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from torch import nn

from quantdrift.bits import BitsReport
from quantdrift.display import shown
from quantdrift.errors import UnsupportedError
from quantdrift.models.stored import StoredLayers

__all__ = ["GgufHead", "read_gguf_head", "stored_gguf"]

_FLOAT_TYPES = frozenset({0, 1, 28, 30})
"""F32, F16, F64 and BF16; every other type is blocks of codes and scales."""

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_NUMBERS[12] = "d"
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32
_DIMS, _VALUES, _LETTERS = 8, 10_000_000, 1 << 28
"""More than any file has: dimensions of a tensor, tokens of a vocabulary, letters of a template."""
_MATRIX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHead:
    """The head of a GGUF file.

    Attributes:
        architecture: as llama.cpp names it, e.g. qwen3.
        tensors: by name: shape with the innermost dimension last, type number, bytes.
    """

    architecture: str
    tensors: dict[str, tuple[tuple[int, ...], int, int]]


def read_gguf_head(file: Path) -> GgufHead:
    """Read the head of a GGUF file.

    Args:
        file: the file.

    Raises:
        UnsupportedError: it is no GGUF file, one of another version, or cut short.
    """
    try:
        with file.open("rb") as opened:
            return _head(opened, file)
    except (struct.error, OSError, ValueError, ArithmeticError, LookupError, TypeError) as error:
        raise UnsupportedError(f"{file} is damaged or cut short: {error}") from error


def _head(opened: BinaryIO, file: Path) -> GgufHead:
    if opened.read(4) != b"GGUF":
        raise UnsupportedError(f"{file} is not a GGUF file: it does not begin as one")
    version = _number(opened, "I")
    if version not in {2, 3}:
        raise UnsupportedError(f"{file} is GGUF {version}; expected version 2 or 3")
    n_tensors = _few(_number(opened, "Q"), "tensors", _VALUES)
    n_pairs = _few(_number(opened, "Q"), "pairs", _VALUES)
    pairs = {}
    for _ in range(n_pairs):
        key = _string(opened)
        pairs[key] = _value(opened, _number(opened, "I"))
    places = []
    for _ in range(n_tensors):
        name = _string(opened)
        n_dims = _number(opened, "I")
        shape = tuple(_number(opened, "Q") for _ in range(_few(n_dims, "dimensions", _DIMS)))[::-1]
        places.append((name, shape, _number(opened, "I"), _number(opened, "Q")))
    head = opened.tell()
    alignment = int(pairs.get("general.alignment", _ALIGNMENT))
    data = file.stat().st_size - -(-head // alignment) * alignment
    # A tensor ends where the next begins, or up to an alignment before.
    starts = sorted({offset for *_, offset in places} | {data})
    after = dict(pairwise(starts))
    return GgufHead(
        architecture=shown(str(pairs.get("general.architecture", "unknown"))),
        tensors={name: (shape, kind, after[at] - at) for name, shape, kind, at in places},
    )


def stored_gguf(file: Path, body: nn.Module) -> StoredLayers:
    """The weight matrices of a GGUF file by how they are stored, and their bits.

    Codes and scales share blocks there, so both are counted together. Names are the file's own.

    Args:
        file: the file.
        body: the model that was made of it.

    Raises:
        UnsupportedError: as for `read_gguf_head`.
    """
    tensors = read_gguf_head(file).tensors
    matrices = {
        name: (prod(shape), kind, n_bytes)
        for name, (shape, kind, n_bytes) in tensors.items()
        if name.startswith("blk.") and len(shape) == _MATRIX
    }
    packed = tuple(name for name, (_, kind, _) in matrices.items() if kind not in _FLOAT_TYPES)
    plain = tuple(name for name in matrices if name not in packed)
    counted = packed or plain
    n_weights = sum(matrices[name][0] for name in counted)
    n_parameters = sum(parameter.numel() for parameter in body.parameters())
    of_all = 8 * sum(n_bytes for *_, n_bytes in tensors.values()) / n_parameters
    linear = 8 * sum(matrices[name][2] for name in counted) / n_weights if n_weights else of_all
    bits = BitsReport(
        linear=linear,
        linear_with_scales=linear,
        all_parameters=of_all,
        n_quantized=n_weights if packed else 0,
        n_parameters=n_parameters,
    )
    return StoredLayers(packed=packed, plain=plain, missing=(), bits=bits)


def _value(opened: BinaryIO, kind: int) -> Any:
    if kind in _NUMBERS:
        return _number(opened, _NUMBERS[kind])
    if kind == _STRING:
        return _string(opened)
    if kind != _ARRAY:
        raise struct.error(f"no value has type {kind}")
    inner, n = _number(opened, "I"), _few(_number(opened, "Q"), "values", _VALUES)
    if inner == _ARRAY:
        raise struct.error("a list of lists")
    return [_value(opened, inner) for _ in range(n)]


def _few(n: int, what: str, most: int) -> int:
    if n > most:
        raise struct.error(f"it says that {n:,} {what} follow")
    return n


def _number(opened: BinaryIO, code: str) -> Any:
    size = struct.calcsize(f"<{code}")
    return struct.unpack(f"<{code}", opened.read(size))[0]


def _string(opened: BinaryIO) -> str:
    return opened.read(_few(_number(opened, "Q"), "letters", _LETTERS)).decode("utf-8")
