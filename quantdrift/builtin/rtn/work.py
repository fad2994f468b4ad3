"""Round to nearest: every weight to the nearest point of a symmetric grid."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quantdrift.candidate.quantized import LayerQuantizer, Moments, QuantizedWeight, group_absmax, in_groups, spread
from quantdrift.scheme import Scheme

_ROOM = 1 << 18
"""Weights that stay in a core's cache while they are rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundToNearest:
    """RTN as a method, of 2 to 8 bits; a group size of None is one scale per output channel."""

    bits: int
    group_size: int | None

    needs_moments = False

    def quantize(self, weight: Tensor, moments: Moments | None = None) -> QuantizedWeight:
        """Quantize one weight matrix; moments are not used."""
        return quantize_rtn(weight, bits=self.bits, group_size=self.group_size)

    def describe(self) -> dict[str, str]:
        """Return backend and grid."""
        return {"backend": "quantdrift", "grid": "symmetric absmax"}


def from_scheme(scheme: Scheme) -> LayerQuantizer:
    """Return the method of a scheme."""
    return RoundToNearest(bits=int(scheme.weight_bits), group_size=scheme.group_size)


def absmax_scale(weight: Tensor, *, bits: int, group_size: int | None) -> Tensor:
    """Return the step of every group's symmetric grid, max|w| / (2^(bits-1) - 1); 1 for a group of zeros."""
    scale = group_absmax(weight, group_size) / (2 ** (bits - 1) - 1)
    return torch.where(scale == 0, torch.ones_like(scale), scale)  # also on underflow


def quantize_rtn(weight: Tensor, *, bits: int, group_size: int | None) -> QuantizedWeight:
    """Quantize a weight matrix on a symmetric absmax grid (paper, appendix "Quantizers").

    scale = max|w| / (2^(bits-1) - 1) over a group, code = round(w / scale), halves to even.
    """
    levels = 2 ** (bits - 1) - 1
    exact = weight.detach().to(torch.float32)
    scale = absmax_scale(exact, bits=bits, group_size=group_size)
    codes = torch.round(exact / spread(scale, exact.shape[1], group_size))
    # absmax / levels can round down, which puts the largest weight a hair beyond the last level
    codes = codes.clamp_(-levels, levels)
    return QuantizedWeight(codes=codes.to(torch.int8), scale=scale, bits=bits, group_size=group_size)


def in_parts(matrix: Tensor) -> Sequence[Tensor]:
    """Divide a matrix by rows, so that a part stays in a core's cache; on an accelerator it is one part."""
    return torch.split(matrix, max(1, _ROOM // matrix.shape[1]) if matrix.device.type == "cpu" else len(matrix))


def rounded(weight: Tensor, *, bits: int, group_size: int | None) -> Tensor:
    """Return Q(W) of `quantize_rtn`, float32 [out_features, in_features], without making codes."""
    exact = weight.to(torch.float32)
    groups, scale = in_groups(exact, group_size), absmax_scale(exact, bits=bits, group_size=group_size)[..., None]
    levels = 2 ** (bits - 1) - 1
    return torch.div(groups, scale).round_().clamp_(-levels, levels).mul_(scale).flatten(1)[:, : exact.shape[1]]


def rounding_change(weight: Tensor, *, bits: int, group_size: int | None) -> Tensor:
    """Return Q(W) - W of `quantize_rtn`, float32 [out_features, in_features], for weights that are kept as `weight`."""
    kept = rounded(weight, bits=bits, group_size=group_size).to(weight.dtype)
    return kept.to(torch.float32).sub_(weight.to(torch.float32))
