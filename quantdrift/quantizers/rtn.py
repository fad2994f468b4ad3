"""Round to nearest: every weight to the nearest point of a symmetric grid."""

from __future__ import annotations

import torch
from torch import Tensor

from quantdrift.quantizers.base import QuantizedWeight
from quantdrift.quantizers.granularity import group_absmax, spread

__all__ = ["quantize_rtn"]


def quantize_rtn(weight: Tensor, *, bits: int, group_size: int | None) -> QuantizedWeight:
    """Quantize a weight matrix on a symmetric absmax grid (paper, appendix "Quantizers").

    scale = max|w| / (2^(bits-1) - 1) over a group, code = round(w / scale), halves to even.

    Args:
        weight: float [out_features, in_features]; the arithmetic is done in float32.
        bits: 2 to 8.
        group_size: input weights that share a scale, None for one scale per output channel; the
            last group of a row may be shorter.

    Returns:
        The codes and scales. A group of zeros has scale 1 and codes 0.
    """
    levels = 2 ** (bits - 1) - 1
    exact = weight.detach().to(torch.float32)
    absmax = group_absmax(exact, group_size)
    scale = absmax / levels
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)  # also where it underflows
    codes = torch.round(exact / spread(scale, exact.shape[1], group_size))
    # absmax / levels can round down, which puts the largest weight a hair beyond the last level
    codes = codes.clamp_(-levels, levels)
    return QuantizedWeight(
        codes=codes.to(torch.int8), scale=scale, bits=bits, group_size=group_size
    )
