"""What every quantizer returns, and the registry of those there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from quantdrift.quantizers.granularity import spread

__all__ = ["LayerQuantizer", "QuantizedWeight"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuantizedWeight:
    """A weight matrix as integer codes on a grid.

    Attributes:
        codes: int8 [out_features, in_features].
        scale: float32 [out_features, n_groups].
        bits: width of a code.
        group_size: input weights that share a scale, None for the whole row.
    """

    codes: Tensor
    scale: Tensor
    bits: int
    group_size: int | None

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """What the codes stand for, codes * scale: [out_features, in_features] in `dtype`."""
        scale = spread(self.scale, self.codes.shape[1], self.group_size)
        return (self.codes.to(torch.float32) * scale).to(dtype)


LayerQuantizer = Callable[[Tensor], QuantizedWeight]
"""Quantizes one weight matrix."""
