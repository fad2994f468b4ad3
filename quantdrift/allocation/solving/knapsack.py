"""The best choice of widths: a multiple-choice knapsack, solved as an integer program by HiGHS."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.solving.greedy import (
    Choices,
    greedy,
    lower_bound,
    reduced_losses,
    spend_rest,
    total_loss,
)

__all__ = ["OPTIMAL", "Best", "knapsack"]

OPTIMAL = "optimal"
OUT_OF_TIME = "time limit"
_STATUSES = {0: OPTIMAL, 1: OUT_OF_TIME, 2: OPTIMAL}
"""HiGHS's as scipy numbers them. Infeasible (2): nothing is better than what was known before."""
_SCALE = 1e4
"""What lies between bound and incumbent becomes this; HiGHS counts 1e-6 as nothing."""
_LARGEST = 1e3
"""Counts of bits up to this are given to HiGHS as they are."""
_MOST_CUTS = 50


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Best:
    """The best choice found, and what is known of better ones.

    Attributes:
        levels: int64 [n_units], indices of widths.
        bound: no choice has a smaller loss.
        status: "optimal", "time limit" or what the solver complained of.
    """

    levels: NDArray[np.int64]
    bound: Fraction
    status: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Core:
    """The choices that can still be part of something better, one variable each."""

    units: NDArray[np.int64]
    levels: NDArray[np.int64]
    objective: NDArray[np.float64]
    bits: NDArray[np.int64]
    capacity: int
    unused_price: float
    """Objective for each bit of the capacity that stays unused."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Budget:
    """The capacity as constraints on the choices and on two more variables, unused bits and carry.

    Attributes:
        rows: float64 [n_rows, n_choices + 2].
        lower, upper: float64 [n_rows], what each row's product must lie between.
        most: float64 [2], upper bounds of the two variables.
        unused_price: objective for one of the unused bits, which are scaled.
        constant: objective of those that no choice can use.
    """

    rows: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    most: NDArray[np.float64]
    unused_price: float
    constant: float


def knapsack(choices: Choices, *, time_limit: float) -> Best:
    """Minimise the sum of losses within the capacity, one level for each unit.

    The greedy choice and the bound of the linear relaxation come first. A choice whose reduced loss
    exceeds what lies between the two cannot be part of anything better and is left out; what
    remains goes to `scipy.optimize.milp` with reduced losses as its objective, scaled to what lies
    between. So losses may span many orders of magnitude. Both steps are computed in fractions.
    HiGHS meets constraints up to a tolerance: what it finds is checked in whole bits, and should
    there be too many, that one choice is forbidden and it is asked again.

    Of equal optima the greedy choice is preferred. Units that are alike in losses and bits get
    their widths in order of definition, the widest first. What is left is spent by `spend_rest`.

    Args:
        choices: what can be bought.
        time_limit: seconds; then the best so far is returned, with the bound so far. Only there can
            the result depend on the machine.

    Source: Kellerer, Pferschy, Pisinger, Knapsack Problems (2004), chapter 11.
    """
    deadline = time.monotonic() + time_limit
    levels, price = greedy(choices)
    bound = lower_bound(choices, price)
    room = total_loss(choices, levels) - bound
    if room == 0:
        return Best(levels=levels, bound=bound, status=OPTIMAL)
    core, fixed = _core(choices, price, room)
    found, least, status = _solve(core, fixed, choices, deadline)
    if found is not None and total_loss(choices, found) < total_loss(choices, levels):
        levels = spend_rest(choices, _in_order(choices, found))
    if least is not None:
        # the objective is how far above the bound, in units of room / _SCALE
        bound += room * max(Fraction(0), Fraction(least)) / Fraction(_SCALE)
    return Best(levels=levels, bound=min(bound, total_loss(choices, levels)), status=status)


def _core(choices: Choices, price: Fraction, room: Fraction) -> tuple[_Core, NDArray[np.int64]]:
    """The core, and the levels of the units that have no choice left; others are at -1."""
    fixed = np.full(len(choices.losses), -1, dtype=np.int64)
    capacity = choices.capacity
    entries: list[tuple[int, int, float]] = []
    for unit, row in enumerate(reduced_losses(choices, price)):
        kept = [level for level, value in enumerate(row) if value <= room]
        if len(kept) == 1:
            fixed[unit] = kept[0]
            capacity -= int(choices.bits[unit, kept[0]])
        else:
            entries += [
                (unit, level, float(row[level] / room * Fraction(_SCALE))) for level in kept
            ]
    units = np.array([unit for unit, _, _ in entries], dtype=np.int64)
    levels = np.array([level for _, level, _ in entries], dtype=np.int64)
    core = _Core(
        units=units,
        levels=levels,
        objective=np.array([value for _, _, value in entries]),
        bits=choices.bits[units, levels],
        capacity=capacity,
        unused_price=float(price / room * Fraction(_SCALE)),
    )
    return core, fixed


def _solve(
    core: _Core, fixed: NDArray[np.int64], choices: Choices, deadline: float
) -> tuple[NDArray[np.int64] | None, float | None, str]:
    """Levels that fit, if any were found, a bound on the objective, and how it ended."""
    from scipy.optimize import (  # noqa: PLC0415 -- scipy.optimize takes long to import
        Bounds,
        LinearConstraint,
        milp,
    )
    from scipy.sparse import csr_array  # noqa: PLC0415 -- as above

    n = len(core.units)
    members, member = np.unique(core.units, return_inverse=True)
    one_each = csr_array((np.ones(n), (member, np.arange(n))), shape=(len(members), n + 2))
    budget = _budget(core)
    constraints = [
        LinearConstraint(one_each, 1.0, 1.0),
        LinearConstraint(budget.rows, budget.lower, budget.upper),
    ]
    least: float | None = None
    for _ in range(_MOST_CUTS):
        left = deadline - time.monotonic()
        if left <= 0:
            return None, least, OUT_OF_TIME
        result = milp(
            c=np.concatenate([core.objective, [budget.unused_price, 0.0]]),
            integrality=np.concatenate([np.ones(n), [0.0, 1.0]]),
            bounds=Bounds(0.0, np.concatenate([np.ones(n), budget.most])),
            constraints=constraints,
            options={"time_limit": left, "mip_rel_gap": 0.0},
        )
        status = _STATUSES.get(result.status, str(result.message))
        if result.status == 2:  # noqa: PLR2004 -- infeasible, see _STATUSES
            return None, _SCALE, status
        if result.mip_dual_bound is not None and math.isfinite(result.mip_dual_bound):
            least = float(result.mip_dual_bound) + budget.constant
        if result.x is None:
            return None, least, status
        taken = np.flatnonzero(result.x[:n] > 0.5)  # noqa: PLR2004 -- 0 or 1 up to a tolerance
        levels = fixed.copy()
        levels[core.units[taken]] = core.levels[taken]
        if choices.spent(levels) <= choices.capacity:
            return levels, least, status
        forbidden = np.zeros((1, n + 2))
        forbidden[0, taken] = 1.0
        constraints.append(LinearConstraint(forbidden, -np.inf, len(members) - 1.0))
    return None, least, "the solver found only choices that are just above the budget"


def _budget(core: _Core) -> _Budget:
    """The capacity in numbers that HiGHS computes with exactly.

    It takes a whole number to be met within 1e-6, and counts of bits times that are many bits. They
    share large factors, without which they are small. If not, they are split: with
    bits = base high + low, a sum of bits is within the capacity if and only if for some whole
    carry >= 0 (sum of low) - base carry <= low part of the capacity, and
    (sum of high) + carry <= its high part.
    """
    factor = math.gcd(*core.bits.tolist())
    bits = core.bits // factor
    capacity, remainder = divmod(core.capacity, factor)
    largest = int(bits.max())
    scale = min(1.0, _LARGEST / largest)
    unused_price = core.unused_price * factor / scale
    rows = [np.concatenate([bits * scale, [1.0, 0.0]])]
    lower, upper = [capacity * scale], [np.inf]  # this one only says how many are unused
    most_carry = 0
    if scale < 1:
        base = 1 << (largest.bit_length() + 1) // 2
        rows += [
            np.concatenate([bits // base, [0.0, 1.0]]),
            np.concatenate([bits % base, [0.0, -base]]),
        ]
        most_carry = capacity // base
        upper += [most_carry, capacity % base]
    else:
        rows.append(np.concatenate([bits, [0.0, 0.0]]))
        upper.append(capacity)
    lower += [-np.inf] * (len(rows) - 1)
    most_unused = capacity * scale
    if unused_price:  # from some number on, they cost more than the incumbent
        most_unused = min(most_unused, _SCALE / unused_price * (1 + 1e-9))
    return _Budget(
        rows=np.array(rows, dtype=np.float64),
        lower=np.array(lower, dtype=np.float64),
        upper=np.array(upper, dtype=np.float64),
        most=np.array([most_unused, most_carry], dtype=np.float64),
        unused_price=unused_price,
        constant=core.unused_price * remainder,
    )


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
