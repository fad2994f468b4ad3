"""Widths for layers, from what each loses at each width and from the bits there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import ScoreError, SpecError, UnknownNameError, UnsupportedError
from quantdrift.spec import Scheme, error_at

METHODS = ("knapsack", "greedy")
DEFAULT_QUERIES = 128
"""Calibration queries, as in the paper."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """Widths within a budget, and how good they are known to be.

    Attributes:
        widths: int64 [n_layers], bits per weight.
        loss: sum of the losses at these widths, of the layers that were not left out.
        bound: no widths within the budget have a smaller loss, up to the solver's tolerance.
        method: one of METHODS.
        status: "optimal" if nothing better exists up to the solver's tolerance; else why it is not known: "greedy",
            "time limit", or what the solver said.
    """

    widths: Ints
    loss: float
    bound: float
    method: str
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

    sum over layers of n_weights * width <= budget * sum of n_weights, in whole bits; the budget is the decimal number
    that it is written as (3.3 is 33/10). Losses add up. Bits that are left over are used wherever a layer can still
    be widened, even if its loss does not fall.
    """
    if method not in METHODS:
        raise UnknownNameError("allocation method", method, METHODS)
    _check_widths(widths, budget)
    losses, n_weights = np.asarray(losses, np.float64), np.asarray(n_weights)
    units = np.arange(len(n_weights)) if units is None else np.asarray(units)
    kept = [None] * len(n_weights) if kept is None else kept
    _check_losses(losses, n_weights, units, len(widths))
    free = np.array([width is None for width in kept])
    # np.unique numbers units by their value; ties ask for the order of definition
    _, first, member = np.unique(units[free], return_index=True, return_inverse=True)
    member = np.argsort(np.argsort(first))[member]
    unit_losses, unit_weights = np.zeros((len(first), len(widths))), np.zeros(len(first), np.int64)
    np.add.at(unit_losses, member, losses[free])
    np.add.at(unit_weights, member, n_weights[free])
    n_total, offered = int(unit_weights.sum()), np.array(widths, np.int64)
    bits = unit_weights[:, None] * (offered - offered[0])  # on top of the narrowest width's
    capacity = math.floor(Fraction(str(budget)) * n_total) - widths[0] * n_total
    levels, bound, status = _solved(unit_losses, bits, capacity, method, time_limit)
    found = np.array([width or 0 for width in kept], np.int64)
    found[free] = offered[levels[member]]
    loss = _total(unit_losses, levels)
    return Solution(widths=found, loss=loss, bound=min(max(bound, 0.0), loss), method=method, status=status)


def _solved(losses: Floats, bits: Ints, capacity: int, method: str, time_limit: float) -> tuple[Ints, float, str]:
    """Level of every unit, a bound on the loss, and a status.

    The greedy choice comes first and is preferred among equals. HiGHS meets constraints up to a tolerance, so what it
    finds is counted in whole bits, and dropped if there are too many.
    """
    levels, price = _greedy(losses, bits, capacity)
    loss = _total(losses, levels)
    # Dantzig's: with the price of a bit at the first step that did not fit, the linear relaxation's optimum
    bound = math.fsum((losses + price * bits).min(axis=1)) - price * capacity
    if math.isclose(bound, loss, rel_tol=1e-12) or loss == 0.0:
        return levels, bound, "optimal"
    if method == "greedy":
        return levels, bound, "greedy"
    scale = float(losses.max())
    result = _optimum(losses / scale, bits, capacity, time_limit)
    if result.x is not None:
        found = result.x.reshape(losses.shape).argmax(axis=1).astype(np.int64)
        if _spent(bits, found) <= capacity and _total(losses, found) < loss:
            # among units that are alike the widest first, whatever the solver's order is
            _, alike = np.unique(np.hstack([losses, bits]), axis=0, return_inverse=True)
            for kind in range(alike.max() + 1):
                found[alike == kind] = np.sort(found[alike == kind])[::-1]
            levels = _spend_rest(losses, bits, capacity, found)
    if result.mip_dual_bound is not None and math.isfinite(result.mip_dual_bound):
        bound = max(bound, float(result.mip_dual_bound) * scale)
    statuses = {0: "optimal", 1: "time limit"}
    return levels, bound, statuses.get(result.status, str(result.message))


def _optimum(losses: Floats, bits: Ints, capacity: int, time_limit: float) -> Any:
    """Least sum of losses with one level for each unit, as HiGHS finds it."""
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


def _greedy(losses: Floats, bits: Ints, capacity: int) -> tuple[Ints, float]:
    """Widen units in the order of the fall in loss per added bit, while the bits last.

    The levels, and the fall per bit of the first step that did not fit, 0 if all did.

    A unit goes up along the lower convex hull of its losses over its bits, so its steps come in the order of the
    ranking. Ties go to the unit defined first. A step that does not fit is passed over, with the later ones of that
    unit, and the next that fits is taken. Between two widths this is the paper's rule: the fall is then the loss at
    the lower one.

    Source: section 5.1 and the appendix on allocation criteria.
    """
    steps: list[tuple[float, int, int, int]] = []
    for unit, (loss, cost) in enumerate(zip(losses.tolist(), bits.tolist(), strict=True)):

        def fall(low: int, high: int, loss: list[float] = loss, cost: list[int] = cost) -> float:
            return (loss[low] - loss[high]) / (cost[high] - cost[low])

        corners = [0]
        for level in range(1, len(loss)):
            while len(corners) > 1 and fall(corners[-2], corners[-1]) < fall(corners[-1], level):
                corners.pop()
            corners.append(level)
        steps += [(-fall(low, high), unit, low, high) for low, high in pairwise(corners)]
    levels, left, price = np.zeros(len(losses), np.int64), capacity, 0.0
    for falls, unit, low, high in sorted(steps, key=lambda step: step[0]):  # stable: ties keep their order
        cost_of_step = int(bits[unit, high] - bits[unit, low])
        if levels[unit] == low and cost_of_step <= left:
            levels[unit] = high
            left -= cost_of_step
        elif not price:
            price = -falls
    return _spend_rest(losses, bits, capacity, levels), price


