"""The best choice of widths: a multiple-choice knapsack, solved as an integer program by HiGHS."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.solving.greedy import (
    Choices,
    greedy,
    lower_bound,
    spend_rest,
    total_loss,
)

__all__ = ["OPTIMAL", "Best", "knapsack"]

OPTIMAL = "optimal"
_STATUSES = {0: OPTIMAL, 1: "time limit"}
"""HiGHS's as scipy numbers them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Best:
    """The best choice found, and what is known of better ones.

    Attributes:
        levels: int64 [n_units], indices of widths.
        bound: no choice has a smaller loss, up to the solver's tolerance.
        status: "optimal", "time limit" or what the solver complained of.
    """

    levels: NDArray[np.int64]
    bound: Fraction
    status: str


def knapsack(choices: Choices, *, time_limit: float) -> Best:
    """Minimise the sum of losses within the capacity, one level for each unit.

    The greedy choice and the bound of the linear relaxation come first; `scipy.optimize.milp` is
    asked for something better. HiGHS meets constraints up to a tolerance, so what it finds is
    counted in whole bits, and dropped if there are too many. Of equal optima the greedy choice is
    preferred, and units that are alike in losses and bits get their widths in order of definition,
    the widest first. What is left is spent by `spend_rest`.

    Args:
        choices: what can be bought.
        time_limit: seconds; then the best so far is returned, with the bound so far. Only there can
            the result depend on the machine.
    """
    from scipy.optimize import (  # noqa: PLC0415 -- scipy.optimize takes long to import
        Bounds,
        LinearConstraint,
        milp,
    )
    from scipy.sparse import csr_array, eye_array, kron  # noqa: PLC0415 -- as above

    levels, price = greedy(choices)
    bound = lower_bound(choices, price)
    loss = total_loss(choices, levels)
    if loss == bound:
        return Best(levels=levels, bound=bound, status=OPTIMAL)
    n_units, n_widths = choices.losses.shape
    scale = float(choices.losses.max())
    one_each = kron(eye_array(n_units), np.ones((1, n_widths)))
    factor = math.gcd(*choices.bits.ravel().tolist(), choices.capacity) or 1
    result = milp(
        c=(choices.losses / scale).ravel(),
        integrality=np.ones(n_units * n_widths, dtype=np.int64),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(csr_array(one_each), 1, 1),
            LinearConstraint(
                (choices.bits // factor).reshape(1, -1), ub=choices.capacity // factor
            ),
        ],
        options={"time_limit": time_limit, "mip_rel_gap": 0.0},
    )
    if result.x is not None:
        found = result.x.reshape(n_units, n_widths).argmax(axis=1).astype(np.int64)
        within = choices.spent(found) <= choices.capacity
        if within and total_loss(choices, found) < loss:
            levels = spend_rest(choices, _in_order(choices, found))
            loss = total_loss(choices, levels)
    if result.mip_dual_bound is not None and math.isfinite(result.mip_dual_bound):
        bound = max(bound, Fraction(float(result.mip_dual_bound)) * Fraction(scale))
    status = _STATUSES.get(result.status, str(result.message))
    return Best(levels=levels, bound=min(bound, loss), status=status)


def _in_order(choices: Choices, levels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same levels, among units that are alike the widest first."""
    alike: dict[bytes, list[int]] = {}
    for unit in range(len(levels)):
        key = choices.losses[unit].tobytes() + choices.bits[unit].tobytes()
        alike.setdefault(key, []).append(unit)
    levels = levels.copy()
    for members in alike.values():
        levels[members] = np.sort(levels[members])[::-1]
    return levels
