"""Widths for layers, from what each loses at each width and from the bits there are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.solving.greedy import Choices, greedy, lower_bound, total_loss
from quantdrift.allocation.solving.knapsack import knapsack
from quantdrift.errors import ScoreError, UnknownNameError, UnsupportedError

__all__ = ["METHODS", "Solution", "solve"]

METHODS = ("knapsack", "greedy")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """Widths within a budget, and how good they are known to be.

    Attributes:
        widths: int64 [n_layers], bits per weight.
        bits_per_weight: their average over the weights; at most the budget.
        loss: sum of the layers' losses at these widths.
        bound: no widths within the budget have a smaller loss.
        gap: (loss - bound) / loss, from 0 (as good as can be) to 1; 0 where nothing is lost.
        method: one of METHODS.
        status: "optimal" if nothing better exists up to the solver's tolerance; else why it is not
            known: "greedy", "time limit", or what the solver said.
        budget: bits per weight there were.
    """

    widths: NDArray[np.int64]
    bits_per_weight: float
    loss: float
    bound: float
    gap: float
    method: str
    status: str
    budget: float


def solve(
    losses: NDArray[np.float64],
    n_weights: NDArray[np.int64],
    *,
    widths: tuple[int, ...],
    budget: float,
    units: NDArray[np.int64] | None = None,
    method: str = "knapsack",
    time_limit: float = 30.0,
) -> Solution:
    """Choose a width for each layer: least total loss with at most `budget` bits per weight.

    sum over layers of n_weights * width <= budget * sum of n_weights, in whole bits; the budget is
    the decimal number that it is written as (3.3 is 33/10). Losses add up.

    Args:
        losses: float64 [n_layers, n_widths], at least 0, not rising with the width.
        n_weights: int64 [n_layers], at least 1.
        widths: bits per weight to choose from, ascending.
        budget: average bits over all weights of these layers.
        units: int64 [n_layers]; layers of the same number get the same width. None ties none.
        method: "knapsack" for the optimum, "greedy" for the paper's rule; see the modules of these
            names. Both use bits that are left over wherever a layer can still be widened, even if
            its loss does not fall.
        time_limit: seconds for the knapsack, after which it gives the best that it found.

    Raises:
        ScoreError: losses are not finite, negative or rise with the width; shapes do not fit.
        UnsupportedError: the widths are no widths, or the budget lies outside them.
        UnknownNameError: there is no such method.
    """
    if method not in METHODS:
        raise UnknownNameError("allocation method", method, METHODS)
    _check_widths(widths, budget)
    losses, n_weights, units = _checked(losses, n_weights, units, len(widths))
    # np.unique numbers units by their value; ties ask for the order of definition
    _, first, member = np.unique(units, return_index=True, return_inverse=True)
    member = np.argsort(np.argsort(first))[member]
    n_units = len(first)
    unit_losses = np.zeros((n_units, len(widths)))
    np.add.at(unit_losses, member, losses)
    unit_weights = np.zeros(n_units, dtype=np.int64)
    np.add.at(unit_weights, member, n_weights)
    n_total = int(n_weights.sum())
    offered = np.array(widths, dtype=np.int64)
    choices = Choices(
        losses=unit_losses,
        bits=unit_weights[:, None] * (offered - offered[0]),
        capacity=math.floor(Fraction(str(budget)) * n_total) - widths[0] * n_total,
    )
    if method == "greedy":
        levels, price = greedy(choices)
        bound = lower_bound(choices, price)
        status = "optimal" if bound == total_loss(choices, levels) else "greedy"
    else:
        best = knapsack(choices, time_limit=time_limit)
        levels, bound, status = best.levels, best.bound, best.status
    chosen = levels[member]
    loss = math.fsum(losses[np.arange(len(losses)), chosen])
    least = min(float(bound), loss)
    return Solution(
        widths=offered[chosen],
        bits_per_weight=int((n_weights * offered[chosen]).sum()) / n_total,
        loss=loss,
        bound=least,
        gap=(loss - least) / loss if loss else 0.0,
        method=method,
        status=status,
        budget=float(budget),
    )


def _check_widths(widths: tuple[int, ...], budget: float) -> None:
    whole = all(isinstance(width, int) and width >= 1 for width in widths)
    if not widths or not whole or sorted(set(widths)) != list(widths):
        raise UnsupportedError(
            f"expected widths as whole numbers of bits in ascending order, got {widths!r}"
        )
    if not widths[0] <= budget <= widths[-1]:
        raise UnsupportedError(
            f"a budget of {budget} bits per weight cannot be met with widths of "
            f"{', '.join(map(str, widths))}: expected {widths[0]} to {widths[-1]}. Change the "
            "budget or offer other widths."
        )


def _checked(
    losses: Any, n_weights: Any, units: Any, n_widths: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """The arrays as they are computed with, once they are known to make sense."""
    losses = np.asarray(losses, dtype=np.float64)
    counts = np.asarray(n_weights)
    numbers = np.arange(len(counts)) if units is None else np.asarray(units)
    n_layers = len(losses) if losses.ndim else 0
    shapes = (losses.shape, counts.shape, numbers.shape)
    if n_layers == 0 or shapes != ((n_layers, n_widths), (n_layers,), (n_layers,)):
        raise ScoreError(
            f"expected losses [n_layers, {n_widths}], n_weights [n_layers] and units [n_layers] "
            f"with at least one layer, got shapes {', '.join(map(str, shapes))}"
        )
    if not (np.issubdtype(counts.dtype, np.integer) and np.issubdtype(numbers.dtype, np.integer)):
        raise ScoreError(
            "expected whole numbers for weights and units, got arrays of "
            f"{counts.dtype} and {numbers.dtype}"
        )
    if counts.min() < 1:
        raise ScoreError(f"layer {int(counts.argmin())} has {counts.min()} weights; expected some")
    if (wrong := ~(np.isfinite(losses) & (losses >= 0))).any():
        layer, width = np.argwhere(wrong)[0]
        raise ScoreError(
            f"the loss of layer {layer} at the width of index {width} is {losses[layer, width]}; "
            "expected a finite number, at least 0"
        )
    with np.errstate(over="ignore"):
        total = losses.sum()
    if not np.isfinite(total):
        raise ScoreError("the losses are too large to be added up; divide them by something")
    if (rises := np.diff(losses, axis=1) > 0).any():
        layer, width = np.argwhere(rises)[0]
        raise ScoreError(
            f"the loss of layer {layer} rises with the width, from {losses[layer, width]} to "
            f"{losses[layer, width + 1]}; expected one that falls or stays level"
        )
    return losses, counts.astype(np.int64), numbers.astype(np.int64)
