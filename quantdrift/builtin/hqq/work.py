"""HQQ: scale and zero point of a group fitted to its weights under a robust norm, by `hqq`."""

import importlib
from dataclasses import dataclass

import torch
from torch import Tensor

from quantdrift.base.errors import UnsupportedError
from quantdrift.candidate.libraries import HQQ, described, importing
from quantdrift.candidate.quantized import LayerQuantizer, Moments, QuantizedWeight
from quantdrift.scheme import Scheme

BITS = (2, 3, 4, 5, 6, 8)
"""Widths that the library quantizes to."""
_LARGEST_INVERSE_SCALE = 2e4
"""Limit at which the library clamps the inverse of a scale, for half precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hqq:
    """Half-quadratic quantization (Badri and Shaji, 2023) as a method; bits are one of BITS, or UnsupportedError."""

    bits: int
    group_size: int | None

    needs_moments = False

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            widths = ", ".join(map(str, BITS))
            raise UnsupportedError(
                f"hqq quantizes to {widths} bits, not to {self.bits}; use one of these or another quantizer"
            )

    def quantize(self, weight: Tensor, moments: Moments | None = None) -> QuantizedWeight:
        """Quantize one weight matrix; moments are not used.

        weight ~ (code - zero_point) * scale. Scale and zero point start as those of the group's minimum and maximum,
        code = round(weight / scale + zero_point); at most 20 half-quadratic iterations then fit the zero point under
        sum |error|^0.7, and end when the mean |error| of the matrix no longer falls. On CUDA the library iterates in
        half precision.
        """
        exact = weight.detach().to(torch.float32)
        n_columns = exact.shape[1]
        size = self.group_size or n_columns
        whole = n_columns - n_columns % size  # the library would let a group span two rows
        parts = [(exact[:, :whole], size), (exact[:, whole:], n_columns - whole)]
        fits = [_fit(part, self.bits, width) for part, width in parts if part.shape[1]]
        codes, scale, zero_point = (torch.cat(columns, dim=1) for columns in zip(*fits, strict=True))
        return QuantizedWeight(
            codes=codes, scale=scale, bits=self.bits, group_size=self.group_size, zero_point=zero_point
        )

    def describe(self) -> dict[str, str]:
        """Return library, version and grid."""
        return described(HQQ, grid="min-max with a fitted zero point")


def from_scheme(scheme: Scheme) -> LayerQuantizer:
    """Return the method of a scheme."""
    return Hqq(bits=int(scheme.weight_bits), group_size=scheme.group_size)


def _fit(weight: Tensor, bits: int, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes, scales and zero points of a matrix whose rows are whole groups."""
    with importing(HQQ):
        library = importlib.import_module("hqq.core.quantize")
    n_rows = len(weight)
    groups = weight.reshape(-1, group_size)
    lift = _lift(groups, bits)
    codes, meta = library.Quantizer.quantize(
        groups * lift,
        nbits=bits,
        group_size=group_size,
        axis=1,  # 0, the default, groups along strided rows
        optimize=True,
        round_zero=False,
        bitpack=False,
        device=weight.device,  # the default is a GPU
    )
    zero_point = meta["zero"].float()
    scale = meta["scale"].float() / lift
    # A group of one value has no range: one step from its zero point it is exact.
    low, high = groups.aminmax(dim=1, keepdim=True)
    value = torch.where(low == high, low, 0)
    scale = torch.where(low == high, torch.where(low == 0, 1, low.abs()), scale)
    zero_point = torch.where(low == high, codes[:, :1] - value.sign(), zero_point)
    middle = 2 ** (bits - 1)  # the library's codes start at 0
    return (
        (codes - middle).to(torch.int8).view(n_rows, -1),
        scale.view(n_rows, -1),
        (zero_point - middle).view(n_rows, -1),
    )


def _lift(groups: Tensor, bits: int) -> Tensor:
    """Return the power of two that a group of small weights is multiplied by before quantization.

    The library's clamp would leave such a group with few levels or none: at 8 bits a group with a range below 0.013
    gets worse than by plain rounding. A power of two changes no digit, and up to 0.17 the robust norm takes every
    residual for noise, so that the fit does not depend on size.
    """
    low, high = groups.aminmax(dim=1, keepdim=True)
    wanted = (2**bits - 1) / _LARGEST_INVERSE_SCALE
    missing = torch.ceil(torch.log2(wanted / (high - low)))
    # Nothing grows beyond 1, or the zero point of a group far from zero would lose its digits.
    room = torch.floor(-torch.log2(torch.maximum(-low, high)))
    exponent = torch.minimum(missing, room).clamp(min=0, max=100)
    return torch.exp2(exponent)
