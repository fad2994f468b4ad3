"""The grid of round to nearest in the place where a GPTQ library keeps its own quantizer."""

from __future__ import annotations

import torch
from torch import Tensor

from quantdrift.quantizers.rtn import absmax_scale

__all__ = ["AbsmaxGrid"]


class AbsmaxGrid:
    """The symmetric grid max|w| / (2^(bits-1) - 1) of every row, behind the libraries' interface.

    Attributes:
        scale: float32 [out_features, 1], of the columns last given to `find_params`.
        zero: zeros of that shape, which the libraries collect beside the scale.
        maxq: what gptqmodel compares with the width of its own grid on CUDA; never equal to it, so
            that its fused kernel, which has that grid built in, stays out.
    """

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._levels = 2 ** (bits - 1) - 1
        self.scale = torch.zeros(1, 1)
        self.zero = torch.zeros(1, 1)
        self.maxq = torch.tensor(-1)

    def ready(self) -> bool:
        """Never, so that a library that asks fits the grid to the weights at hand."""
        return False

    def find_params(self, x: Tensor, weight: bool = True) -> None:
        """Fit the grid to the columns of a group.

        Args:
            x: float32 [out_features, n].
            weight: what the libraries always say: that x is one.
        """
        self.scale = absmax_scale(x, bits=self._bits, group_size=None)
        self.zero = torch.zeros_like(self.scale)

    def quantize(self, x: Tensor) -> Tensor:
        """Round a column, float32 [out_features, 1], to the grid."""
        codes = torch.round(x / self.scale).clamp_(-self._levels, self._levels)
        return codes * self.scale
