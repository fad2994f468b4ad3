"""What every layer at every width does to every gap, from one forward and one backward pass.

A layer that computes y = x W^T and gets W + dW instead moves a gap, to first order, by the sum over
tokens of <d gap / d y, x dW^T>, which is <G, dW> with G the gradient of the gap by W. Gradients are
taken for every gap alone, so what comes out is signed, belongs to one input, and adds up over
layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from torch import nn

from quantdrift.allocation.criteria.base import Setting
from quantdrift.allocation.gradients.backward import BackwardPasses
from quantdrift.allocation.gradients.cotangents import Cotangents
from quantdrift.calibration.taps import plain_products

__all__ = ["contributions"]

_NAME = "contributions"


def contributions(setting: Setting) -> NDArray[np.float64]:
    """How far each gap moves when one layer is rounded to nearest, to first order, with its sign.

    Contributions of several layers add up to the shift that they make together, as far as the model
    is linear in the change.

    Args:
        setting: model, widths and calibration inputs.

    Returns:
        float64 [n_inputs, n_contenders, n_layers, n_widths], in units of the score; nan where there
        is no contender, 0 for layers that no input reaches.

    Raises:
        UnsupportedError: no gradient can be taken through this model or harness.
    """
    problem = setting.problem
    assert problem is not None  # the criterion needs inputs
    name = f"{_NAME}-{'-'.join(map(str, setting.widths))}"
    kept = None if setting.kept is None else setting.kept.get(name)
    if kept is not None:
        return kept
    known = problem.reference
    total = np.zeros((*problem.valid.shape, len(setting.layers), len(setting.widths)))
    with (
        setting.progress.stage("gap of every layer, one backward pass", problem.n_rows) as tell,
        _parameters_without_gradients(setting.modules),
        plain_products(setting.modules),
    ):
        cotangents = Cotangents(problem, problem.outputs() if known is None else known)
        passes = BackwardPasses(setting)
        for batch in problem.batches:
            slots = cotangents.slots(batch.rows)
            if slots:
                parts = passes.of(batch, [slot.vectors for slot in slots])
                for slot, part in zip(slots, parts, strict=True):
                    slot.add(total, part)
            tell(len(batch.rows))
    total[~problem.valid] = np.nan
    if setting.kept is not None:
        setting.kept.put(name, total)
    return total


@contextmanager
def _parameters_without_gradients(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, no parameter asks for a gradient: those of single rows are made by hand."""
    asking = [p for module in modules for p in module.parameters() if p.requires_grad]
    for parameter in asking:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in asking:
            parameter.requires_grad_(True)
