"""What the tests of the library backends share: layers, their moments, and whether to skip."""

import functools
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from quantdrift.engine.quantizers.base import Moments, QuantizedWeight
from quantdrift.engine.quantizers.gptq import Gptq
from quantdrift.engine.quantizers.libraries import AUTOAWQ, GPTQMODEL, HQQ, is_installed
from quantdrift.engine.quantizers.rtn import RoundToNearest, quantize_rtn
from support import paper_quantizers as paper

LIBRARIES = {package.name: package for package in (GPTQMODEL, AUTOAWQ, HQQ)}
SAME_OUTPUT = 1e-4
"""Largest distance between the outputs of two layers that count as the same, relative."""


def skip_without(backend: str) -> None:
    """Not `importorskip`, as importing some of them changes the process."""
    if not is_installed(LIBRARIES[backend]):
        pytest.skip(f"{backend} is not installed")


def as_float64(tensor: Tensor) -> paper.Matrix:
    return tensor.double().numpy()


def rounded(quantized: QuantizedWeight) -> paper.Matrix:
    return as_float64(quantized.dequantize(torch.float32))


def moments_of(inputs: paper.Matrix) -> Moments:
    return Moments(
        second=torch.tensor(inputs.T @ inputs / len(inputs), dtype=torch.float32),
        mean_abs=torch.tensor(np.abs(inputs).mean(axis=0), dtype=torch.float32),
        absmax=float(np.abs(inputs).max()),
        n_tokens=len(inputs),
    )


def moments_by_hand(second: Tensor, mean_abs: Tensor | None = None, n_tokens: int = 9) -> Moments:
    """With a mean of absolute values that is the root of the diagonal, if none is given."""
    power = second.diagonal().clamp(min=0)
    return Moments(
        second=second,
        mean_abs=power.sqrt() if mean_abs is None else mean_abs,
        absmax=float(power.max().sqrt()),
        n_tokens=n_tokens,
    )


@dataclass(frozen=True, kw_only=True)
class Watching(RoundToNearest):
    """Round to nearest that keeps the moments it is given."""

    seen: list[Moments | None] = field(default_factory=list)

    needs_moments = True

    def quantize(self, weight: Tensor, moments: Moments | None = None) -> QuantizedWeight:
        self.seen.append(moments)
        return quantize_rtn(weight, bits=self.bits, group_size=self.group_size)


def weights(seed: int, out_features: int, in_features: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(out_features, in_features, generator=generator) * 0.05


@functools.cache
def layer_of(in_features: int) -> tuple[Tensor, paper.Matrix, Moments]:
    """A weight matrix, inputs of it, and their moments."""
    inputs = paper.outlying_inputs(0, 600, in_features)
    return weights(0, 24, in_features), inputs, moments_of(inputs)


def difference(quantized: QuantizedWeight, wanted: paper.Matrix, weight: Tensor, x: Moments) -> float:
    low, second = rounded(quantized), as_float64(x.second)
    return paper.output_difference(low, wanted, as_float64(weight), second)


def gptq_reference(
    method: Gptq, quantized: QuantizedWeight, weight: Tensor, moments: Moments
) -> tuple[paper.Matrix, int]:
    """Return the weights that the paper's GPTQ rounds to, and how many weights it rounded as `quantized` has them."""
    return paper.gptq(
        as_float64(weight),
        as_float64(moments.second),
        method.bits,
        method.group_size,
        act_order=method.act_order,
        library_grid=method.grid == "library",
        ties=quantized.codes.numpy().astype(float),
    )
