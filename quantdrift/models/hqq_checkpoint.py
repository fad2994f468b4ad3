"""HQQ checkpoints as plain ones: transformers 5 writes and names the format, but cannot read it.

The layers are unpacked into the floating-point weights that hqq's forward pass multiplies with, and
written to a temporary folder beside copies of all other files. The hqq library is not asked: it
evaluates text of the file as Python.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quantdrift.display import NAME, shown
from quantdrift.errors import RunError, UnsupportedError
from quantdrift.models.checkpoint import Checkpoint
from quantdrift.models.stored import weight_files
from quantdrift.records import read_json

__all__ = ["unpacked"]

CODES = "W_q"
"""The part of a layer's state that holds its codes; scale, zero and settings lie beside it."""

_WEIGHTS = "model.safetensors"
_MATRIX = 2
_COMPUTED = (torch.float16, torch.bfloat16, torch.float32)
_PACKINGS = {
    "8bit_u8": (torch.uint8, 8, (0,)),
    "4bit_u8": (torch.uint8, 4, (4, 0)),
    "3bit_32": (torch.int32, 3, tuple(range(27, -1, -3))),
    "2bit_u8": (torch.uint8, 2, (6, 4, 2, 0)),
    "1bit_u8": (torch.uint8, 1, tuple(range(7, -1, -1))),
}
"""What hqq calls a packing: type of a word, bits of a code, and where in a word each code begins.

The first codes of all words are the first rows, and so on.
"""
_PADDED = "3bit_32"
"""Ten rows to a word, the last ones of which may be padding."""


@contextmanager
def unpacked(checkpoint: Checkpoint) -> Iterator[Path]:
    """A temporary copy of a checkpoint's folder whose linear layers are unpacked.

    Args:
        checkpoint: of method "hqq".

    Raises:
        UnsupportedError: its weights are not as transformers writes them for HQQ.
        RunError: no room for the copy.
    """
    with tempfile.TemporaryDirectory(prefix="quantdrift-hqq-") as made:
        target = Path(made) / "model"
        body = target / checkpoint.body.relative_to(checkpoint.folder)
        try:
            shutil.copytree(checkpoint.folder, target, ignore=_weights_of(checkpoint.body))
            _write_weights(checkpoint.body, body)
            config = read_json(body / "config.json")
            config.pop("quantization_config", None)
            (body / "config.json").write_text(json.dumps(config), encoding="utf-8")
        except OSError as error:
            raise RunError(
                f"{checkpoint.name} cannot be unpacked to {made}: {error}. Set TMPDIR to a folder "
                "on a disk with as much room as the model takes in full"
            ) from error
        yield target


def _weights_of(body: Path) -> Callable[[str, list[str]], set[str]]:
    """What is not copied: the packed weights, folders that nothing is loaded from, and devices."""

    def skipped(folder: str, names: list[str]) -> set[str]:
        unused = {"onnx", "openvino", ".git"}
        places = {name: Path(folder, name) for name in names}
        unused |= {
            name
            for name, place in places.items()
            if not place.is_file() and (place.is_symlink() or not place.is_dir())
        }
        if Path(folder) == body:
            unused |= {name for name in names if name.endswith((".safetensors", ".bin"))}
            unused |= {name for name in names if name.endswith(".index.json")}
        return unused & set(names)

    return skipped


