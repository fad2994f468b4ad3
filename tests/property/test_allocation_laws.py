"""Laws of the solver, held against every assignment there is, in fractions."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantdrift.allocation.solver import Solution, solve

Problem = tuple[NDArray[np.float64], NDArray[np.int64], tuple[int, ...], float, NDArray[np.int64]]

WIDTHS = st.sampled_from([(3, 4), (2, 4), (4, 8), (2, 3, 4), (2, 3, 4, 8)])
METHODS = ("knapsack", "greedy")


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to six layers, some of them tied; losses with ties, or over twelve orders of magnitude."""
    widths = draw(WIDTHS)
    n_layers = draw(st.integers(1, 6 if len(widths) < 4 else 5))
    sizes = st.sampled_from([st.integers(1, 6), st.sampled_from([384 * 384, 384 * 1536]), st.integers(1, 10**9)])
    n_weights = draw(st.lists(draw(sizes), min_size=n_layers, max_size=n_layers))
    floats = st.floats(0.0, 1.0).map(lambda loss: loss if loss > 1e-200 else 0.0)
    powers = st.floats(-6.0, 6.0).map(lambda exponent: 10.0**exponent)
    loss = draw(st.sampled_from([st.integers(0, 3).map(float), floats, powers]))
    rows = st.lists(loss, min_size=len(widths) - 1, max_size=len(widths) - 1)
    losses = [[*sorted(draw(rows), reverse=True), 0.0] for _ in range(n_layers)]
    budget = draw(st.floats(widths[0], widths[-1]) | st.integers(10 * widths[0], 10 * widths[-1]).map(lambda n: n / 10))
    units = draw(st.lists(st.integers(0, 5), min_size=n_layers, max_size=n_layers))
    return np.array(losses), np.array(n_weights), widths, budget, np.array(units)


def solved(problem: Problem, method: str) -> Solution:
    losses, n_weights, widths, budget, units = problem
    return solve(losses, n_weights, widths=widths, budget=budget, units=units, method=method)


def least_loss(problem: Problem) -> Fraction:
    """The least loss of all assignments within the budget."""
    losses, n_weights, widths, budget, units = problem
    members = [np.flatnonzero(units == unit) for unit in np.unique(units)]
    within = Fraction(str(budget)) * int(n_weights.sum())
    sums = [[sum(Fraction(losses[layer, level]) for layer in unit) for level in range(len(widths))] for unit in members]
    losses_within = []
    for levels in itertools.product(range(len(widths)), repeat=len(members)):
        bits = sum(int(n_weights[unit].sum()) * widths[level] for unit, level in zip(members, levels, strict=True))
        if bits <= within:
            losses_within.append(sum(s[level] for s, level in zip(sums, levels, strict=True)))
    return Fraction(min(losses_within))


# one layer that can lose ten million times what decides between the others
_FAR_APART = np.array([[1.0, 1.0, 0.0], [10**0.5, 1.0, 0.0], [1e5, 1.0, 0.0], [1.0, 0.01, 0.0]])


@given(problems())
@example((_FAR_APART, np.array([1, 2, 1, 1]), (2, 3, 4), 3.75, np.array([0, 0, 1, 2])))
def test_the_knapsack_is_the_best_of_all_assignments(problem: Problem) -> None:
    best, greedy = solved(problem, "knapsack"), solved(problem, "greedy")
    least = float(least_loss(problem))
    assert (best.status, best.loss) == ("optimal", pytest.approx(least, rel=1e-9, abs=0.0))
    assert greedy.loss >= least * (1 - 1e-12)
    assert best.bound is not None
    assert best.bound <= best.loss <= greedy.loss


@given(problems(), st.sampled_from(METHODS))
def test_a_solution_keeps_to_the_budget_and_wastes_nothing(problem: Problem, method: str) -> None:
    losses, n_weights, widths, budget, units = problem
    solution = solved(problem, method)
    spent = sum(int(n) * int(width) for n, width in zip(n_weights, solution.widths, strict=True))
    within = Fraction(str(budget)) * int(n_weights.sum())
    assert spent <= within
    levels = [widths.index(width) for width in solution.widths.tolist()]
    assert solution.loss == pytest.approx(losses[np.arange(len(levels)), levels].sum())
    for unit in np.unique(units):
        members = units == unit
        (level,) = {widths.index(width) for width in solution.widths[members].tolist()}
        if level + 1 < len(widths):
            step = (widths[level + 1] - widths[level]) * int(n_weights[members].sum())
            assert spent + step > within


@given(problems(), st.sampled_from(METHODS), st.integers(-40, 40))
def test_the_unit_of_losses_does_not_matter(problem: Problem, method: str, power: int) -> None:
    losses, *rest = problem
    scaled = solved((losses * 2.0**power, *rest), method)
    solution = solved(problem, method)
    assert (scaled.widths.tolist(), scaled.loss) == (solution.widths.tolist(), solution.loss * 2.0**power)
