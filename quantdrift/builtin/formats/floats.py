"""Number formats as compressed-tensors 0.20 defines them, in torch's number types.

weight = element * scale. Elements are e4m3 (torch.float8_e4m3fn, up to 448), e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6) or
int8; all round to nearest, halves to even, and clip. Everything is computed in float32.

    fp8      scale = max|w| / 448 of a row; fp8_tensor of the matrix
    int8     scale = max|w| / 127.5 of a row, codes from -128 to 127
    mxfp8    blocks of 32, scale = 2^(e - 8) and 2^(e - 2) for mxfp4, where 2^e is max|w| rounded to one digit of
    mxfp4    mantissa, halves up, and then down to a power of two; kept as e8m0
    nvfp4    blocks of 16, scale = e4m3(max|w| / 6 * g) / g, where g = 448 * 6 / max|w| of the whole matrix

Sources: OCP Microscaling Formats (MX) 1.0; compressed_tensors.quantization.utils.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from quantdrift.base.errors import DataError
from quantdrift.candidate.quantized import LayerQuantizer, Moments, QuantizedWeight, group_absmax, spread
from quantdrift.scheme import Scheme

_E4M3, _E2M1, _INT8 = 448.0, 6.0, 127.5
"""Value of the largest weight of a group."""
_SMALLEST_BLOCK_SCALE = 0.125
"""Replaces a block scale that e4m3 rounds to 0."""


# --- elements -----------------------------------------------------------------------------------------


def e4m3(x: Tensor) -> Tensor:
    """Round to float8_e4m3fn."""
    return x.clamp(-_E4M3, _E4M3).to(torch.float8_e4m3fn).to(torch.float32)


def e2m1(x: Tensor) -> Tensor:
    """Round to e2m1, for which torch has a type but no cast.

    >>> e2m1(torch.tensor([0.25, 0.75, 2.5, -5.0, 9.0])).tolist()
    [0.0, 1.0, 2.0, -4.0, 6.0]
    """
    size = x.abs().clamp(max=_E2M1)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))  # noqa: PLR2004 -- where steps double
    return torch.copysign(torch.round(size / step) * step, x)


def int8(x: Tensor) -> Tensor:
    """Round to whole numbers from -128 to 127."""
    return torch.round(x.clamp(-128, 127))


@cache
def _levels(element: Callable[[Tensor], Tensor]) -> Tensor | None:
    """Return all numbers of an element, ascending; None if they are the codes."""
    if element is int8:
        return None
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)
    return torch.unique(element(every[every.isfinite()]))  # type: ignore[no-any-return]  # untyped


# --- scales, of max|w| [n_rows, n_groups] and max|w| of everything ------------------------------------


def _linear(absmax: Tensor, _: Tensor, *, largest: float) -> Tensor:
    scale = absmax / largest
    return torch.where(scale == 0, torch.ones_like(scale), scale)  # for zeros, and on underflow


def _of_tensor(absmax: Tensor, whole: Tensor, *, largest: float) -> Tensor:
    return _linear(whole.expand_as(absmax), whole, largest=largest)


def _mx(absmax: Tensor, _: Tensor, *, exponent: int) -> Tensor:
    """Return powers of two; `exponent` is that of the element's largest number."""
    rounded = absmax.contiguous().view(torch.int32) + (1 << 21)
    biased = ((rounded >> 23) - exponent).clamp(min=0)  # an exponent of e8m0 is one of float32, but for 0: 2^-127
    return torch.where(biased == 0, 1 << 22, biased << 23).view(torch.float32)


def _nv(absmax: Tensor, whole: Tensor) -> Tensor:
    """Return scales of two levels; a factor that overflows is 1, as in compressed-tensors."""
    factor = _E4M3 * _E2M1 / whole.clamp(min=torch.finfo(torch.float32).tiny)
    factor = torch.where(factor.isfinite(), factor, torch.ones_like(factor))
    block = e4m3(factor * (absmax / _E2M1))
    return torch.where(block == 0, torch.full_like(block, _SMALLEST_BLOCK_SCALE), block) / factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format: its element, its scales, and how many numbers share one, None for a row."""

    element: Callable[[Tensor], Tensor]
    scales: Callable[[Tensor, Tensor], Tensor]
    group_size: int | None = None


_FP8 = Format(element=e4m3, scales=partial(_linear, largest=_E4M3))
FORMATS = {
    "fp8": _FP8,
    "fp8_tensor": Format(element=e4m3, scales=partial(_of_tensor, largest=_E4M3)),
    "int8": Format(element=int8, scales=partial(_linear, largest=_INT8)),
    "mxfp8": Format(element=e4m3, scales=partial(_mx, exponent=8), group_size=32),
    "mxfp4": Format(element=e2m1, scales=partial(_mx, exponent=2), group_size=32),
    "nvfp4": Format(element=e2m1, scales=_nv, group_size=16),
}


# --- weights ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatQuantizer:
    """A format as a method."""

    name: str
    bits: int

    needs_moments = False

    def quantize(self, weight: Tensor, moments: Moments | None = None) -> QuantizedWeight:
        """Round a weight matrix; moments are not used."""
        made, exact = FORMATS[self.name], finite(weight, self.name)
        absmax = group_absmax(exact, made.group_size)
        scale = made.scales(absmax, absmax.amax())
        values = made.element(exact / spread(scale, exact.shape[1], made.group_size))
        levels = _levels(made.element)
        if levels is not None:
            levels = levels.to(values.device)
            values = torch.bucketize(values, levels) - len(levels) // 2
        codes = values.to(torch.int8)
        return QuantizedWeight(codes=codes, scale=scale, bits=self.bits, group_size=made.group_size, levels=levels)

    def describe(self) -> dict[str, str]:
        """Return torch's version and the grid."""
        return {"backend": "torch", "version": torch.__version__, "grid": self.name}


def from_scheme(scheme: Scheme) -> LayerQuantizer:
    """Return the method of a scheme."""
    return FormatQuantizer(name=scheme.quantizer, bits=int(scheme.weight_bits))


def finite(weight: Tensor, name: str) -> Tensor:
    """Return a weight matrix in float32; DataError if it has infinities or NaN."""
    exact = weight.detach().to(torch.float32)
    if not bool(exact.isfinite().all()):
        raise DataError(
            f"{name} takes finite weights, and a layer [{' x '.join(map(str, weight.shape))}] has infinities or NaN; "
            "check the checkpoint, or load it in float32 or bfloat16"
        )
    return exact


# --- inputs of a layer --------------------------------------------------------------------------------


def _inputs(x: Tensor, *, absmax: float | None, bits: int, names: dict[int, str]) -> Tensor:
    """Round an input; without an `absmax`, every row or block uses its own."""
    if not x.numel() or absmax == 0:
        return torch.zeros_like(x)
    made = FORMATS[names[bits]]
    rows = x.reshape(-1, x.shape[-1]).to(torch.float32)
    groups = group_absmax(rows, made.group_size)
    whole = groups.amax() if absmax is None else groups.new_tensor(absmax)
    if made.group_size is None and absmax is not None:
        groups = whole.expand_as(groups)
    scale = spread(made.scales(groups, whole), rows.shape[1], made.group_size)
    values: Tensor = made.element(rows / scale) * scale
    return values.view(x.shape).to(x.dtype)


fp8_inputs = partial(_inputs, names={8: "fp8"})
int8_inputs = partial(_inputs, names={8: "int8"})
mx_inputs = partial(_inputs, names={4: "mxfp4", 8: "mxfp8"})
nvfp4_inputs = partial(_inputs, names={4: "nvfp4"})
