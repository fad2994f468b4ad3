"""What the tests of the allocation criteria share: small layers, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quantdrift.engine.layers import find_linears
from quantdrift.engine.sensitivity.criteria import Setting
from quantdrift.engine.sensitivity.problem import Batch, GapProblem
from quantdrift.progress import Silent


def problem_of(*works: Callable[[], object]) -> GapProblem:
    """A problem whose gaps nobody asks for; each work is a batch of one row."""

    def batch(number: int, work: Callable[[], object]) -> Batch:
        def run() -> NDArray[np.float32]:
            work()
            return np.zeros((1, 1), np.float32)

        return Batch(rows=np.array([number]), run=run)

    return GapProblem(
        batches=[batch(number, work) for number, work in enumerate(works)],
        rows=np.zeros((1, 1, 1), np.int64),
        valid=np.ones((1, 1), np.bool_),
        gap=lambda outputs: outputs[..., 0, 0],
    )


def setting_of(model: nn.Module, *works: Callable[[], object], widths: tuple[int, ...] = (3, 4)) -> Setting:
    return Setting(
        modules=[model],
        layers=find_linears([model]),
        widths=widths,
        group_size=None,
        seed=0,
        progress=Silent(),
        problem=problem_of(*works) if works else None,
    )


def linear(*rows: Sequence[float]) -> nn.Linear:
    layer = nn.Linear(len(rows[0]), len(rows), bias=False)
    layer.weight.data = torch.tensor(rows, dtype=torch.float32)
    return layer
