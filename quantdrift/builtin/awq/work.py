"""AWQ by gptqmodel: weights of large inputs are scaled up before rounding, as far as its search finds best."""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.base.errors import DataError
from quantdrift.builtin.awq import autoawq
from quantdrift.builtin.rtn.work import in_parts, quantize_rtn, rounded
from quantdrift.candidate import libraries
from quantdrift.candidate.quantized import LayerQuantizer, Moments, QuantizedWeight
from quantdrift.kinds.quantizer import QUANTIZERS, Package
from quantdrift.scheme import Scheme

Search = Callable[[Tensor, Tensor, Tensor, Callable[[Tensor], Tensor]], Tensor]
"""Inputs, their sizes, weights and what rounds these, to the scaling [in_features] that a library finds best."""
_EXPONENTS = 20
_SHOWN = 128
"""Rows that stand for the inputs in the search; of a factor with more than twice as many, random sums of its rows."""
_JITTERS = (1e-6, 1e-5, 1e-4, 1e-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Awq:
    """Activation-aware weight quantization (Lin et al., 2024) as a method, on the grid of round to nearest.

    Attributes:
        bits: of a weight.
        group_size: input weights that share a scale; None for the whole row.
        package: that searches.
    """

    bits: int
    group_size: int | None
    package: Package = libraries.GPTQMODEL

    needs_moments = True

    def quantize(self, weight: Tensor, moments: Moments | None) -> QuantizedWeight:
        """Quantize one weight matrix as Q(W s) / s.

        s = mean_abs^a, where a is the one of 0, 1/20, ..., 19/20 that makes tr((W - Q(W s) / s) second (W - Q(W s) /
        s)^T) least. A factor of s changes nothing, and the library's is kept. An input that was always 0 counts as
        one of mean size. The result has s as `input_scaling`.
        """
        moments = libraries.calibrated(moments, method="awq")
        exact = weight.detach().to(torch.float32)
        scaling = self._best_scaling(exact, moments)
        quantized = quantize_rtn(exact * scaling, bits=self.bits, group_size=self.group_size)
        return replace(quantized, input_scaling=scaling)

    def describe(self) -> dict[str, str]:
        """Library, version, grid and search."""
        described = libraries.described(self.package, grid="symmetric absmax")
        return {**described, "search": f"shown at most {2 * _SHOWN} rows, or {_SHOWN} random sums of them"}

    def _best_scaling(self, weight: Tensor, moments: Moments) -> Tensor:
        """Return the scaling that the library finds, shown a factor of the second moment in place of the inputs.

        ||R (W - Q)^T||^2 is the loss where R^T R = second, so the search costs in_features rows instead of one for
        every calibration token. Of many rows it gets _SHOWN random sums: the loss is the same in the mean.
        """
        magnitude = moments.mean_abs.to(torch.float32)
        alive = magnitude > 0
        typical = magnitude[alive].mean() if bool(alive.any()) else torch.ones_like(magnitude[0])
        magnitude = torch.where(alive, magnitude, typical)
        magnitude = magnitude / magnitude.min()  # so that the clamp of scalings at 1e-4 never acts
        shown = _sums(_factor(moments.second))
        scaling = _SEARCHES[self.package.name](shown, magnitude, weight, self._rounded)
        scaling = scaling.to(weight.device)
        powers = magnitude ** (torch.arange(_EXPONENTS, device=weight.device)[:, None] / _EXPONENTS)
        powers = powers / (powers.amax(1) * powers.amin(1)).sqrt()[:, None]
        if not bool(torch.isclose(powers, scaling, rtol=1e-4).all(1).any()):
            raise libraries.unexpected(
                self.package, f"one of {_EXPONENTS} powers of the inputs' sizes", "another scaling"
            )
        return scaling

    def _rounded(self, weight: Tensor) -> Tensor:
        grid: dict[str, Any] = {"bits": self.bits, "group_size": self.group_size}
        made = torch.empty_like(weight, memory_format=torch.contiguous_format)
        for part, of in zip(in_parts(made), in_parts(weight), strict=True):
            part.copy_(rounded(of, **grid))
        return made


def from_scheme(scheme: Scheme) -> LayerQuantizer:
    """The method as a scheme asks for it."""
    package = QUANTIZERS.packages[scheme.option("backend") or libraries.GPTQMODEL.name]
    return Awq(bits=int(scheme.weight_bits), group_size=scheme.group_size, package=package)


def _by_gptqmodel(inputs: Tensor, magnitude: Tensor, weight: Tensor, rounding: Callable[[Tensor], Tensor]) -> Tensor:
    library, log = libraries.import_gptqmodel()
    with libraries.silenced(log):
        config = library.QuantizeConfig(method="awq", format="gemm", offload_to_disk=False)
        model = SimpleNamespace(rotary_embedding=None)
        search = _processor()(None, config, *[None] * 5, gptq_model=model, model=nn.Module())
        search.duo_scaling = False
        search._pseudo_quantize_tensor_into = lambda source, target: target.copy_(rounding(source))
        # The search keeps a contiguous float32 weight on a CPU by a name, not by a copy, and then changes it.
        # A matrix of one row counts as contiguous however its rows lie.
        weight = weight if len(weight) > 1 else weight.repeat(2, 1)
        layer = nn.Linear(1, 1, bias=False)
        wider = weight.new_empty((len(weight), weight.shape[1] + 1))[:, :-1]
        layer.weight = nn.Parameter(wider.copy_(weight), requires_grad=False)
        unused = torch.ones_like(magnitude)  # the mean weights, which only duo_scaling looks at
        scaling: Tensor = search._compute_best_scale(inputs, unused, magnitude, layer, [layer], layer(inputs))[0]
    return scaling.clone()


@functools.cache
def _processor() -> Any:
    """The library's class, kept from making a folder of logs and from asking devices."""
    kind = importlib.import_module("gptqmodel.looper.awq_processor").AWQProcessor
    aside = {
        "_build_log_file_path": lambda *_: Path(),
        "_init_device_smi_handles": lambda _: {},
        "_init_cpu_device_handle": lambda _: None,
    }
    return type("Search", (kind,), aside)


_SEARCHES: dict[str, Search] = {"gptqmodel": _by_gptqmodel, "autoawq": autoawq.best_scaling}


def _sums(factor: Tensor) -> Tensor:
    """G R of a factor R [n, in_features], where E[G^T G] = 1 and G has _SHOWN rows; R itself where that is small."""
    if len(factor) <= 2 * _SHOWN:
        return factor
    drawn = torch.randn(_SHOWN, len(factor), generator=torch.Generator().manual_seed(0)) / _SHOWN**0.5
    return torch.mm(drawn.to(factor.device), factor)


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
