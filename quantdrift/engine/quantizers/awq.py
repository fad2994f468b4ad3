"""AWQ: weights of large inputs are scaled up before rounding, as far as `autoawq` finds best."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.base.errors import DataError
from quantdrift.engine.quantizers.base import LayerQuantizer, Moments, QuantizedWeight, n_groups
from quantdrift.engine.quantizers.libraries import AUTOAWQ, calibrated, described, import_autoawq, require
from quantdrift.engine.quantizers.rtn import quantize_rtn
from quantdrift.spec.grammar import Scheme

_LARGEST_SHOWN = 1024.0
"""Largest weight that the search is shown: its clamp of scales at 1e-5 is then out of reach."""
_JITTERS = (1e-6, 1e-5, 1e-4, 1e-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Awq:
    """Activation-aware weight quantization (Lin et al., 2024) as a method, on the grid of round to nearest."""

    bits: int
    group_size: int | None

    needs_moments = True

    def quantize(self, weight: Tensor, moments: Moments | None) -> QuantizedWeight:
        """Quantize one weight matrix as Q(W s) / s.

        s = mean_abs^a, where a is the one of 0, 1/20, ..., 19/20 that makes tr((W - Q(W s) / s) second (W - Q(W s) /
        s)^T) least. A factor of s changes nothing, and the library's is kept. An input that was always 0 counts as
        one of mean size. The result has s as `input_scaling`.
        """
        moments = calibrated(moments, method="awq")
        exact = weight.detach().to(torch.float32)
        n_columns = exact.shape[1]
        size = self.group_size or n_columns  # the library knows no group for the whole row
        missing = n_groups(n_columns, size) * size - n_columns
        scaling = _best_scaling(self._library(size), _repeat_last(exact, missing), moments, missing)[:n_columns]
        quantized = quantize_rtn(exact * scaling, bits=self.bits, group_size=self.group_size)
        return replace(quantized, input_scaling=scaling)

    def describe(self) -> dict[str, str]:
        """Library, version and grid."""
        return described(AUTOAWQ, grid="symmetric absmax")

    def _library(self, group_size: int) -> Any:
        """The library's quantizer without the model that its constructor calibrates."""
        kind = import_autoawq().AwqQuantizer
        library = kind.__new__(kind)
        library.w_bit, library.group_size, library.zero_point = self.bits, group_size, False
        library.duo_scaling, library.n_parallel_calib_samples, library.max_chunk_memory = False, None, 2**30
        return library


def from_scheme(scheme: Scheme) -> LayerQuantizer:
    """The method as a scheme asks for it."""
    require(AUTOAWQ, needed_for=scheme)
    return Awq(bits=int(scheme.weight_bits), group_size=scheme.group_size)


def _best_scaling(library: Any, weight: Tensor, moments: Moments, missing: int) -> Tensor:
    """Return the scaling that the library's search finds, with a factor of the second moment in place of the inputs.

    ||R (W - Q)^T||^2 is the loss where R^T R = second, so the search costs in_features rows instead
    of one for every calibration token.
    """
    magnitude = moments.mean_abs.to(torch.float32)
    alive = magnitude > 0
    typical = magnitude[alive].mean() if bool(alive.any()) else torch.ones_like(magnitude[0])
    magnitude = torch.where(alive, magnitude, typical)
    magnitude = magnitude / magnitude.min()  # so that the clamp of scalings at 1e-4 never acts
    # Columns added for a shorter last group: no input reaches them, and its range stays as it is.
    inputs = nn.functional.pad(_factor(moments.second), (0, missing))
    magnitude = _repeat_last(magnitude[None], missing)[0]
    largest = weight.abs().amax().clamp(min=2.0**-100)
    shown = weight * torch.exp2(torch.floor(torch.log2(_LARGEST_SHOWN / largest)))
    layer = SearchedLinear(shown.shape[1], len(shown), bias=False, device="meta")
    layer.weight = nn.Parameter(shown, requires_grad=False)
    unused = torch.ones_like(magnitude)  # the mean weights, which only duo_scaling looks at
    scaling: Tensor = library._compute_best_scale(inputs, unused, magnitude, layer, [layer], layer(inputs))
    return scaling.to(weight.device)


class SearchedLinear(nn.Linear):
    """A layer whose state can be given back.

    The search saves it by `.cpu()`, which on a CPU is the weights themselves, not a copy, and then scales the weights
    in place.
    """

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]  # as the search calls it
        """A copy of the parameters."""
        return {key: value.clone() for key, value in super().state_dict().items()}


def _factor(second: Tensor) -> Tensor:
    """R with R^T R = second, float32 [in_features, in_features]; zero columns where it is zero.

    Features are brought to one size first, so that the jitter is as small beside each of them.
    """
    size = second.to(torch.float32).diagonal().clamp(min=0).sqrt()
    divisor = torch.where(size > 0, size, 1)
    correlation = second.to(torch.float32) / divisor / divisor[:, None]
    for jitter in _JITTERS:
        shifted = correlation.clone()
        shifted.diagonal().add_(jitter)
        factor, info = torch.linalg.cholesky_ex(shifted, upper=True)
        if int(info) == 0:
            return torch.mul(factor, size)
    raise DataError(
        "awq needs the second moment of the layer's input, a positive semidefinite matrix; this "
        f"one has no Cholesky factor even with {_JITTERS[-1]:.1%} of its diagonal added"
    )


def _repeat_last(weight: Tensor, missing: int) -> Tensor:
    """Add copies of the last column: the last group becomes whole and keeps its range."""
    return torch.cat([weight, weight[:, -1:].expand(-1, missing)], dim=1)
