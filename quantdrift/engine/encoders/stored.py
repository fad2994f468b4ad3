"""What a checkpoint stores for a model: which linear layers are packed, and in how many bits.

Packed formats keep several tensors for a linear layer (codes, scales, zero points), all of them
below the layer's name. So nothing here needs to know a format.
"""

from __future__ import annotations

import io
import json
import shutil
import struct
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from quantdrift.display import NAME, shown
from quantdrift.engine.bits import BitsReport
from quantdrift.errors import RunError, UnsupportedError
from quantdrift.models.checkpoint import Checkpoint
from quantdrift.records import parse_json, read_json

# --- How much a checkpoint stores for how many parameters of a model ------------------------------


def stored_size(sizes: Mapping[str, int], layer_of: Mapping[str, str], body: nn.Module) -> tuple[int, int]:
    """Count what is stored for a model, and the parameters that it is stored for.

    A parameter counts if it is stored under its name, below the name of a linear layer that has it,
    or in tensors that lie in the same module under other names: transformers renames some, and
    joins the experts of a mixture, when it loads them. What else a file holds (a language model's
    head) does not count, nor do parameters of which nothing is stored (a decoder that no embedding
    needs).

    Args:
        sizes: of the tensors in bytes, by the name that they have in the model.
        layer_of: names of tensors that lie below a linear layer, to the layer.
        body: the model unquantized, on any device, also meta.

    Returns:
        Bytes, and number of parameters; all of both where no name fits.
    """
    parameters = dict(body.named_parameters(remove_duplicate=False))
    stored_layers = set(layer_of.values())
    unknown = [name for name in sizes if name not in layer_of and name not in parameters]
    held: dict[int, int] = {}
    places = set()
    for name, parameter in parameters.items():
        module = name.rpartition(".")[0]
        elsewhere = any(other.startswith(f"{module}.") for other in unknown)
        if name in sizes or module in stored_layers or elsewhere:
            held[id(parameter)] = parameter.numel()
        if elsewhere and name not in sizes:
            places.add(f"{module}.")
    if not held:
        every = {id(parameter): parameter.numel() for parameter in parameters.values()}
        return sum(sizes.values()), sum(every.values())
    left_over = sum(sizes[name] for name in unknown if name.startswith(tuple(places)))
    known = sum(sizes[name] for name in sizes if name in layer_of or name in parameters)
    return known + left_over, sum(held.values())


# --- stored ---------------------------------------------------------------------------------------

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
            f"{folder} holds no weights: expected model.safetensors (or shards of it) or pytorch_model.bin"
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
        raise UnsupportedError(f"{index} is damaged, expected a weight_map from names to files: {error}") from error
    for file in shards:
        if not isinstance(file, str) or Path(file).name != file:
            raise UnsupportedError(f"{index} names the file {shown(str(file))}; expected files beside it")
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
    layers = {name: module for name, module in body.named_modules() if isinstance(module, nn.Linear)}
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
            name.startswith(prefix) and _layer_of(name.removeprefix(prefix), layers) is not None for name in tensors
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
    return UnsupportedError(f"{file} is damaged or cut short, expected a safetensors file: {why}. Copy it here again")


def _described(tensor: torch.Tensor) -> StoredTensor:
    names = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16"}
    names[torch.bfloat16] = "BF16"
    return StoredTensor(
        dtype=names.get(tensor.dtype, str(tensor.dtype).removeprefix("torch.")),
        shape=tuple(tensor.shape),
        n_bytes=tensor.numel() * tensor.element_size(),
    )


# --- What a GGUF file stores: its architecture, its tensors and their bits ------------------------

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
            return _stored_gguf_head(opened, file)
    except (struct.error, OSError, ValueError, ArithmeticError, LookupError, TypeError) as error:
        raise UnsupportedError(f"{file} is damaged or cut short: {error}") from error


def _stored_gguf_head(opened: BinaryIO, file: Path) -> GgufHead:
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


# --- hqq checkpoint -------------------------------------------------------------------------------

CODES = "W_q"
"""The part of a layer's state that holds its codes; scale, zero and settings lie beside it."""

_WEIGHTS = "model.safetensors"
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
            name for name, place in places.items() if not place.is_file() and (place.is_symlink() or not place.is_dir())
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
        raise ValueError(f"expected {CODES} as a matrix of {code}, got {list(packed.shape)} of {packed.dtype}")
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
            raise ValueError(f"scale and zero of shape {list(part.shape)} for {n_rows} x {width} codes")
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
