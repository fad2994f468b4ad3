"""What the tests of the library backends share: layers, their moments, and whether to skip."""

from dataclasses import dataclass, field
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import Tensor

from quantdrift.builtin.rtn.work import RoundToNearest, quantize_rtn
from quantdrift.candidate.libraries import AUTOAWQ, GPTQMODEL, HQQ
from quantdrift.candidate.quantized import Moments, QuantizedWeight
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.spec.grammar import parse_scheme
from support import paper_quantizers as paper

LIBRARIES = {package.name: package for package in (GPTQMODEL, AUTOAWQ, HQQ)}


def skip_without(backend: str) -> None:
    """Not `importorskip`, as importing some of them changes the process."""
    if find_spec(LIBRARIES[backend].module) is None:
        pytest.skip(f"{backend} is not installed")


def made(name: str, weight: Tensor, **parts: int) -> QuantizedWeight:
    """A weight in one of the number formats, in blocks of a size where one is given."""
    group = "".join(f"-g{size}" for size in parts.values())
    scheme = parse_scheme(f"W{QUANTIZERS[name].widths[0]}{group}-{name}")
    quantized: QuantizedWeight = QUANTIZERS[name].method(scheme).quantize(weight, None)
    return quantized


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
