"""What checkpoints of GPTQ and AWQ hold, looked at before gptqmodel reads it, which takes any numbers for codes."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from quantdrift.base.display import shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.checkpoints.checkpoint import Checkpoint
from quantdrift.engine.encoders.stored import StoredTensor, opened_tensors

KERNELS = {"gptq": "torch", "awq": "torch_awq"}
"""Methods to the kernel for any group size."""
_SIZES = (32, 64, 128, 256)
"""Group sizes of torch's own kernel on a CPU, which gptqmodel chooses for others, too: it fails at the first text."""
_WORDS = ("gemv_fast", "llm-awq")
"""Layouts of AWQ in words of 16 bits."""


def kernel_for(quantization: Mapping[str, Any], device: torch.device) -> dict[str, str]:
    """The entry of a quantization_config that chooses a kernel, where gptqmodel would choose one that fails."""
    left_open = quantization.get("backend") in {None, "auto"}
    fails = device.type == "cpu" and left_open and quantization.get("group_size", 128) not in _SIZES
    return {"backend": KERNELS[str(quantization["quant_method"])]} if fails else {}


def check_packed(checkpoint: Checkpoint, tensors: Mapping[str, StoredTensor]) -> list[str]:
    """Refuse layers with tensors of other types, or columns without a group; notes on what contradicts its label."""
    said, notes = checkpoint.quantization, []
    words = {"I16" if said.get("version") in _WORDS else "I32"}
    types = {"qweight": words, "qzeros": words, "g_idx": {"I32"}, "scales": {"F16", "BF16", "F32"}}
    for name, stored in tensors.items():
        expected = types.get(name.rpartition(".")[2], {stored.dtype})
        if stored.dtype not in expected:
            raise UnsupportedError(
                f"{shown(name)} is stored as {stored.dtype}; expected {' or '.join(sorted(expected))}, as "
                f"{checkpoint.method} writes it. Write the checkpoint again"
            )
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


def _check_groups(name: str, groups: Tensor, tensors: Mapping[str, StoredTensor], size: object) -> None:
    """Refuse columns in no group, and groups of more columns than there are in one."""
    scales = tensors.get(f"{name.rpartition('.')[0]}.scales")
    n_groups = scales.shape[0] if scales is not None else 0
    most = size if isinstance(size, int) and size > 0 else groups.numel()
    if not groups.numel() or groups.min() < 0 or groups.max() >= n_groups or groups.bincount().max() > most:
        raise UnsupportedError(
            f"{shown(name)} says no group of some columns, or one for more than {most}: expected numbers from 0 to "
            f"{n_groups - 1}, as gptq writes them. Write the checkpoint again"
        )


def _all_are(value: int, bits: int, zeros: Tensor) -> bool:
    """Whether all numbers in packed zero points are a value."""
    stream = sum(value << bits * place for place in range(32)).to_bytes(4 * bits, "little")
    words = torch.frombuffer(bytearray(stream), dtype=torch.int32)
    return bool((zeros == words.repeat(-(-zeros.shape[-1] // bits))[: zeros.shape[-1]]).all())
