"""The interface of quantizers: they turn one weight matrix into codes on a grid."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor


def in_groups(matrix: Tensor, group_size: int | None) -> Tensor:
    """Divide the last dimension into groups, [..., n_groups, group_size]; zeros fill up the last one.

    >>> in_groups(torch.ones(2, 100), 64).shape, in_groups(torch.ones(2, 100), None).shape
    (torch.Size([2, 2, 64]), torch.Size([2, 1, 100]))
    """
    size = group_size or matrix.shape[-1]
    missing = -matrix.shape[-1] % size
    padded = torch.nn.functional.pad(matrix, (0, missing)) if missing else matrix  # which would copy it
    return padded.reshape(*matrix.shape[:-1], -1, size)


def group_absmax(weight: Tensor, group_size: int | None) -> Tensor:
    """Return the largest absolute weight of every group of input weights, [out_features, n_groups]."""
    return in_groups(weight.abs(), group_size).amax(dim=2)


def spread(per_group: Tensor, in_features: int, group_size: int | None) -> Tensor:
    """Repeat a value of every group [out_features, n_groups] over the group's weights, [out_features, in_features]."""
    return per_group.repeat_interleave(group_size or in_features, dim=1)[:, :in_features]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """Moments of a layer's input over the calibration tokens.

    Attributes:
        second: float32 [in_features, in_features], mean over tokens of x x^T.
        mean_abs: float32 [in_features], mean over tokens of |x|.
        absmax: largest |x| of any feature of any token.
        n_tokens: number of tokens; 0 if the layer was never reached, and then all moments are zeros.
    """

    second: Tensor
    mean_abs: Tensor
    absmax: float
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuantizedWeight:
    """A weight matrix as integer codes on a grid.

    weight = (code - zero_point) * scale / input_scaling, with scale and zero_point of the code's group. On a grid with
    `levels`, levels[code + n_levels // 2] takes the place of the code. Columns are grouped in their order or in that of
    `permutation`.

    Attributes:
        codes: int8 [out_features, in_features], columns in the order of the weight matrix.
        scale: float32 [out_features, n_groups].
        bits: width of a code; codes lie in [-2^(bits-1), 2^(bits-1) - 1].
        group_size: input weights that share a scale; None for the whole row. The last group may be shorter.
        zero_point: float32 [out_features, n_groups], in units of codes; None for a symmetric grid.
        permutation: int64 [in_features], the order in which columns were quantized and grouped: column permutation[i]
            is in group i // group_size. None for the given order.
        input_scaling: float32 [in_features], positive factors of the weights before rounding; None for ones.
        levels: float32 [n_levels], ascending, the numbers of a format; None for integers.
        notes: figures of the method for this layer, such as the share of soft weights left.
    """

    codes: Tensor
    scale: Tensor
    bits: int
    group_size: int | None
    zero_point: Tensor | None = None
    permutation: Tensor | None = None
    input_scaling: Tensor | None = None
    levels: Tensor | None = None
    notes: Mapping[str, float] = field(default_factory=dict)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Return the weights of the codes: [out_features, in_features] in `dtype`."""
        codes = self.codes.to(torch.float32)
        if self.levels is not None:
            codes = self.levels[self.codes.to(torch.int32) + len(self.levels) // 2]
        if self.zero_point is not None:
            codes = codes - self.of_column(self.zero_point)
        weight = codes * self.of_column(self.scale)
        if self.input_scaling is not None:
            weight = weight / self.input_scaling
        return weight.to(dtype)

    def to(self, device: torch.device) -> Self:
        """Return it on another device."""
        moved: dict[str, Any] = {
            part.name: value.to(device)
            for part in fields(self)
            if isinstance(value := getattr(self, part.name), Tensor)
        }
        return replace(self, **moved)

    def of_column(self, per_group: Tensor) -> Tensor:
        """Repeat a value per group, [out_features, n_groups], for every column, [out_features, in_features]."""
        in_order = spread(per_group, self.codes.shape[1], self.group_size)
        return in_order if self.permutation is None else in_order[:, torch.argsort(self.permutation)]


class LayerQuantizer(Protocol):
    """A method that quantizes one weight matrix at a time, without knowing the model.

    Attributes:
        needs_moments: whether `quantize` needs the moments of the layer's input.
    """

    needs_moments: bool

    def quantize(self, weight: Tensor, moments: Moments | None) -> QuantizedWeight:
        """Quantize one weight matrix."""
        ...

    def describe(self) -> dict[str, str]:
        """Describe the method for the record of a run and for the key of a cache: backend, library version, grid."""
        ...