def _spend_rest(losses: Floats, bits: Ints, capacity: int, levels: Ints) -> Ints:
    """Widen units while any fits, each time where loss falls most per added bit.

    Losses do not rise with the width, so this never costs anything, and it may go where nothing is gained: a loss is
    an estimate, and an average that was granted is used. Ties go to the unit defined first, then to the least step.
    """
    levels, rows = levels.copy(), np.arange(len(levels))
    while True:
        costs = bits - bits[rows, levels][:, None]
        fits = (costs > 0) & (costs <= capacity - _spent(bits, levels))
        if not fits.any():
            return levels
        falls = losses[rows, levels][:, None] - losses
        unit, level = divmod(int(np.where(fits, falls / np.maximum(costs, 1), -np.inf).argmax()), losses.shape[1])
        levels[unit] = level


def _spent(bits: Ints, levels: Ints) -> int:
    return int(bits[np.arange(len(levels)), levels].sum())


def _total(losses: Floats, levels: Ints) -> float:
    return math.fsum(losses[np.arange(len(levels)), levels])


def _check_widths(widths: tuple[int, ...], budget: float) -> None:
    whole = all(isinstance(width, int) and width >= 1 for width in widths)
    if not widths or not whole or sorted(set(widths)) != list(widths):
        raise UnsupportedError(f"expected widths as whole numbers of bits in ascending order, got {widths!r}")
    if not widths[0] <= budget <= widths[-1]:
        raise UnsupportedError(
            f"a budget of {budget} bits per weight cannot be met with widths of {', '.join(map(str, widths))}: "
            f"expected {widths[0]} to {widths[-1]}. Change the budget or offer other widths."
        )


def _check_losses(losses: Floats, n_weights: Ints, units: Ints, n_widths: int) -> None:
    n_layers = len(losses)
    shapes = (losses.shape, n_weights.shape, units.shape)
    if n_layers == 0 or shapes != ((n_layers, n_widths), (n_layers,), (n_layers,)):
        raise ScoreError(
            f"expected losses [n_layers, {n_widths}], n_weights [n_layers] and units [n_layers] with at least one "
            f"layer, got shapes {', '.join(map(str, shapes))}"
        )
    if n_weights.dtype.kind != "i" or units.dtype.kind != "i" or n_weights.min() < 1:
        raise ScoreError(f"expected whole numbers of weights, 1 or more, and of units; got {n_weights} and {units}")
    with np.errstate(over="ignore"):
        wrong = ~(np.isfinite(losses.sum()) & (losses >= 0)) | (np.diff(losses, axis=1, append=losses[:, -1:]) > 0)
    if wrong.any():
        layer = int(np.argwhere(wrong)[0, 0])
        raise ScoreError(
            f"expected losses that are 0 or more, do not rise with the width and have a sum; got {losses[layer]} for "
            f"layer {layer}"
        )


# --- what a scheme says of how its widths are chosen ------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PreStepSettings:
    """How widths are chosen.

    Attributes:
        n_queries: calibration queries wanted.
        seed: of their draw, and of the criterion `random`.
        solver: one of METHODS.
        fused: whether layers that runtimes multiply at once share a width.
    """

    n_queries: int = DEFAULT_QUERIES
    seed: int = 0
    solver: str = METHODS[0]
    fused: bool = False


def settings_of(scheme: Scheme) -> PreStepSettings:
    """Read `+queries=`, `+seed=`, `+solver=` and `+units=` of a scheme."""
    return PreStepSettings(
        n_queries=_whole(scheme, "queries", DEFAULT_QUERIES, least=1),
        seed=_whole(scheme, "seed", 0, least=0),
        solver=_one_of(scheme, "solver", METHODS),
        fused=_one_of(scheme, "units", ("layer", "fused")) == "fused",
    )


def _whole(scheme: Scheme, key: str, default: int, *, least: int) -> int:
    given = scheme.option(key, str(default))
    if not (given.isdecimal() and int(given) >= least):
        raise _complaint(scheme, key, given, f"a whole number, {least} or more")
    return int(given)


def _one_of(scheme: Scheme, key: str, known: tuple[str, ...]) -> str:
    given = scheme.option(key, known[0])
    if given not in known:
        raise _complaint(scheme, key, given, f"one of {', '.join(known)}")
    return given


def _complaint(scheme: Scheme, key: str, given: str, expected: str) -> SpecError:
    text = str(scheme)
    start = text.index(f"+{key}=") + len(key) + 2
    return error_at(text, start, start + len(given), f"unusable {key}", expected)
