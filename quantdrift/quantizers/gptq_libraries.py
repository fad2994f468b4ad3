"""GPTQ by gptqmodel and auto-gptq, each kept from touching more than the layer it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.quantizers.gptq_grid import AbsmaxGrid
from quantdrift.quantizers.quiet_imports import import_auto_gptq, import_gptqmodel, silenced

__all__ = ["GptqProblem", "NotPositiveDefiniteError", "with_auto_gptq", "with_gptqmodel"]

_BLOCK = 128
"""The paper's block size."""


class NotPositiveDefiniteError(Exception):
    """The damped second moment has no Cholesky factor in float32."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GptqProblem:
    """One layer as a GPTQ library is given it.

    Attributes:
        weight: float32 [out_features, in_features]; not changed.
        hessian: float32 [in_features, in_features], damped, with a positive diagonal; may be used
            up.
        bits: 2 to 8.
        group_size: None for the whole row.
        act_order: whether columns are quantized in decreasing order of the diagonal.
        paper_grid: whether the grid is that of round to nearest; else it is the library's.
        n_tokens: at least 1.
    """

    weight: Tensor
    hessian: Tensor
    bits: int
    group_size: int | None
    act_order: bool
    paper_grid: bool
    n_tokens: int

    def layer(self) -> nn.Linear:
        """A layer of its own around the weight, for what the libraries write to a layer."""
        out_features, in_features = self.weight.shape
        layer = nn.Linear(in_features, out_features, bias=False, device="meta")
        layer.weight = nn.Parameter(self.weight, requires_grad=False)
        return layer

    def block_size(self) -> int:
        """Columns between two updates of the rest of the matrix.

        A library fits the grid of a group to weights that hold the updates of earlier blocks only.
        So every group has to start with a block.
        """
        size = self.group_size or _BLOCK
        return _BLOCK if size % _BLOCK == 0 else size


def with_gptqmodel(problem: GptqProblem) -> tuple[Tensor, Tensor]:
    """Solve by gptqmodel.

    Returns:
        The rounded weights, float32 [out_features, in_features], and the scales of the groups in
        the order in which they were made, float32 [out_features, n_groups].

    Raises:
        NotPositiveDefiniteError: see there.
        UnsupportedError: the library cannot be imported.
    """
    library, log = import_gptqmodel()
    with silenced(log):
        config = library.QuantizeConfig(
            bits=4 if problem.paper_grid else problem.bits,  # validated, not used by our grid
            group_size=problem.group_size or -1,
            desc_act=problem.act_order,
            act_group_aware=False,  # the default reorders whole groups
            sym=True,
            damp_auto_increment=0,
            fallback=None,  # the default rounds to nearest where it finds too few tokens
            offload_to_disk=False,
        )
        config.damp_percent = 0.0  # damped already; the default is 0.05, and the check refuses 0
        solver = library.GPTQ(problem.layer(), qcfg=config)
        solver.quantizer.configure(perchannel=True)
        if problem.paper_grid:
            solver.quantizer = AbsmaxGrid(problem.bits)
        solver.H = problem.hessian
        solver.nsamples = problem.n_tokens
        solver.hessian_inverse = _without_recovery(solver.hessian_inverse)
        rounded, scale, *_ = solver.quantize(blocksize=problem.block_size())
    return rounded.clone(), scale.clone()  # made in inference mode: copies can be used anywhere


def _without_recovery(inverse: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """The library's inverse, which else would raise the diagonal by itself and not say so."""

    def checked(hessian: Tensor) -> Any:
        diagonal = hessian.diagonal().clone()
        factor, damping = inverse(hessian)
        if factor is None or not torch.equal(diagonal, hessian.diagonal()):
            raise NotPositiveDefiniteError
        return factor, damping

    return checked


def with_auto_gptq(problem: GptqProblem) -> tuple[Tensor, Tensor]:
    """Solve by auto-gptq; results and errors as `with_gptqmodel`."""
    library = import_auto_gptq()
    layer = problem.layer()
    solver = library.GPTQ(layer)
    solver.quantizer.configure(problem.bits, perchannel=True, sym=True, mse=False)
    if problem.paper_grid:
        solver.quantizer = AbsmaxGrid(problem.bits)
    solver.H = problem.hessian
    solver.nsamples = problem.n_tokens
    try:
        scale, *_ = solver.fasterquant(
            blocksize=problem.block_size(),
            percdamp=0.0,  # damped already
            group_size=problem.group_size or -1,
            actorder=problem.act_order,
        )
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # not re-exported
        raise NotPositiveDefiniteError from error
    return layer.weight.detach(), scale
