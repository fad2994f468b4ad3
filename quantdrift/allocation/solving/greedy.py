"""The paper's rule, bits to where they help most per weight, and a bound on what is possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["Choices", "greedy", "lower_bound", "spend_rest", "total_loss"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choices:
    """What can be bought, and for how much: one width (a level) for each unit.

    Attributes:
        losses: float64 [n_units, n_widths], not rising with the width.
        bits: int64 [n_units, n_widths], bits on top of the narrowest width's; rising from 0.
        capacity: how many of these bits there are, 0 or more.
    """

    losses: NDArray[np.float64]
    bits: NDArray[np.int64]
    capacity: int

    def spent(self, levels: NDArray[np.int64]) -> int:
        """The bits that some levels, int64 [n_units], take."""
        return int(self.bits[np.arange(len(levels)), levels].sum())


def total_loss(choices: Choices, levels: NDArray[np.int64]) -> Fraction:
    """The sum of the losses at some levels, without rounding."""
    chosen = choices.losses[np.arange(len(levels)), levels]
    return sum((Fraction(loss) for loss in chosen.tolist()), Fraction(0))


def greedy(choices: Choices) -> tuple[NDArray[np.int64], Fraction]:
    """Widen units in the order of the fall in loss per added bit, while the bits last.

    A unit goes up along the lower convex hull of its losses over its bits, so its steps come in
    the order of the ranking. Ties go to the unit defined first. A step that does not fit is passed
    over, with the later ones of that unit, and the next that fits is taken.

    This is the paper's rule where there are two widths: the fall is then the loss at the lower one,
    and the bits are in proportion to the weights. It is the rounding of the linear relaxation,
    whose optimum takes all steps up to the first that does not fit, and of that one a part.

    Args:
        choices: what can be bought.

    Returns:
        levels: int64 [n_units], indices of widths.
        price: fall in loss per bit of the first step that did not fit, 0 if all did. With it
            `lower_bound` is the optimum of the linear relaxation.

    Source: section 5.1 and the appendix on allocation criteria; Dantzig's bound.
    """
    steps: list[tuple[float, int, int, int]] = []
    for unit, (losses, bits) in enumerate(
        zip(choices.losses.tolist(), choices.bits.tolist(), strict=True)
    ):
        corners = _lower_hull(losses, bits)
        steps += [
            (_fall(losses, bits, low, high), unit, low, high) for low, high in pairwise(corners)
        ]
    steps.sort(key=lambda step: -step[0])  # stable: ties stay in the order of definition
    levels = np.zeros(len(choices.losses), dtype=np.int64)
    left = choices.capacity
    price: Fraction | None = None
    for _, unit, low, high in steps:
        cost = int(choices.bits[unit, high] - choices.bits[unit, low])
        if levels[unit] == low and cost <= left:
            levels[unit] = high
            left -= cost
        elif price is None:
            price = _exact_fall(choices, unit, low, high)
    return spend_rest(choices, levels), price or Fraction(0)


def spend_rest(choices: Choices, levels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Widen units while any fits, each time where loss falls most per added bit.

    Losses do not rise with the width, so this never costs anything, and it may go where nothing is
    gained: a loss is an estimate, and an average that was granted is used. Ties go to the unit
    defined first, then to the least step.

    Args:
        choices: what can be bought.
        levels: int64 [n_units], where to start; not changed.

    Returns:
        int64 [n_units].
    """
    levels = levels.copy()
    left = choices.capacity - choices.spent(levels)
    rows = np.arange(len(levels))
    while True:
        costs = choices.bits - choices.bits[rows, levels][:, None]
        fits = (costs > 0) & (costs <= left)
        if not fits.any():
            return levels
        falls = choices.losses[rows, levels][:, None] - choices.losses
        per_bit = np.where(fits, falls / np.maximum(costs, 1), -np.inf)
        unit, level = divmod(int(per_bit.argmax()), per_bit.shape[1])
        left -= int(costs[unit, level])
        levels[unit] = level


def lower_bound(choices: Choices, price: Fraction) -> Fraction:
    """A loss that no choice within the capacity undercuts, computed without rounding.

    For every price p >= 0 of a bit: sum over units of min over levels of (loss + p bits), minus
    p times the capacity. It is Lagrange's relaxation; the best price makes it the linear one's
    optimum.

    Args:
        choices: what can be bought.
        price: loss per bit, at least 0.
    """
    least = sum((min(row) for row in _with_price(choices, price)), Fraction(0))
    return least - price * choices.capacity


def _with_price(choices: Choices, price: Fraction) -> list[list[Fraction]]:
    return [
        [Fraction(loss) + price * cost for loss, cost in zip(losses, bits, strict=True)]
        for losses, bits in zip(choices.losses.tolist(), choices.bits.tolist(), strict=True)
    ]


def _lower_hull(losses: Sequence[float], bits: Sequence[int]) -> list[int]:
    """Indices of the lower convex hull from first to last, points on its edges included."""
    corners = [0]
    for index in range(1, len(losses)):
        while len(corners) > 1 and _fall(losses, bits, corners[-2], corners[-1]) < _fall(
            losses, bits, corners[-1], index
        ):
            corners.pop()
        corners.append(index)
    return corners


def _fall(losses: Sequence[float], bits: Sequence[int], low: int, high: int) -> float:
    return (losses[low] - losses[high]) / (bits[high] - bits[low])


def _exact_fall(choices: Choices, unit: int, low: int, high: int) -> Fraction:
    fall = Fraction(float(choices.losses[unit, low])) - Fraction(float(choices.losses[unit, high]))
    return fall / int(choices.bits[unit, high] - choices.bits[unit, low])
