"""The choice of widths for layers, from their losses at each width and a budget of bits."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """Widths within a budget, and how good they are known to be.

    Attributes:
        widths: int64 [n_layers], bits per weight.
        loss: sum of the losses at these widths, of the layers that are not left out.
        bound: lower bound of the loss of any widths within the budget, up to the solver's tolerance; None if there is
            none.
        status: "optimal" up to the solver's tolerance; else "greedy", "time limit", or the solver's message.
    """

    widths: Ints
    loss: float
    bound: float | None
    status: str


def solve(
    losses: Floats,
    n_weights: Ints,
    *,
    widths: tuple[int, ...],
    budget: float,
    units: Ints | None = None,
    kept: Sequence[int | None] | None = None,
    method: str = "knapsack",
    time_limit: float = 30.0,
) -> Solution:
    """Choose a width for each layer: least total loss with at most `budget` bits per weight.

    sum over layers of n_weights * width <= budget * sum of n_weights, in whole bits; the budget is taken as the decimal
    number (3.3 is 33/10). The total loss is the sum of the layers' losses. Remaining bits are used to widen layers even
    if the loss does not fall. Layers with the same number in `units` get one width, and those with a width in `kept`
    keep it; `method` is "knapsack" or "greedy".
    """
    kept = [None] * len(n_weights) if kept is None else kept
    free = np.array([width is None for width in kept])
    _, member = np.unique(np.arange(len(free))[free] if units is None else units[free], return_inverse=True)
    unit_losses, unit_weights = np.zeros((member.max() + 1, len(widths))), np.zeros(member.max() + 1, np.int64)
    np.add.at(unit_losses, member, losses[free])
    np.add.at(unit_weights, member, n_weights[free])
    offered = np.array(widths, np.int64)
    bits = unit_weights[:, None] * (offered - offered[0])  # on top of the narrowest width's
    n_total = int(unit_weights.sum())
    capacity = math.floor(Fraction(str(budget)) * n_total) - widths[0] * n_total
    levels, bound, status = _solved(unit_losses, bits, capacity, method, time_limit)
    chosen = np.array([width or 0 for width in kept], np.int64)
    chosen[free] = offered[levels[member]]
    return Solution(widths=chosen, loss=_total(unit_losses, levels), bound=bound, status=status)


def _solved(
    losses: Floats, bits: Ints, capacity: int, method: str, time_limit: float
) -> tuple[Ints, float | None, str]:
    """Level of every unit, a bound on the loss, and a status.

    The greedy choice comes first and is preferred among equals. HiGHS meets constraints only up to a tolerance, so the
    bits of its solution are counted exactly, and a solution with too many is dropped.
    """
    levels = _widened(losses, bits, capacity, np.zeros(len(losses), np.int64))
    loss = _total(losses, levels)
    if loss == 0.0:
        return levels, 0.0, "optimal"
    if method == "greedy":
        return levels, None, "greedy"
    # HiGHS stops at a gap of 1e-6, so losses are scaled; a level that alone exceeds the best loss is never optimal
    scale = loss / 1000
    result = _optimum(np.minimum(losses, 2 * loss) / scale, bits, capacity, time_limit)
    if result.x is not None:
        best = result.x.reshape(losses.shape).argmax(axis=1).astype(np.int64)
        if _spent(bits, best) <= capacity and _total(losses, best) < loss:
            levels = _widened(losses, bits, capacity, best)
            loss = _total(losses, levels)
    dual = result.mip_dual_bound
    bound = None if dual is None or not math.isfinite(dual) else min(max(float(dual) * scale, 0.0), loss)
    return levels, bound, {0: "optimal", 1: "time limit"}.get(result.status, str(result.message))


def _optimum(losses: Floats, bits: Ints, capacity: int, time_limit: float) -> Any:
    """Minimize the sum of losses with one level for each unit, by HiGHS."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415 -- takes long to import
    from scipy.sparse import eye_array, kron  # noqa: PLC0415 -- as above

    factor = math.gcd(*bits.ravel().tolist(), capacity) or 1
    return milp(
        c=losses.ravel(),
        integrality=np.ones(losses.size, np.int64),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(kron(eye_array(len(losses)), np.ones((1, losses.shape[1])), format="csr"), 1, 1),
            LinearConstraint((bits // factor).reshape(1, -1), ub=capacity // factor),
        ],
        options={"time_limit": time_limit, "mip_rel_gap": 0.0},
    )


def _widened(losses: Floats, bits: Ints, capacity: int, levels: Ints) -> Ints:
    """Widen units while any fits, each time where loss falls most per added bit.

    Between two widths this is the paper's rule, as the fall is then the loss at the lower one. Losses do not rise with
    the width, so that widening never harms; it goes on without a gain, because a loss is only an estimate and the
    budget was granted. Ties go to the first unit, then to the smallest step.

    Source: section 5.1 and the appendix on allocation criteria.
    """
    levels, left = levels.copy(), capacity - _spent(bits, levels)
    steps: list[tuple[float, int, int]] = []

    def offer(unit: int) -> None:
        """Add the unit's best step among those that fit, if there is one."""
        at = levels[unit]
        costs = bits[unit] - bits[unit, at]
        fits = (costs > 0) & (costs <= left)
        if fits.any():
            falls = np.where(fits, (losses[unit, at] - losses[unit]) / np.maximum(costs, 1), -np.inf)
            heapq.heappush(steps, (-float(falls.max()), unit, int(falls.argmax())))

    for unit in range(len(levels)):
        offer(unit)
    while steps:
        _, unit, level = heapq.heappop(steps)
        cost = int(bits[unit, level] - bits[unit, levels[unit]])
        if cost <= left:
            levels[unit] = level
            left -= cost
        offer(unit)
    return levels


def _spent(bits: Ints, levels: Ints) -> int:
    return int(bits[np.arange(len(levels)), levels].sum())


def _total(losses: Floats, levels: Ints) -> float:
    return math.fsum(losses[np.arange(len(levels)), levels])
