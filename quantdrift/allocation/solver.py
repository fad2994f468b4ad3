"""Widths for layers, from what each loses at each width and from the bits there are."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import ScoreError, SpecError, UnknownNameError, UnsupportedError, nearest
from quantdrift.spec import FULL_BITS, MAX_BITS, MIN_BITS, POSSIBLE_BITS, Scheme, error_at

# --- greedy ---------------------------------------------------------------------------------------


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
    for unit, (losses, bits) in enumerate(zip(choices.losses.tolist(), choices.bits.tolist(), strict=True)):
        corners = _lower_hull(losses, bits)
        steps += [(_fall(losses, bits, low, high), unit, low, high) for low, high in pairwise(corners)]
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


# --- knapsack -------------------------------------------------------------------------------------

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
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415 -- scipy.optimize takes long to import
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
            LinearConstraint((choices.bits // factor).reshape(1, -1), ub=choices.capacity // factor),
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


# --- Widths for layers, from what each loses at each width and from the bits there are ------------

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
        raise UnsupportedError(f"expected widths as whole numbers of bits in ascending order, got {widths!r}")
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
            f"expected whole numbers for weights and units, got arrays of {counts.dtype} and {numbers.dtype}"
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


# --- Which layers share one width, and which are left out of an allocation, from their names ------

FUSED: tuple[tuple[str, ...], ...] = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q", "k", "v"),
    ("query_proj", "key_proj", "value_proj"),
    ("to_q", "to_k", "to_v"),
    ("q_lin", "k_lin", "v_lin"),
    ("wq", "wk", "wv"),
    ("q_proj_weight", "k_proj_weight", "v_proj_weight"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
)
"""Last parts of names of layers with the same input that runtimes multiply at once."""
_FIRST = {part: parts[0] for parts in FUSED for part in parts}
_EXPERT_OF_LIST = re.compile(r"(?P<stack>(?:.*\.)?experts)\.(?:expert_)?[0-9]+(?:\..+)?")
"""A module for each expert: mlp.experts.3.gate_proj."""
_EXPERT_OF_STACK = re.compile(r"(?P<module>.+)\.(?:(?:gate_up_proj|up_proj|down_proj)|(?P<weight>weight))\.[0-9]+")

"""One parameter for all experts, as `find_linears` names its parts: mlp.experts.down_proj.3."""
_STACKS = (".input_linear", ".output_linear")
"""Modules beside each other, each with a stack of its own, that make one mixture."""
_REGEX = "re:"


def runtime_units(names: Sequence[str]) -> NDArray[np.int64]:
    """Number the layers so that those get the same number which runtimes fuse.

    vLLM and SGLang multiply query, key and value at once, and gate and up; in a file that they
    read, such layers must have one scheme. The experts of a mixture, with all their matrices, are
    one kernel's and need one scheme, too. A mixture's shared expert is a layer like any other.

    Args:
        names: of layers, as `find_linears` gives them.

    Returns:
        int64 [n_layers], from 0 in the order in which units first occur.
    """
    numbers: dict[tuple[str, str], int] = {}
    return np.array([numbers.setdefault(_unit(name), len(numbers)) for name in names], dtype=np.int64)


def excluded(
    names: Sequence[str], patterns: Mapping[str, int], *, units: NDArray[np.int64] | None = None
) -> dict[str, int]:
    """Layers that an allocation leaves out, and the width that they are kept at.

    Args:
        names: of all layers.
        patterns: a pattern of whole names to a width, 2 to 8, or 16 for layers that are not
            quantized. Patterns are those of a shell (`*.0.attention.*`, where `*` may span dots),
            or regular expressions if they start with `re:`, as in `re:.*[.]layer[.](0|1)[.].*`.
        units: int64 [n_layers], layers tied to one width.

    Returns:
        Name to width, in the order of `names`.

    Raises:
        UnknownNameError: a pattern matches no layer; names some that come near.
        SpecError: a regular expression is none.
        UnsupportedError: a width is none, two patterns give one layer two widths, or tied layers
            do not all get the same.
    """
    chosen: dict[str, tuple[int, str]] = {}
    for pattern, width in patterns.items():
        if isinstance(width, bool) or width not in POSSIBLE_BITS:
            raise UnsupportedError(
                f"layers {pattern} cannot be kept at {width!r} bits: expected {MIN_BITS} to "
                f"{MAX_BITS}, or {FULL_BITS} for layers that are not quantized"
            )
        matched = _matches(pattern, names)
        for name in matched:
            other, by = chosen.setdefault(name, (width, pattern))
            if other != width:
                raise UnsupportedError(
                    f"layer {name} is matched by {by}, which keeps it at {other} bits, and by "
                    f"{pattern}, which keeps it at {width}; expected one width for each layer"
                )
    kept = {name: chosen[name][0] for name in names if name in chosen}
    if units is not None:
        _check_units(names, units, kept)
    return kept


def _unit(name: str) -> tuple[str, str]:
    if found := _EXPERT_OF_LIST.fullmatch(name):
        return found["stack"], "experts"
    if found := _EXPERT_OF_STACK.fullmatch(name):
        module: str = found["module"]
        if found["weight"]:
            for part in _STACKS:
                module = module.removesuffix(part)
        return module, "experts"
    parent, _, last = name.rpartition(".")
    return parent, _FIRST.get(last, last)


def _matches(pattern: str, names: Sequence[str]) -> list[str]:
    if pattern.startswith(_REGEX):
        try:
            expression = re.compile(pattern.removeprefix(_REGEX))
        except re.error as error:
            at = len(_REGEX) + (error.pos or 0)
            raise SpecError(
                f"{pattern}: expected a regular expression after {_REGEX!r}: {error}",
                text=pattern,
                start=at,
                end=at + 1,
            ) from error
        matched = [name for name in names if expression.fullmatch(name)]
    else:
        matched = [name for name in names if fnmatchcase(name, pattern)]
    if not matched:
        raise UnknownNameError("layer", pattern, (), hint=_near(pattern, names))
    return matched


def _near(pattern: str, names: Sequence[str]) -> str:
    """What to say of a pattern that matches nothing: layers that have something of it."""
    close = nearest(pattern, names)
    if not close:
        # of a pattern's parts one is misspelt; a layer of each spelling that comes near will do
        by_part = {part: name for name in reversed(names) for part in name.split(".")}
        words = [word for word in re.split(r"[^\w]+", pattern) if not word.isdecimal()]
        parts = [part for word in words if word for part in nearest(word, by_part, n=1)]
        close = list(dict.fromkeys(by_part[part] for part in parts if part not in words))[:3]
    shown = close or list(names[:3])
    return (
        f"(the pattern matches no layer's whole name; there {'is' if len(shown) == 1 else 'are'} "
        f"{', '.join(shown)}{'' if close else ', ...'}; * stands for any characters)"
    )


def _check_units(names: Sequence[str], units: NDArray[np.int64], kept: Mapping[str, int]) -> None:
    first: dict[int, str] = {}
    for name, unit in zip(names, units.tolist(), strict=True):
        other = first.setdefault(unit, name)
        if kept.get(other) != kept.get(name):
            states = [
                f"{layer} is {'allocated' if width is None else f'kept at {width} bits'}"
                for layer, width in ((other, kept.get(other)), (name, kept.get(name)))
            ]
            raise UnsupportedError(
                f"two layers are tied to one width, but {' and '.join(states)}; leave out both, or do not tie layers"
            )


# --- What a scheme says of how its widths are chosen ----------------------------------------------

DEFAULT_QUERIES = 128
"""Calibration queries, as in the paper."""
DEPTH = 20
"""First documents of every query that are embedded again to compare allocations."""
UNITS = ("layer", "fused")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreStepSettings:
    """How widths are chosen.

    Attributes:
        n_queries: calibration queries wanted.
        seed: of their draw, and of the criterion `random`.
        solver: one of `solver.METHODS`.
        fused: whether layers that runtimes multiply at once share a width.
    """

    n_queries: int = DEFAULT_QUERIES
    seed: int = 0
    solver: str = METHODS[0]
    fused: bool = False


def settings_of(scheme: Scheme) -> PreStepSettings:
    """Read `+queries=`, `+seed=`, `+solver=` and `+units=` of a scheme.

    Raises:
        SpecError: one of them is not what it can be.
    """
    return PreStepSettings(
        n_queries=_whole(scheme, "queries", DEFAULT_QUERIES, least=1),
        seed=_whole(scheme, "seed", 0, least=0),
        solver=_one_of(scheme, "solver", METHODS),
        fused=_one_of(scheme, "units", UNITS) == "fused",
    )


def _whole(scheme: Scheme, key: str, default: int, *, least: int) -> int:
    given = scheme.option(key)
    if given is None:
        return default
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
