"""GPTQ: columns rounded one by one, each one's error made good by the columns still to come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from quantdrift.errors import DataError, UnsupportedError
from quantdrift.quantizers.base import LayerQuantizer, Moments, QuantizedWeight
from quantdrift.quantizers.gptq_libraries import (
    GptqProblem,
    NotPositiveDefiniteError,
    with_auto_gptq,
    with_gptqmodel,
)
from quantdrift.quantizers.libraries import GRIDS, Library, calibrated, setting
from quantdrift.quantizers.quiet_imports import AUTO_GPTQ, GPTQMODEL
from quantdrift.spec import Scheme

__all__ = ["BACKENDS", "DAMPING", "Gptq", "from_scheme"]

DAMPING = 0.01
"""What is added to the diagonal of the second moment, relative to its mean."""
_DAMPING_STEPS = (DAMPING, 10 * DAMPING, 100 * DAMPING)
_LIBRARIES: Mapping[str, tuple[Library, Callable[[GptqProblem], tuple[Tensor, Tensor]]]] = (
    MappingProxyType(
        {
            GPTQMODEL.backend: (GPTQMODEL, with_gptqmodel),
            AUTO_GPTQ.backend: (AUTO_GPTQ, with_auto_gptq),
        }
    )
)
BACKENDS = tuple(_LIBRARIES)
"""Backends that work layer by layer, the preferred one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gptq:
    """GPTQ (Frantar et al., 2023; settings: paper, appendix "Quantizers") as a method.

    Attributes:
        bits: 2 to 8.
        group_size: input weights that share a scale, None for one scale per output channel.
        act_order: whether columns go in decreasing order of the second moment's diagonal, and are
            grouped in that order.
        backend: one of BACKENDS.
        grid: "paper" for that of round to nearest, max|w| / (2^(bits-1) - 1) with codes of both
            signs alike; "library" for the libraries' 2 max|w| / (2^bits - 1), which has one more
            code below zero.
    """

    bits: int
    group_size: int | None
    act_order: bool = False
    backend: str = BACKENDS[0]
    grid: str = GRIDS[0]

    needs_moments = True
    has_zero_points = False

    def quantize(self, weight: Tensor, moments: Moments | None) -> QuantizedWeight:
        """Quantize one weight matrix, with small tr((W - Q) second (W - Q)^T).

        For each column j, with H = second + damping: q = round(w_j), then every later column k
        loses (w_j - q) / U_jj * U_jk, where U is the upper Cholesky factor of H^-1. A group's scale
        is that of its weights when its first column is reached.

        Args:
            weight: float [out_features, in_features].
            moments: of the layer's input.

        Returns:
            Codes, scales, and with `act_order` the order. `notes` has "damping" where the usual one
            left H without a factor.

        Raises:
            DataError: no token reached the layer, or its second moment is no second moment.
            UnsupportedError: the library cannot be imported, or gave weights off its grid.
        """
        moments = calibrated(moments, method="gptq")
        exact = weight.detach().to(torch.float32)
        for damping in _DAMPING_STEPS:
            try:
                return self._solve(exact, moments, damping)
            except NotPositiveDefiniteError:
                continue
        raise DataError(
            "gptq needs the second moment of the layer's input, a positive semidefinite matrix; "
            f"this one has no Cholesky factor even with {_DAMPING_STEPS[-1]:.0%} of its mean "
            "diagonal added"
        )

    def describe(self) -> dict[str, str]:
        """Library, version and grid."""
        library, _ = _LIBRARIES[self.backend]
        grid = "symmetric absmax" if self.grid == "paper" else "symmetric, the library's"
        return {"backend": self.backend, "version": library.version(), "grid": grid}

    def _solve(self, weight: Tensor, moments: Moments, damping: float) -> QuantizedWeight:
        _, solve = _LIBRARIES[self.backend]
        hessian = _damped(moments.second, damping)
        # As the libraries do it, from the same values: they do not give the order away.
        order = torch.argsort(torch.diag(hessian), descending=True) if self.act_order else None
        rounded, scale = solve(
            GptqProblem(
                weight=weight,
                hessian=hessian,
                bits=self.bits,
                group_size=self.group_size,
                act_order=self.act_order,
                paper_grid=self.grid == "paper",
                n_tokens=moments.n_tokens,
            )
        )
        quantized = QuantizedWeight(
            codes=torch.zeros_like(rounded, dtype=torch.int8),
            scale=scale,
            bits=self.bits,
            group_size=self.group_size,
            permutation=order,
            notes={} if damping == DAMPING else {"damping": damping},
        )
        step = quantized.of_column(scale)
        codes = torch.round(rounded / step)
        beyond = 2 ** (self.bits - 1)
        on_grid = (codes * step - rounded).abs() < 1e-4 * step
        if not bool(((-beyond <= codes) & (codes < beyond) & on_grid).all()):
            raise UnsupportedError(
                f"expected weights on a grid of {self.bits} bits from {self.backend}, got some off "
                f"it; version {self.describe()['version']} does not do what quantdrift asks of it: "
                "install one that the extra allows, or choose another with +backend="
            )
        return replace(quantized, codes=codes.to(torch.int8))


def from_scheme(scheme: Scheme) -> LayerQuantizer:
    """The method as a scheme asks for it, `gptq` or `gptq_ao`.

    Raises:
        UnsupportedError: a backend or grid that is not known.
        MissingExtraError: the backend is not installed; with none asked for, none of them is.
    """
    if scheme.option("backend") == "optimum":
        from quantdrift.quantizers import optimum_gptq  # noqa: PLC0415 -- it builds on this module

        return optimum_gptq.from_scheme(scheme)
    backend = setting(scheme, "backend", (*BACKENDS, "optimum"))
    grid = setting(scheme, "grid", GRIDS) or GRIDS[0]
    if backend is None:
        installed = (name for name, (library, _) in _LIBRARIES.items() if library.is_installed())
        backend = next(installed, BACKENDS[0])
    library, _ = _LIBRARIES[backend]
    library.require(needed_for=str(scheme))
    return Gptq(
        bits=int(scheme.weight_bits),
        group_size=scheme.group_size,
        act_order=scheme.quantizer == "gptq_ao",
        backend=backend,
        grid=grid,
    )


def _damped(second: Tensor, damping: float) -> Tensor:
    """2 second + damping * mean diagonal * I; where no input ever moved, plain rounding's I.

    The libraries would add the damping themselves, but first set the weights of inputs that were
    always 0 to 0. With the damping on the diagonal these are rounded like others.
    """
    hessian = 2 * second.to(torch.float32)
    mean = hessian.diagonal().mean()
    hessian.diagonal().add_(torch.where(mean > 0, damping * mean, 1))
    return hessian
