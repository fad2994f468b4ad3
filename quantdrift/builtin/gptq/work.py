"""GPTQ by gptqmodel: rounds column by column, and lets later columns correct the error."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from quantdrift.base.errors import DataError
from quantdrift.builtin.rtn.work import absmax_scale
from quantdrift.candidate import libraries
from quantdrift.candidate.quantized import LayerQuantizer, Moments, QuantizedWeight
from quantdrift.scheme import Scheme

DAMPING = 0.01
"""Addition to the diagonal of the second moment, relative to its mean."""
_DAMPING_STEPS = (DAMPING, 10 * DAMPING, 100 * DAMPING)
_BLOCK = 128
"""The paper's block size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gptq:
    """GPTQ (Frantar et al., 2023; settings: paper, appendix "Quantizers") as a method.

    Attributes:
        bits: 2 to 8.
        group_size: input weights that share a scale, None for one scale per output channel.
        act_order: whether columns go in decreasing order of the second moment's diagonal, and are grouped in that
            order.
        grid: "paper" for that of round to nearest, max|w| / (2^(bits-1) - 1) with codes of both signs alike;
            "library" for gptqmodel's own 2 max|w| / (2^bits - 1), which has one more code below zero.
    """

    bits: int
    group_size: int | None
    act_order: bool = False
    grid: str = "paper"

    needs_moments = True

    def quantize(self, weight: Tensor, moments: Moments | None) -> QuantizedWeight:
        """Quantize one weight matrix, with small tr((W - Q) second (W - Q)^T).

        For each column j, with H = second + damping: q = round(w_j), then every later column k loses (w_j - q) / U_jj
        * U_jk, where U is the upper Cholesky factor of H^-1. A group's scale is that of its weights when its first
        column is reached.
        """
        moments = libraries.calibrated(moments, method="gptq")
        exact = weight.detach().to(torch.float32)
        for damping in _DAMPING_STEPS:  # the least that suffices
            hessian = _damped(moments.second, damping)
            if int(torch.linalg.cholesky_ex(hessian).info) == 0:
                solved = self._solve(exact, hessian, moments.n_tokens)
                return solved if damping == DAMPING else replace(solved, notes={"damping": damping})
        raise DataError(
            "gptq needs the second moment of the layer's input, a positive semidefinite matrix; this one has no "
            "Cholesky factor even with its mean diagonal added"
        )

    def describe(self) -> dict[str, str]:
        """Return library, version and grid."""
        grid = "symmetric absmax" if self.grid == "paper" else "symmetric, the library's"
        return libraries.described(libraries.GPTQMODEL, grid=grid)

    def _solve(self, weight: Tensor, hessian: Tensor, n_tokens: int) -> QuantizedWeight:
        # the library computes the same order from the same values, and does not return it
        order = torch.argsort(torch.diag(hessian), descending=True) if self.act_order else None
        rounded, scale = with_gptqmodel(self, weight, hessian, n_tokens)
        quantized = QuantizedWeight(
            codes=torch.zeros_like(rounded, dtype=torch.int8),
            scale=scale,
            bits=self.bits,
            group_size=self.group_size,
            permutation=order,
        )
        step = quantized.of_column(scale)
        codes = torch.round(rounded / step)
        beyond = 2 ** (self.bits - 1)
        on_grid = (codes * step - rounded).abs() < 1e-4 * step
        if not bool(((-beyond <= codes) & (codes < beyond) & on_grid).all()):
            raise libraries.unexpected(libraries.GPTQMODEL, f"weights on a grid of {self.bits} bits", "some off it")
        return replace(quantized, codes=codes.to(torch.int8))


def from_scheme(scheme: Scheme) -> LayerQuantizer:
    """Return the method of a scheme, `gptq` or `gptq_ao`."""
    return Gptq(
        bits=int(scheme.weight_bits),
        group_size=scheme.group_size,
        act_order=scheme.quantizer == "gptq_ao",
        grid=scheme.option("grid") or "paper",
    )


def _damped(second: Tensor, damping: float) -> Tensor:
    """Return 2 second + damping * mean diagonal * I, or I if all inputs were 0.

    The library would add the damping itself, but first set weights of inputs that were always 0 to 0. With the damping
    on the diagonal these are rounded like others.
    """
    hessian = 2 * second.to(torch.float32)
    mean = hessian.diagonal().mean()
    hessian.diagonal().add_(torch.where(mean > 0, damping * mean, 1))
    return hessian


# --- one layer, solved by the library --------------------------------------------------------------


class AbsmaxGrid:
    """The symmetric grid max|w| / (2^(bits-1) - 1) of every row, with the library's interface.

    Attributes:
        scale: float32 [out_features, 1], of the columns last given to `find_params`.
        zero: zeros of that shape, which the library collects too.
        maxq: differs from the width of gptqmodel's own grid, so that its fused CUDA kernel, which has that grid
            built in, is not used.
    """

    def __init__(self, bits: int) -> None:
        self._bits, self._levels = bits, 2 ** (bits - 1) - 1
        self.scale = self.zero = torch.zeros(1, 1)
        self.maxq = torch.tensor(-1)

    def ready(self) -> bool:
        """Return False, so that the library fits the grid to the present weights."""
        return False

    def find_params(self, x: Tensor, weight: bool = True) -> None:
        """Fit the grid to the columns of a group, float32 [out_features, n]."""
        self.scale = absmax_scale(x, bits=self._bits, group_size=None)
        self.zero = torch.zeros_like(self.scale)

    def quantize(self, x: Tensor) -> Tensor:
        """Round a column, float32 [out_features, 1], to the grid."""
        return torch.round(x / self.scale).clamp_(-self._levels, self._levels) * self.scale


def block_size(group_size: int | None) -> int:
    """Columns between two updates of the rest of the matrix.

    The library fits a group's grid to weights with the updates of earlier blocks alone, so every group has to start
    with a block.
    """
    size = group_size or _BLOCK
    return _BLOCK if size % _BLOCK == 0 else size


def with_gptqmodel(method: Gptq, weight: Tensor, hessian: Tensor, n_tokens: int) -> tuple[Tensor, Tensor]:
    """Solve one layer by gptqmodel."""
    library, log = libraries.import_gptqmodel()
    with libraries.silenced(log):
        config = library.QuantizeConfig(
            bits=4 if method.grid == "paper" else method.bits,  # validated, not used by our grid
            group_size=method.group_size or -1,
            desc_act=method.act_order,
            act_group_aware=False,  # the default reorders whole groups
            sym=True,
            damp_auto_increment=0,
            fallback=None,  # the default rounds to nearest where it finds too few tokens
            offload_to_disk=False,
        )
        config.damp_percent = 0.0  # damped already; the default is 0.05, and the check refuses 0
        solver = library.GPTQ(_layer(weight), qcfg=config)
        solver.quantizer.configure(perchannel=True)
        solver.H, solver.nsamples = hessian, n_tokens
        if method.grid == "paper":
            solver.quantizer = AbsmaxGrid(method.bits)
        rounded, scale, *_ = solver.quantize(blocksize=block_size(method.group_size))
    return rounded.clone(), scale.clone()  # results of inference mode; copies can be used anywhere


def _layer(weight: Tensor) -> nn.Linear:
    """Return a new layer around the weight, which the library may write to."""
    out_features, in_features = weight.shape
    layer = nn.Linear(in_features, out_features, bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer
