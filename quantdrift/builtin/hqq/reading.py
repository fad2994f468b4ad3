"""Checkpoints of hqq, unpacked here, since the library's own reader evaluates text of the file as Python.

Below the name of a layer lie its codes (W_q), scale, zero and bias, and every setting as a small tensor of its own,
text as the numbers of its letters. Settings, types and shapes stand on lists, and are looked at before codes are read.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from quantdrift.base.display import shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.models.files.tensors import StoredTensor, opened_tensors, stored_tensors

_LAYOUTS = {"8bit_u8": (8, 1), "4bit_u8": (4, 2), "3bit_32": (3, 10), "2bit_u8": (2, 4), "1bit_u8": (1, 8)}
"""Bits that a code takes, and codes in a number: of 32 bits where three of them are a code, of 8 elsewhere."""
_PADDED = 3
"""Bits of codes whose rows are filled up to whole numbers."""
_DTYPES = {f"torch.{name}": getattr(torch, name) for name in ("float16", "bfloat16", "float32")}
_NAMES = {torch.uint8: "U8", torch.int32: "I32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}
_FLOATS = {_NAMES[dtype] for dtype in _DTYPES.values()}
_YES, _NO, _EITHER, _NUMBER = (1,), (0,), (0, 1), range(1, 2**31)
SETTINGS: Mapping[str, Collection[object]] = {
    "packing": [*_LAYOUTS],
    "compute_dtype": [*_DTYPES],
    "unpack_view_dtype": ["torch.uint8", "torch.int32"],
    "nbits": (8, 6, 5, 4, 3, 2, 1),
    "group_size": _NUMBER,
    "shape": _NUMBER,
    "axis": _EITHER,
    "view_as_float": _EITHER,
    "quant_scale": _NO,  # scales and zeros that are quantized, or kept apart, are layouts of old versions
    "quant_zero": _NO,
    "offload_meta": _NO,
    "channel_wise": _YES,
    "encoded_state_dict": _YES,
    "stores_quant_config": _YES,
    "optimize": _EITHER,
    "round_zero": _EITHER,
}
"""What the settings of a layer may say; all have to be there, as hqq writes them all."""
_LONGEST = 24
"""Numbers of a setting; "torch.bfloat16" has 14."""


def unpacked(folder: Path) -> tuple[dict[str, Tensor], torch.dtype]:
    """The weights of a folder by name, those of packed layers as `HQQLinear.dequantize` gives them.

    Returns:
        The weights, and the number type that the packed layers compute in.

    Raises:
        UnsupportedError: a layer has a layout that is on no list, or tensors that contradict each other.
    """
    state: dict[str, Tensor] = {}
    below: dict[str, dict[str, StoredTensor]] = {}
    dtypes = set()
    for name, tensor in stored_tensors(folder).items():
        below.setdefault(name.rpartition(".")[0], {})[name] = tensor
    with opened_tensors(folder) as read:
        for layer, tensors in below.items():
            packed = f"{layer}.W_q" in tensors
            plain = [name for name in tensors if not packed or name == f"{layer}.bias"]
            state |= {name: read(name) for name in plain}
            if packed:
                state[f"{layer}.weight"] = weight = _dequantized(layer, tensors, read)
                dtypes.add(weight.dtype)
    if len(dtypes) != 1:
        raise UnsupportedError(f"{folder} has packed layers of {len(dtypes)} number types; expected hqq's, all of one")
    return state, dtypes.pop()


def _dequantized(layer: str, tensors: Mapping[str, StoredTensor], read: Callable[[str], Tensor]) -> Tensor:
    """The weight of a layer, in the number type that it computes in: (code - zero) * scale."""
    parts = {name.rpartition(".")[2]: tensor for name, tensor in tensors.items()}

    def check(good: bool, what: str) -> None:
        if not good:
            raise UnsupportedError(f"{shown(layer)} is not stored as hqq writes safetensors: {what}")

    others = {"W_q", "scale", "zero", *SETTINGS} ^ {*parts} - {"bias"}
    check(not others, f"{shown(', '.join(sorted(others)[:4]))} missing, or of another layout")
    settings: dict[str, Any] = {}
    for part, allowed in SETTINGS.items():
        text, count = isinstance(next(iter(allowed)), str), 2 if part == "shape" else 1
        small = prod(parts[part].shape) <= (_LONGEST if text else count)
        check(small and parts[part].dtype in ({"U8"} if text else {"U8", "I32", "I64"}), f"{part} is {parts[part]}")
        numbers = read(f"{layer}.{part}").flatten().tolist()
        values = [bytes(numbers).decode("latin-1")] if text else numbers
        check(len(values) == count and all(v in allowed for v in values), f"{part} is {shown(str(values))}")
        settings[part] = values if part == "shape" else values[0]
    (bits, per), size, shape = _LAYOUTS[settings["packing"]], settings["group_size"], settings["shape"]
    dtype, whole = _DTYPES[settings["compute_dtype"]], torch.int32 if bits == _PADDED else torch.uint8
    n_groups = prod(shape) // size
    n_rows, n_columns = (n_groups, size) if settings["axis"] else (size, n_groups)
    widths = {8: {8, 6, 5}}.get(bits, {bits})
    fits = n_groups * size == prod(shape) and (bits == _PADDED or n_rows % per == 0) and settings["nbits"] in widths
    check(fits, f"its settings contradict each other ({settings})")
    held = dtype if settings["view_as_float"] else whole
    scales = ((n_rows, 1) if settings["axis"] else (1, n_columns), _FLOATS)
    codes_in = ((-(-n_rows // per), n_columns * whole.itemsize / held.itemsize), {_NAMES[held]})
    for part, (expected, types) in {"W_q": codes_in, "scale": scales, "zero": scales}.items():
        check(parts[part].shape == expected and parts[part].dtype in types, f"{part} is {parts[part]}")
    packed = read(f"{layer}.W_q").view(whole)
    codes = torch.cat([packed >> bits * (per - 1 - place) & 2**bits - 1 for place in range(per)])[:n_rows].to(dtype)
    return ((codes - read(f"{layer}.zero").to(dtype)) * read(f"{layer}.scale").to(dtype)).reshape(shape)


@contextmanager
def made_of(state: Mapping[str, Tensor] | None) -> Iterator[None]:
    """Inside, transformers makes a model of these weights, as if they were in its files; as ever of None."""
    original = PreTrainedModel.__dict__["from_pretrained"]

    def from_pretrained(cls: Any, _: Any, /, *args: Any, config: Any, **kwargs: Any) -> Any:
        vars(config).pop("quantization_config", None)
        return original.__func__(cls, None, *args, config=config, state_dict=dict(state or {}), **kwargs)

    if state is not None:
        PreTrainedModel.from_pretrained = classmethod(from_pretrained)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        PreTrainedModel.from_pretrained = original  # type: ignore[method-assign]
