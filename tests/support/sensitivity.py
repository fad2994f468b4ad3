"""Settings that layers are measured in, of any model and of rows that one function encodes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.base.progress import Silent
from quantdrift.measuring.problem import GapProblem, Setting
from quantdrift.models.layers import find_linears

Encode = Callable[[NDArray[np.int64]], NDArray[np.float32]]


def difference(outputs: Tensor) -> Tensor:
    """The gap of a row: its first number less its second."""
    return outputs[:, :, 0, 0] - outputs[:, :, 0, 1]


def setting_of(
    model: nn.Module,
    inputs: Tensor | Encode | None = None,
    *,
    n: int | None = None,
    batch_size: int = 3,
    gap: Callable[[Tensor], Tensor] = difference,
    rows: Any = None,
    valid: Any = None,
    after: Callable[[Tensor], Tensor] = lambda outputs: outputs,
    widths: tuple[int, ...] = (2, 4),
    group_size: int | None = None,
    **options: Any,
) -> Setting:
    """Make the setting that a model's layers are measured in: one gap a row, where nothing else is said.

    `inputs` are one a row, or a function that encodes `n` rows; `after` is what the harness computes after the model.
    `rows` [n_inputs, n_contenders, n_roles], `valid` and `gap` as in `GapProblem`; `options` are fields of `Setting`.
    """
    problem = None
    if inputs is not None:
        n = len(inputs) if isinstance(inputs, Tensor) else n
        assert n is not None  # of a function it has to be given
        rows = np.arange(n)[:, None, None] if rows is None else np.array(rows)

        def encode(numbers: NDArray[np.int64]) -> NDArray[np.float32]:
            if not isinstance(inputs, Tensor):
                assert inputs is not None
                return inputs(numbers)
            with torch.inference_mode():
                return after(model(inputs[torch.from_numpy(numbers)])).float().numpy()

        problem = GapProblem(
            encode=encode,
            batches=np.array_split(np.arange(n), range(batch_size, n, batch_size)),
            rows=rows,
            valid=np.ones(rows.shape[:2], np.bool_) if valid is None else np.array(valid),
            gap=gap,
        )
    fields = {"widths": widths, "group_size": group_size, "seed": 0, "progress": Silent(), "problem": problem}
    return Setting(**{"modules": [model], "layers": find_linears([model]), **fields, **options})


def linear(*rows: Sequence[float]) -> nn.Linear:
    """A layer of these weights."""
    layer = nn.Linear(len(rows[0]), len(rows), bias=False)
    layer.weight.data = torch.tensor(rows, dtype=torch.float32)
    return layer


def drawn(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model with normal weights."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    return model.eval()
