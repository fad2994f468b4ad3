"""The gaps of calibration inputs of a classifier: its first class, and those behind it.

The inputs are of the training part, so rates over the evaluated inputs need leave none of them out
(paper, appendix "Calibration protocol").
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from quantdrift.allocation.problem import Batch, GapProblem
from quantdrift.errors import DataError
from quantdrift.measurement.inputs import Inputs, Vectors

__all__ = ["classification_problem"]


def classification_problem(
    inputs: Inputs,
    outputs: Vectors,
    *,
    logits: Callable[[Tensor], Tensor],
    batch_size: int,
    n_contenders: int = 1,
) -> GapProblem:
    """The gaps between the first class and those behind it, in the reference's order.

    gap_c = logit of the reference's first class - logit of its class c + 1.

    Args:
        inputs: to calibrate on.
        outputs: float32 [n_inputs, dim], what the reference puts out for them: logits, or
            embeddings that a probe reads.
        logits: from outputs [..., dim] to logits [..., n_classes]; differentiable.
        batch_size: inputs per forward pass.
        n_contenders: classes behind the first; fewer where there are not so many.

    Raises:
        DataError: there is only one class.
    """
    with torch.no_grad():
        scores = logits(torch.from_numpy(np.array(outputs)))
    n_classes = scores.shape[1]
    if n_classes < 2:  # noqa: PLR2004 -- nothing to tell apart otherwise
        raise DataError("the model has only one class, so there is no gap to measure")
    tops = torch.argsort(scores, dim=1, descending=True, stable=True)[:, : n_contenders + 1]
    firsts, others = tops[:, :1], tops[:, 1:]
    shape = (len(inputs.ids), others.shape[1])
    order = inputs.order()
    batches = [order[at : at + batch_size] for at in range(0, len(order), batch_size)]

    def gap(found: Tensor) -> Tensor:
        each = logits(found[:, :, 0])  # [n_inputs, n_contenders, n_classes]
        best = each.gather(2, firsts[:, None].expand(-1, shape[1], 1).to(each.device))
        behind = each.gather(2, others[..., None].to(each.device))
        return (best - behind)[..., 0]

    return GapProblem(
        batches=[
            Batch(rows=rows, run=partial(inputs.encode, rows, batch_size)) for rows in batches
        ],
        rows=np.broadcast_to(np.arange(shape[0])[:, None, None], (*shape, 1)).astype(np.int64),
        valid=np.ones(shape, dtype=np.bool_),
        gap=gap,
        reference=np.asarray(outputs),
    )
