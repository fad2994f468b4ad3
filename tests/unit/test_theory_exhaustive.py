"""Every permutation of many small score vectors, in rational arithmetic, with no exception allowed.

The oracle knows nothing of pairs or linear extensions. "Some delta of at most epsilon makes the
scores decrease along this permutation" is a system of difference constraints on the perturbed
scores t: t_i - 0 <= z_i + epsilon, 0 - t_i <= epsilon - z_i, and t_next - t_previous < 0. It has a
solution iff its graph has no negative cycle (Bellman-Ford), where an edge of a strict constraint
weighs an infinitesimal less. All numbers are scaled to integers, so that nothing is rounded.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quantdrift.theory import (
    Number,
    contenders,
    is_reachable,
    must_precede,
    reachable_rankings,
    top1_is_stable,
    topk_is_stable,
    witness,
)

LEAST_CHECKS = 1_300_000

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    scores: tuple[Number, ...]
    epsilon: Number


def grid(n_items: int, gaps: range, reaches: tuple[int, ...]) -> Iterator[Case]:
    """All profiles of neighbouring gaps, shuffled, at each 2 epsilon of `reaches`.

    Everything is doubled so that epsilon is an integer too: integers are fast. A gap that equals a
    reach, on its own or as a sum of several, lies exactly at the boundary.
    """
    order = random.Random(n_items)
    for steps in itertools.product(gaps, repeat=n_items - 1):
        scores = [2 * score for score in (0, *itertools.accumulate(steps))]
        order.shuffle(scores)
        for reach in reaches:
            yield Case(scores=tuple(scores), epsilon=reach)


def generic(n_items: int, n_cases: int) -> Iterator[Case]:
    """Random rationals of mixed denominators; in every second case a pair is 2 epsilon apart."""
    draw = random.Random(100 + n_items)
    for case in range(n_cases):
        scores = [
            Fraction(draw.randrange(-400, 400), draw.choice((7, 10, 12))) for _ in range(n_items)
        ]
        epsilon = Fraction(draw.randrange(1, 300), draw.choice((9, 10, 11)))
        if case % 2:
            first, second = draw.sample(scores, 2)
            epsilon = abs(first - second) / 2
        yield Case(scores=tuple(scores), epsilon=epsilon)


@cache
def permutations(n_items: int) -> Ints:
    return np.array(list(itertools.permutations(range(n_items))), dtype=np.int64)


def feasible(case: Case) -> NDArray[np.bool_]:
    """Bellman-Ford for all permutations of the items at once, bool [n_permutations]."""
    n_items = len(case.scores)
    exact = [Fraction(value) for value in (*case.scores, case.epsilon)]
    scale = math.lcm(*(value.denominator for value in exact)) * (n_items + 1)
    # A cycle has fewer than n_items strict edges, each of weight -1: together less than one unit
    # of the scaled numbers.
    *scores, epsilon = (int(value * scale) for value in exact)
    ranked = np.array(scores, dtype=np.int64)[permutations(n_items)].T
    high, low = ranked + epsilon, ranked - epsilon
    zero = np.zeros(ranked.shape[1], dtype=np.int64)
    t = np.zeros_like(ranked)
    for _ in range(n_items + 1):
        was = t.copy(), zero.copy()
        for place in range(n_items):
            t[place] = np.minimum(t[place], zero + high[place])
            if place:
                t[place] = np.minimum(t[place], t[place - 1] - 1)
            zero = np.minimum(zero, t[place] - low[place])
    settled: NDArray[np.bool_] = (t == was[0]).all(axis=0) & (zero == was[1])
    return settled


def produces(delta: tuple[Fraction, ...], case: Case, ranking: Any) -> bool:
    moved = [case.scores[item] + delta[item] for item in ranking]
    small = all(abs(value) <= case.epsilon for value in delta)
    return small and all(a > b for a, b in itertools.pairwise(moved))


def check(case: Case) -> int:
    """Compare everything that is said of one case with the oracle; number of permutations."""
    scores, epsilon, n_items = case.scores, case.epsilon, len(case.scores)
    everything = permutations(n_items)
    oracle = feasible(case)
    reached = everything[oracle]
    for ranking, possible in zip(everything.tolist(), oracle.tolist(), strict=True):
        assert is_reachable(scores, epsilon, ranking) == possible, (case, ranking)
    assert sorted(reachable_rankings(scores, epsilon)) == [tuple(r) for r in reached.tolist()], case

    first_k = np.bitwise_or.accumulate(1 << reached, axis=1)
    for k in range(1, n_items + 1):
        one_set = len(np.unique(first_k[:, k - 1])) <= 1
        assert topk_is_stable(scores, epsilon, k) == one_set, (case, k)
    assert top1_is_stable(scores, epsilon) == (not contenders(scores, epsilon)), case
    if epsilon:
        top = max(range(n_items), key=lambda item: (scores[item], -item))
        assert {top, *contenders(scores, epsilon)} == set(reached[:, 0].tolist()), case
        rank_of = np.argsort(reached, axis=1)
        always = (rank_of[:, :, None] < rank_of[:, None, :]).all(axis=0)
        assert must_precede(scores, epsilon) == set(map(tuple, np.argwhere(always).tolist())), case
    return len(everything)


def cases() -> Iterator[Case]:
    for n_items in range(1, 6):
        yield from grid(n_items, range(4), (0, 1, 2, 3, 4))
    yield from grid(6, range(3), (2, 3))
    yield from grid(6, range(4), (3,))
    yield from generic(5, 300)
    yield from generic(6, 60)
    yield from generic(7, 6)


def test_linear_extensions_are_the_reachable_rankings() -> None:
    n_checks = sum(check(case) for case in cases())
    assert n_checks >= LEAST_CHECKS


def test_a_witness_exists_exactly_for_the_reachable_rankings() -> None:
    for case in itertools.chain(
        grid(4, range(4), (0, 1, 2, 3, 4)), grid(5, range(4), (2, 3)), generic(5, 30)
    ):
        for ranking, possible in zip(
            permutations(len(case.scores)).tolist(), feasible(case).tolist(), strict=True
        ):
            delta = witness(case.scores, case.epsilon, ranking)
            assert (delta is not None) == possible, (case, ranking)
            assert delta is None or produces(delta, case, ranking), (case, ranking)


@pytest.mark.parametrize(
    ("epsilon", "n_reached"),
    [(0, 1), (Fraction(1, 2), 1), (Fraction(51, 100), 3), (1, 3), (Fraction(101, 100), 6)],
)
def test_the_oracle_by_hand(epsilon: Number, n_reached: int) -> None:
    """Scores 2, 1, 0: a neighbour passes beyond 1/2, the last passes the first beyond 1."""
    assert int(feasible(Case(scores=(2, 1, 0), epsilon=epsilon)).sum()) == n_reached
