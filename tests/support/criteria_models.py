"""Small models whose calls are counted, and problems made of what they put out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.engine.layers import find_linears
from quantdrift.engine.sensitivity.criteria import Kept, Setting
from quantdrift.engine.sensitivity.problem import Batch, GapProblem
from quantdrift.progress import Silent

DIM = 8


class Counted(nn.Linear):
    """A linear layer that counts how often it is really run."""

    def __init__(self, counts: Counter[str], name: str) -> None:
        super().__init__(DIM, DIM)
        self.counts, self.called = counts, name

    def forward(self, x: Tensor) -> Tensor:
        self.counts[self.called] += 1
        return super().forward(x)


class Block(nn.Module):
    """Two layers side by side and one after them, around which the input is added."""

    def __init__(self, counts: Counter[str], name: str) -> None:
        super().__init__()
        self.a, self.b, self.c = (Counted(counts, f"{name}.{part}") for part in "abc")

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.c(torch.tanh(self.a(x)) * self.b(x))
        return result


class Blocks(nn.Module):
    """Two such blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.blocks = nn.ModuleList([Block(self.counts, "0"), Block(self.counts, "1")])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build().eval()


def inputs(n: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(n, DIM, generator=torch.Generator().manual_seed(seed))


def runs_of(model: Callable[[Tensor], Tensor], batches: Sequence[Tensor]) -> list[Callable[[], NDArray[np.float32]]]:
    def run_of(x: Tensor) -> Callable[[], NDArray[np.float32]]:
        def run() -> NDArray[np.float32]:
            with torch.inference_mode():
                return model(x.clone()).numpy()

        return run

    return [run_of(x) for x in batches]


def setting_of(
    model: nn.Module,
    batches: Sequence[Tensor] | None = None,
    *,
    call: Callable[[Tensor], Tensor] | None = None,
    widths: tuple[int, ...] = (2, 4),
    kept: Kept | None = None,
) -> Setting:
    """Rows are inputs, and the gap of an input is the sum of what comes out."""
    batches = [inputs()] if batches is None else batches
    starts = np.cumsum([0, *map(len, batches)])
    rows = [np.arange(a, b) for a, b in pairwise(starts)]
    runs = runs_of(model if call is None else call, batches)
    problem = GapProblem(
        batches=[Batch(rows=r, run=run) for r, run in zip(rows, runs, strict=True)],
        rows=np.arange(starts[-1])[:, None, None],
        valid=np.ones((starts[-1], 1), dtype=np.bool_),
        gap=lambda x: x[..., 0, :].sum(-1),
    )
    return Setting(
        modules=[model],
        layers=find_linears([model]),
        widths=widths,
        group_size=None,
        seed=0,
        progress=Silent(),
        problem=problem,
        kept=kept,
    )
