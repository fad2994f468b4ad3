"""Other ways to spend the same bits, which an allocation has to be better than."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.criteria.base import Setting
from quantdrift.allocation.criteria.registry import criterion
from quantdrift.allocation.gradients.one_pass import contributions
from quantdrift.allocation.held_out import uniform_width
from quantdrift.allocation.solving.solver import solve
from quantdrift.allocation.stored.record import Allocation
from quantdrift.errors import UnsupportedError

__all__ = ["rivals_of"]


def rivals_of(allocation: Allocation, setting: Setting) -> dict[str, list[int]]:
    """Name to the width of every layer: the allocation itself first, then its rivals.

    Layers that it leaves out keep their width in all of them; so do ties between layers.

    Args:
        allocation: in question.
        setting: it was measured in.
    """
    free = np.array([layer.loss is not None for layer in allocation.layers])
    rivals = {
        f"{allocation.criterion}, {allocation.method}": [layer.width for layer in allocation.layers]
    }
    for name, method, losses in _losses(allocation, setting):
        rivals[name] = _solved(allocation, losses, method)
    uniform = uniform_width(allocation.budget)
    rivals[f"W{uniform} throughout"] = [
        uniform if is_free else layer.width
        for is_free, layer in zip(free, allocation.layers, strict=True)
    ]
    return rivals


def _losses(allocation: Allocation, setting: Setting) -> list[tuple[str, str, NDArray[np.float64]]]:
    """Name, method and losses of the rivals."""
    found = []
    if setting.problem is not None:
        try:
            shifts = contributions(setting)
        except UnsupportedError:  # a model without gradients has one rival less
            pass
        else:
            median = np.nanmedian(np.abs(shifts[:, 0]), axis=0)
            falling = np.minimum.accumulate(median, axis=1)
            found.append(("the paper's rule, greedy", "greedy", falling - falling[:, -1:]))
    for name in ("reconstruction", "random"):
        if name != allocation.criterion:
            quiet = replace(setting, seed=setting.seed + 1)
            found.append((name, "knapsack", criterion(name).losses(quiet)))
    return found


def _solved(allocation: Allocation, losses: NDArray[np.float64], method: str) -> list[int]:
    layers = allocation.layers
    free = np.array([layer.loss is not None for layer in layers])
    units = np.array(
        [len(layers) + n if layer.unit is None else layer.unit for n, layer in enumerate(layers)]
    )
    solution = solve(
        losses[free],
        np.array([layer.n_weights for layer in layers])[free],
        widths=allocation.widths,
        budget=allocation.budget,
        units=units[free],
        method=method,
    )
    chosen = iter(solution.widths.tolist())
    return [
        next(chosen) if is_free else layer.width
        for is_free, layer in zip(free, layers, strict=True)
    ]
