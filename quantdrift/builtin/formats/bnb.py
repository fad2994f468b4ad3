"""The formats of bitsandbytes 0.50: nf4 and fp4, each with and without double quantization, and LLM.int8().

nf4 and fp4 are sixteen numbers from -1 to 1 times max|w| of a block of 64; blocks run on from row to row. With double
quantization the blocks' maxima, less their mean, are kept in 8 bits of a dynamic number format, in blocks of 256.

LLM.int8() has codes of rows, max|w| / 127, of weights in float16. Inputs are rounded alike, token by token, without the
columns that hold an outlier, 6 or more in size, for any token of a batch: these stay as they are.

Sources: Dettmers et al., QLoRA (2023) and LLM.int8() (2022); bitsandbytes.functional and its CPU backend.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from quantdrift.builtin.formats.floats import finite
from quantdrift.candidate.quantized import LayerQuantizer, Moments, QuantizedWeight
from quantdrift.scheme import Scheme

_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Quantiles of a normal distribution (QLoRA, appendix E)."""
_FP4 = tuple(size / 12 for size in (-12, -8, -6, -4, -3, -2, -0.0625, 0, 0.0625, 2, 3, 4, 6, 8, 12))
_LEVELS = {"nf4": _NF4, "fp4": _FP4}
_TINY = 1e-38
"""Divisor in place of the maximum of a block of zeros."""
_NESTED_BLOCK = 256
_OUTLIER = 6.0
"""Least size of an outlier, the default of transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodebookQuantizer:
    """nf4 or fp4 as a method."""

    name: str
    block_size: int
    double: bool

    needs_moments = False

    def quantize(self, weight: Tensor, moments: Moments | None = None) -> QuantizedWeight:
        """Round a weight matrix; moments are not used."""
        exact = finite(weight, self.name)
        levels = torch.tensor(_LEVELS[self.name], device=exact.device)
        codes, absmax = _nearest(exact, levels, self.block_size)
        if self.double:
            absmax = _double_quantized(absmax)
        if exact.shape[1] % self.block_size:  # blocks span rows, so every weight has its own scale
            scale, size = absmax.repeat_interleave(self.block_size)[: exact.numel()].view(exact.shape), 1
        else:
            scale, size = absmax.view(len(exact), -1), self.block_size
        codes = (codes - len(levels) // 2).to(torch.int8)
        return QuantizedWeight(codes=codes, scale=scale, bits=4, group_size=size, levels=levels)

    def describe(self) -> dict[str, str]:
        """Return backend and grid."""
        nested = ", double quantization" if self.double else ""
        return {"backend": "quantdrift", "grid": f"bitsandbytes {self.name}, blocks of {self.block_size}{nested}"}


def from_scheme(scheme: Scheme) -> LayerQuantizer:
    """Return the method of nf4 or fp4 for a scheme."""
    name, _, double = scheme.quantizer.partition("_")
    return CodebookQuantizer(name=name, block_size=scheme.group_size or 1, double=bool(double))


def _nearest(x: Tensor, levels: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Return the nearest level's number of every value, in x's shape, and the largest size of every block."""
    flat = x.flatten()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % block_size)).view(-1, block_size)
    absmax = blocks.abs().amax(dim=1)
    scaled = (blocks * (1 / absmax.clamp(min=_TINY))[:, None]).clamp_(-1, 1)
    numbers = torch.bucketize(scaled, (levels[:-1] + levels[1:]) / 2)
    return numbers.flatten()[: len(flat)].view(x.shape), absmax


def _double_quantized(absmax: Tensor) -> Tensor:
    """Return the blocks' maxima after decoding, dynamic[code] * maximum + mean."""
    mean = absmax.mean()
    dynamic = _dynamic().to(absmax.device)
    numbers, largest = _nearest(absmax - mean, dynamic, _NESTED_BLOCK)
    return dynamic[numbers] * largest.repeat_interleave(_NESTED_BLOCK)[: len(absmax)] + mean


@cache
def _dynamic() -> Tensor:
    """Return the 256 numbers of the dynamic format: powers of ten from -6 to 0, the larger with more digits."""
    sizes = []
    for exponent in range(7):
        ends = torch.linspace(0.1, 1, 2**exponent + 1)
        sizes.append(10 ** (exponent - 6) * (ends[:-1] + ends[1:]) / 2)
    size = torch.cat(sizes)
    return torch.cat([-size, torch.tensor([0.0, 1.0]), size]).sort().values


# --- LLM.int8() ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmInt8:
    """LLM.int8() as a method."""

    needs_moments = False

    def quantize(self, weight: Tensor, moments: Moments | None = None) -> QuantizedWeight:
        """Round a weight matrix; moments are not used."""
        codes, absmax = _int8(finite(finite(weight, "llm_int8").half(), "llm_int8, in float16,"))
        return QuantizedWeight(codes=codes, scale=absmax / 127, bits=8, group_size=None)

    def describe(self) -> dict[str, str]:
        """Return backend and grid."""
        return {"backend": "quantdrift", "grid": f"bitsandbytes LLM.int8(), outliers from {_OUTLIER:g}"}


def llm_int8(scheme: Scheme) -> LayerQuantizer:
    """Return the method; no setting of a scheme changes it."""
    return LlmInt8()


def _int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes of float32 [n_rows, n_columns], and the largest size of every row, [n_rows, 1]."""
    absmax = rows.abs().amax(dim=1, keepdim=True)
    return torch.round(rows * (127 / absmax.clamp(min=_TINY))).nan_to_num_(0).to(torch.int8), absmax


def llm_int8_inputs(x: Tensor, *, absmax: float | None, bits: int) -> Tensor:
    """Round an input token by token, except columns with an outlier in any token of the batch.

    Range and width are those of the format.
    """
    if not x.numel():
        return x
    rows = x.reshape(-1, x.shape[-1]).half().float()  # the library casts first
    outliers = rows.abs() >= _OUTLIER
    codes, largest = _int8(rows.masked_fill(outliers, 0))
    return torch.where(outliers.any(dim=0), x, (codes * (largest / 127)).view(x.shape).to(x.dtype))
