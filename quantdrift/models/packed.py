"""Checks that the codes in checkpoints of bitsandbytes, GPTQ and AWQ fit what the files say of them.

The libraries trust a file and take any numbers for codes: a wrong shape or block size ends in an assertion, a division
by zero, or a read out of bounds.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from quantdrift.base.display import shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.records import AS_LIST, Real, parse_json
from quantdrift.models.files.checkpoint import Checkpoint
from quantdrift.models.files.tensors import StoredTensor, check_stored, opened_tensors
from quantdrift.models.schemas import Listed, check_settings

Tensors = Mapping[str, StoredTensor]

# --- GPTQ and AWQ ---------------------------------------------------------------------------------

KERNELS = {"gptq": "torch", "awq": "torch_awq"}
"""Method to the kernel that takes any group size."""
_SIZES = (32, 64, 128, 256)
"""Group sizes of torch's CPU kernel. gptqmodel chooses it for other sizes too, and it fails at the first text."""
_WORDS = ("gemv_fast", "llm-awq")
"""Layouts of AWQ that pack codes into 16-bit words."""


def kernel_for(quantization: Mapping[str, Any], device: torch.device) -> dict[str, str]:
    """Return the entry of a quantization_config that names a kernel, if gptqmodel would choose one that fails."""
    left_open = quantization.get("backend") in {None, "auto"}
    fails = device.type == "cpu" and left_open and quantization.get("group_size", 128) not in _SIZES
    return {"backend": KERNELS[str(quantization["quant_method"])]} if fails else {}


def check_gptq(checkpoint: Checkpoint, tensors: Tensors) -> list[str]:
    """Refuse layers with tensors of other types, or columns without a group; return notes on a wrong label."""
    said, notes = checkpoint.quantization, []
    words = {"I16" if said.get("version") in _WORDS else "I32"}
    types = {"qweight": words, "qzeros": words, "g_idx": {"I32"}, "scales": {"F16", "BF16", "F32"}}
    for name, stored in tensors.items():
        if (part := name.rpartition(".")[2]) in types:
            check_stored(name, stored, types[part])
    with opened_tensors(checkpoint.body) as read:
        for name in (name for name in tensors if name.endswith(".g_idx")):
            _check_groups(name, read(name), tensors, said.get("group_size", 128))
        zeros = [read(name) for name in tensors if name.endswith(".qzeros")]
    label = str(said.get("checkpoint_format") or said.get("format") or "gptq").lower()
    bits, others = said.get("bits"), {"gptq": ("gptq_v2", 0), "gptq_v2": ("gptq", 1)}
    if checkpoint.method == "gptq" and said.get("sym", True) and bits in {2, 3, 4, 8} and label in others:
        other, less = others[label]
        value = 2 ** (bits - 1) - less
        if zeros and all(_all_are(value, bits, stored) for stored in zeros):
            notes.append(
                f"{checkpoint.name} says {label}, sym, and every zero point that it stores is {value}, as {other} has "
                f"it: read as {label} says, all weights are one step off. If {other} wrote it, set checkpoint_format "
                f"to {other} in its config.json and measure again"
            )
    return notes


def _check_groups(name: str, groups: Tensor, tensors: Tensors, size: object) -> None:
    """Refuse columns without a group, and groups with too many columns."""
    scales = tensors.get(f"{name.rpartition('.')[0]}.scales")
    n_groups = scales.shape[0] if scales is not None else 0
    most = size if isinstance(size, int) and size > 0 else groups.numel()
    if not groups.numel() or groups.min() < 0 or groups.max() >= n_groups or groups.bincount().max() > most:
        raise UnsupportedError(
            f"{shown(name)} gives some columns no group, or more than {most} the same: expected numbers from 0 to "
            f"{n_groups - 1}, as gptq writes them. Write the checkpoint again"
        )


def _all_are(value: int, bits: int, zeros: Tensor) -> bool:
    """Return whether all packed zero points have one value."""
    stream = sum(value << bits * place for place in range(32)).to_bytes(4 * bits, "little")
    words = torch.frombuffer(bytearray(stream), dtype=torch.int32)
    return bool((zeros == words.repeat(-(-zeros.shape[-1] // bits))[: zeros.shape[-1]]).all())


# --- bitsandbytes ---------------------------------------------------------------------------------

_STATE = ".quant_state.bitsandbytes__"
_MOST = 10_000
"""Most bytes of a state; a usual one has two hundred."""
_Dimension = Annotated[int, Field(gt=0, lt=1 << 31)]
_Float = Literal["float32", "float16", "bfloat16"]


class _State(Listed):
    """The state that bitsandbytes stores beside a matrix in 4 bits."""

    quant_type: Literal["nf4", "fp4"]
    blocksize: Literal[32, 64, 128, 256, 512, 1024, 2048, 4096]
    dtype: _Float
    shape: Annotated[tuple[_Dimension, _Dimension], AS_LIST]


class _Nested(_State):
    """A state whose scales are quantized to 8 bits, with scales of their own."""

    nested_blocksize: Literal[64, 128, 256, 512, 1024, 2048, 4096]
    nested_dtype: _Float
    nested_offset: Real


def check_bitsandbytes(folder: Path, tensors: Tensors, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse states and scales that do not fit the codes beside them; `shapes` maps layers to the shapes of weights."""
    with opened_tensors(folder) as read:
        for name, stored in tensors.items():
            if _STATE in name:
                check_stored(name, stored, {"U8"}, (min(stored.n_bytes, _MOST),))
                _check_state(name, bytes(read(name).tolist()), tensors, shapes)
            elif name.endswith(".SCB"):
                weight = f"{name.removesuffix('SCB')}weight"
                check_stored(weight, tensors.get(weight), {"I8"})
                check_stored(name, stored, {"F32"}, tensors[weight].shape[:1])


def _check_state(name: str, text: bytes, tensors: Tensors, shapes: Mapping[str, tuple[int, ...]]) -> None:
    weight, _, kind = name.partition(_STATE)
    try:
        said = parse_json(text)
    except ValueError as error:
        raise UnsupportedError(
            f"{shown(name)} is damaged, expected JSON: {error}. Copy the checkpoint here again"
        ) from error
    nested = "nested_blocksize" in said
    state = check_settings(said, _Nested if nested else _State, shown(name), "Copy the checkpoint here again")
    n_blocks = -(-prod(state.shape) // state.blocksize)
    wanted = {"absmax": ("U8" if nested else "F32", n_blocks), "quant_map": ("F32", 16)}
    if nested:
        wanted |= {"nested_absmax": ("F32", -(-n_blocks // state.nested_blocksize)), "nested_quant_map": ("F32", 256)}
    for end, (dtype, count) in wanted.items():
        check_stored(f"{weight}.{end}", tensors.get(f"{weight}.{end}"), {dtype}, count)
    layer = weight.removesuffix(".weight")
    shape = next((shape for part, shape in shapes.items() if f".{layer}".endswith(f".{part}")), state.shape)
    codes = tensors.get(weight)
    fits = codes is not None and codes.n_bytes == -(-prod(shape) // 2)  # FSDP keeps codes in any type
    if not fits or (kind, shape) != (state.quant_type, state.shape):
        raise UnsupportedError(
            f"{shown(name)} says {state.quant_type} of {list(state.shape)} weights, and beside it are {codes}; "
            f"expected {kind}, 4 bits for each of {list(shape)}. Copy the checkpoint here again"
        )
