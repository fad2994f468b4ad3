"""A quantized weight in the layout of onnxruntime's MatMulNBits.

The operator computes y = x W^T with W = (code - zero_point) * scale. Codes are unsigned, 2, 4 or 8
bits wide, packed into bytes in blocks of 16 to 256 input features that share a scale and a zero
point. Our codes go in as they are, shifted to be unsigned; what the operator has no room for stands
beside it in the graph:

- an input scaling divides the input, a permutation reorders it;
- of a zero point that is no whole number the operator takes the whole part. The rest, times the
  scale, is a weight that all features of a group share: it multiplies the sum of their inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quantdrift.errors import UnsupportedError
from quantdrift.quantizers.base import QuantizedWeight
from quantdrift.quantizers.granularity import n_groups

__all__ = ["BLOCK_SIZES", "CONTAINERS", "PackedWeight", "block_size_for", "container_for", "pack"]

CONTAINERS = (2, 4, 8)
"""Widths that the operator has kernels for."""
BLOCK_SIZES = (16, 32, 64, 128, 256)
"""Block sizes that it has kernels for."""
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedWeight:
    """What MatMulNBits takes, and what stands beside it.

    Attributes:
        codes: uint8 [out_features, n_blocks, block_size * bits / 8], the first code of a byte in
            its lowest bits.
        scale: float32 [out_features, n_blocks].
        zero_point: uint8 [out_features, ceil(n_blocks * bits / 8)], packed like codes; None where
            it is 2^(bits-1) everywhere.
        bits: width of the container, at least that of the codes.
        block_size: input features that share a scale.
        in_features: columns that are meant; a last block may reach beyond them.
        group_size: input features that share a zero point, for `correction`.
        permutation: int64 [in_features], the order in which columns are stored; None for the given.
        input_scaling: float32 [in_features], to divide the input by; None for ones.
        correction: float32 [n_groups, out_features], to multiply sums over groups of the input
            with; None where zero points are whole numbers.
    """

    codes: NDArray[np.uint8]
    scale: NDArray[np.float32]
    zero_point: NDArray[np.uint8] | None
    bits: int
    block_size: int
    in_features: int
    group_size: int
    permutation: NDArray[np.int64] | None
    input_scaling: NDArray[np.float32] | None
    correction: NDArray[np.float32] | None


def container_for(bits: int) -> int:
    """The narrowest container that holds codes of a width.

    >>> [container_for(bits) for bits in (2, 3, 4, 5, 8)]
    [2, 4, 4, 8, 8]
    """
    return next(width for width in CONTAINERS if width >= bits)


def block_size_for(in_features: int, group_size: int | None, bits: int) -> int:
    """The block size that takes the least room; a block lies in one group.

    >>> block_size_for(384, 128, 4), block_size_for(384, 96, 4), block_size_for(384, None, 4)
    (128, 32, 128)

    Args:
        in_features: length of a row.
        group_size: input features that share a scale, None for all.
        bits: of the container.

    Raises:
        UnsupportedError: no block size divides the group size.
    """
    whole_row = n_groups(in_features, group_size) == 1
    fitting = [size for size in BLOCK_SIZES if whole_row or (group_size or 0) % size == 0]
    if not fitting:
        raise UnsupportedError(
            f"groups of {group_size} weights cannot be written as ONNX: onnxruntime's MatMulNBits "
            f"takes blocks of {', '.join(map(str, BLOCK_SIZES))}; use a group size that is a "
            "multiple of 16, per-channel scales, or --format safetensors"
        )

    def room(size: int) -> int:
        return -(-in_features // size) * (size * bits // 8 + _SCALE_BYTES)

    return min(fitting, key=lambda size: (room(size), -size))


def pack(quantized: QuantizedWeight) -> PackedWeight:
    """Lay out a quantized weight for MatMulNBits; no code changes its meaning.

    Args:
        quantized: codes and grid, on any device.

    Raises:
        UnsupportedError: its groups fit no block size.
    """
    codes = _numpy(quantized.codes)
    out_features, in_features = codes.shape
    permutation = None if quantized.permutation is None else _numpy(quantized.permutation)
    if permutation is not None:
        codes = codes[:, permutation]
    bits = container_for(quantized.bits)
    block_size = block_size_for(in_features, quantized.group_size, bits)
    n_blocks = -(-in_features // block_size)
    group_size = min(quantized.group_size or in_features, in_features)
    group_of_block = np.arange(n_blocks) * block_size // group_size

    offset = 2 ** (bits - 1)
    unsigned = np.zeros((out_features, n_blocks * block_size), np.uint8)
    unsigned[:, :in_features] = codes.astype(np.int16) + offset
    scale = _numpy(quantized.scale).astype(np.float32)
    zero_point = correction = None
    if quantized.zero_point is not None:
        exact = _numpy(quantized.zero_point).astype(np.float64) + offset
        whole = np.clip(np.rint(exact), 0, 2**bits - 1)
        if (whole != offset).any():
            zero_point = _packed(whole.astype(np.uint8)[:, group_of_block], bits)
        if (exact != whole).any():
            correction = ((whole - exact) * scale).T.astype(np.float32)
    return PackedWeight(
        codes=_packed(unsigned, bits).reshape(out_features, n_blocks, block_size * bits // 8),
        scale=np.ascontiguousarray(scale[:, group_of_block]),
        zero_point=zero_point,
        bits=bits,
        block_size=block_size,
        in_features=in_features,
        group_size=group_size,
        permutation=permutation,
        input_scaling=None
        if quantized.input_scaling is None
        else _numpy(quantized.input_scaling).astype(np.float32),
        correction=correction,
    )


def _packed(values: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Values of a row into bytes, the first in the lowest bits; the last byte is filled up."""
    per_byte = 8 // bits
    missing = -values.shape[1] % per_byte
    padded = np.pad(values, ((0, 0), (0, missing)))
    parts = padded.reshape(len(values), -1, per_byte)
    packed = np.zeros(parts.shape[:2], np.uint8)
    for at in range(per_byte):
        packed |= parts[:, :, at] << np.uint8(bits * at)
    return packed


def _numpy(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().numpy()
