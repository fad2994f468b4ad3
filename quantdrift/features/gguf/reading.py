"""The transformer of a GGUF file, its weights unpacked, and how they are stored."""

from __future__ import annotations

import struct
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
import transformers
from torch import nn

from quantdrift.base.errors import UnsupportedError
from quantdrift.checkpoints.checkpoint import Checkpoint
from quantdrift.engine.encoders.checkpoint import Loaded, dressed
from quantdrift.engine.encoders.sentence import SentenceEncoder
from quantdrift.engine.encoders.stored import StoredLayers, stored_bits

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
    matrices = {
        name: tensor
        for name, tensor in tensors.items()
        if name.startswith("blk.") and len(tensor[0]) == 2  # noqa: PLR2004 -- a matrix
    }
    packed = tuple(name for name, (_, kind, _) in matrices.items() if kind not in _FLOAT_TYPES)
    plain = tuple(name for name in matrices if name not in packed)
    counted = [matrices[name] for name in packed or plain]
    bits = stored_bits(
        [[size] for *_, size in counted],
        n_weights=sum(prod(shape) for shape, *_ in counted),
        n_parameters=sum(parameter.numel() for parameter in body.parameters()),
        everything=sum(size for *_, size in tensors.values()),
        is_packed=bool(packed),
    )
    return StoredLayers(packed=packed, plain=plain, bits=bits)


def load_encoder(checkpoint: Checkpoint, reference: SentenceEncoder | None, device: torch.device) -> Loaded:
    """Load the transformer of a GGUF file, its weights dequantized, with everything else from the reference."""
    place: dict[str, Any] = {"pretrained_model_name_or_path": checkpoint.folder, "gguf_file": checkpoint.file}
    # Blocks are unpacked by the names that weights have below a language model's head.
    with_head = type(transformers.AutoConfig.from_pretrained(**place)) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if hasattr(transformers, "GgufConfig"):  # not in every version that is allowed
        place["quantization_config"] = transformers.GgufConfig(dequantize=True)
    loader: Any = transformers.AutoModelForCausalLM if with_head else transformers.AutoModel
    model = loader.from_pretrained(**place, dtype="auto")
    body: nn.Module = model.base_model if with_head else model
    stored = stored_gguf(checkpoint.folder / str(checkpoint.file), body)
    return Loaded(model=dressed(checkpoint, reference, body, device), stored=stored)