def _write_weights(source: Path, target: Path) -> None:
    """Every shard again, each layer in the shard that holds its codes."""
    from safetensors import safe_open  # noqa: PLC0415 -- comes with transformers
    from safetensors.torch import save_file  # noqa: PLC0415 -- as above

    files = weight_files(source, _WEIGHTS)
    weight_map: dict[str, str] = {}
    with ExitStack() as stack:
        opened = {file: stack.enter_context(safe_open(file, framework="pt")) for file in files}
        holder = {name: one for one in opened.values() for name in one.keys()}  # noqa: SIM118 -- no dict
        layers = {name.removesuffix(f".{CODES}") for name in holder if name.endswith(f".{CODES}")}
        if not layers:
            raise UnsupportedError(
                f"{source} names HQQ in its config.json, but holds no packed layer (NAME.{CODES} "
                f"in {_WEIGHTS}); expected what save_pretrained of transformers writes"
            )
        parts: dict[str, list[str]] = {layer: [] for layer in layers}
        for name in holder:
            if name.rpartition(".")[0] in layers:
                parts[name.rpartition(".")[0]].append(name)
        for file, here in opened.items():
            written: dict[str, Tensor] = {}
            for name in here.keys():  # noqa: SIM118 -- no dict
                layer = name.rpartition(".")[0]
                if layer not in layers:
                    written[name] = here.get_tensor(name)
                elif name == f"{layer}.{CODES}":
                    state = {part: holder[part].get_tensor(part) for part in parts[layer]}
                    written |= _unpacked_layer(layer, state)
            save_file(written, target / file.name, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(written, file.name)
    if len(files) > 1:
        index = {"metadata": {}, "weight_map": weight_map}
        (target / f"{_WEIGHTS}.index.json").write_text(json.dumps(index), encoding="utf-8")


def _unpacked_layer(layer: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    own = {name.removeprefix(f"{layer}."): tensor for name, tensor in state.items()}
    try:
        weight = _weight(own)
    except (KeyError, ValueError, RuntimeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise UnsupportedError(f"the HQQ layer {shown(layer)} cannot be unpacked: {why}") from error
    written = {f"{layer}.weight": weight.contiguous()}
    return written if "bias" not in own else {**written, f"{layer}.bias": own["bias"]}


def _weight(state: Mapping[str, Tensor]) -> Tensor:
    """(codes - zero) * scale, in the type and the order of hqq's own `dequantize`.

    hqq's loader passes letters of the file to `eval`, so nothing of the library reads them here:
    a setting is one of those that are known, or the layer is refused.

    Raises:
        KeyError: a part is missing.
        ValueError: a setting is none of those that hqq writes, or the parts do not fit.
        RuntimeError: torch cannot join the parts.
    """
    packing = _word(state["packing"], _PACKINGS, "packing")
    code, bits, shifts = _PACKINGS[packing]
    dtypes = {str(dtype): dtype for dtype in _COMPUTED}
    dtype = torch.float16
    if "compute_dtype" in state:
        dtype = dtypes[_word(state["compute_dtype"], dtypes, "compute_dtype")]
    for name in ("quant_scale", "quant_zero"):
        if _is_set(state, name):
            raise ValueError(f"its {name} is set, and scales that are packed too are not read")
    if "unpack_view_dtype" in state:
        _word(state["unpack_view_dtype"], [str(code)], "unpack_view_dtype")
    packed = state[CODES]
    if _is_set(state, "view_as_float"):
        packed = packed.contiguous().view(code)
    if packed.dtype != code or packed.ndim != _MATRIX or not packed.numel():
        raise ValueError(
            f"expected {CODES} as a matrix of {code}, got {list(packed.shape)} of {packed.dtype}"
        )
    shape = state["shape"].tolist() if state["shape"].numel() == _MATRIX else []
    width = packed.shape[1]
    n_rows, rest = divmod(prod(shape), width)
    n_codes = len(shifts) * len(packed)
    padding = n_codes - n_rows
    most = len(shifts) - 1 if packing == _PADDED else 0
    if min(shape, default=0) < 1 or rest or not 0 <= padding <= most:
        raise ValueError(f"{n_codes} x {width} codes do not make a layer of shape {shape}")
    codes = torch.cat([(packed >> shift) & ((1 << bits) - 1) for shift in shifts])[:n_rows]
    if "zero_scale" in state:
        zero, scale = state["zero_scale"].to(dtype)
    else:
        zero, scale = state["zero"].to(dtype), state["scale"].to(dtype)
    for part in (zero, scale):
        if np.broadcast_shapes(codes.shape, part.shape) != codes.shape:
            raise ValueError(
                f"scale and zero of shape {list(part.shape)} for {n_rows} x {width} codes"
            )
    weight: Tensor = ((codes.to(dtype) - zero) * scale).reshape(shape)
    return weight


def _word(letters: Tensor, allowed: Collection[str], name: str) -> str:
    """What a setting says, which a checkpoint spells out letter by letter."""
    known = letters.dtype == torch.uint8 and letters.ndim == 1 and len(letters) <= NAME
    word = bytes(letters.tolist()).decode("ascii", "replace") if known else "something else"
    if word not in allowed:
        raise ValueError(f"expected its {name} to be {', '.join(allowed)}; got {shown(word)}")
    return word


def _is_set(state: Mapping[str, Tensor], name: str) -> bool:
    return name in state and bool(state[name].any())
