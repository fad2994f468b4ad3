"""Laws of the theory: two ways to decide reachability agree, and locality, stability, monotony."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from quantdrift.theory import (
    Number,
    contenders,
    fit_effective_scale,
    flip_probability,
    flip_probability_limits,
    is_reachable,
    must_precede,
    reachable_rankings,
    top1_is_stable,
    topk_is_stable,
    witness,
)

Ranked = tuple[list[Number], list[int]]

# Few different values, so that ties and gaps of exactly 2 epsilon are common.
COARSE = st.integers(-6, 6)
FINE = st.fractions(-3, 3, max_denominator=12)
FLOATS = st.floats(-4, 4, width=32)
SCORES = st.one_of(*(st.lists(kind, min_size=1, max_size=5) for kind in (COARSE, FINE, FLOATS)))
EPSILONS = st.one_of(st.integers(0, 4), st.fractions(0, 4, max_denominator=6), st.floats(0, 4))
POSITIVE = st.one_of(st.integers(1, 4), st.fractions(Fraction(1, 6), 4, max_denominator=6))
RANKED = SCORES.flatmap(
    lambda scores: st.tuples(st.just(scores), st.permutations(range(len(scores))))
)

GAPS = st.lists(st.floats(0, 10) | st.just(0.0), min_size=0, max_size=30)
SCALES = st.floats(1e-3, 20)

ROUNDING = 1e-12


@settings(deadline=None)
@example(([2, 0], [1, 0]), 1)
@example(([2.0, 0.1], [1, 0]), 0.95)
@given(RANKED, EPSILONS)
def test_a_ranking_is_reachable_iff_it_has_a_witness(ranked: Ranked, epsilon: Number) -> None:
    scores, ranking = ranked
    delta = witness(scores, epsilon, ranking)
    assert is_reachable(scores, epsilon, ranking) == (delta is not None)
    if delta is not None:
        assert max(map(abs, delta)) <= Fraction(epsilon)
        moved = [Fraction(scores[item]) + delta[item] for item in ranking]
        assert all(above > below for above, below in itertools.pairwise(moved))


@settings(deadline=None)
@given(RANKED, st.lists(st.fractions(-1, 1, max_denominator=8), min_size=5, max_size=5), POSITIVE)
def test_whatever_a_perturbation_produces_is_reachable(
    ranked: Ranked, shares: list[Fraction], epsilon: Fraction
) -> None:
    scores = ranked[0]
    moved = [Fraction(z) + share * epsilon for z, share in zip(scores, shares, strict=False)]
    assume(len(set(moved)) == len(moved))
    ranking = sorted(range(len(moved)), key=lambda item: -moved[item])
    assert is_reachable(scores, epsilon, ranking)


@settings(deadline=None)
@given(SCORES, POSITIVE)
def test_the_generator_finds_exactly_the_reachable_rankings(
    scores: list[Number], epsilon: Fraction
) -> None:
    found = list(reachable_rankings(scores, epsilon))
    every = itertools.permutations(range(len(scores)))
    assert len(found) == len(set(found))
    assert set(found) == {ranking for ranking in every if is_reachable(scores, epsilon, ranking)}


@settings(deadline=None)
@given(SCORES, POSITIVE)
def test_the_fixed_pairs_are_a_strict_partial_order(
    scores: list[Number], epsilon: Fraction
) -> None:
    fixed = must_precede(scores, epsilon)
    assert all((j, i) not in fixed for i, j in fixed)
    assert all((i, m) in fixed for i, j in fixed for k, m in fixed if j == k)


@settings(deadline=None)
@given(SCORES, EPSILONS)
def test_stability_is_one_first_set_over_all_reachable_rankings(
    scores: list[Number], epsilon: Fraction
) -> None:
    reached = list(reachable_rankings(scores, epsilon))
    for k in range(1, len(scores) + 1):
        one_set = len({frozenset(ranking[:k]) for ranking in reached}) <= 1
        assert topk_is_stable(scores, epsilon, k) == one_set


@settings(deadline=None)
@given(SCORES, POSITIVE)
def test_contenders_are_local(scores: list[Number], epsilon: Fraction) -> None:
    """Just the first item and its contenders can come first, and the others play no part in it."""
    first = min(range(len(scores)), key=lambda item: (-Fraction(scores[item]), item))
    challengers = list(contenders(scores, epsilon))
    assert {ranking[0] for ranking in reachable_rankings(scores, epsilon)} == {first, *challengers}
    assert top1_is_stable(scores, epsilon) == (not challengers)
    among_them = [scores[item] for item in sorted([first, *challengers])]
    assert top1_is_stable(among_them, epsilon) == (not challengers)


@settings(deadline=None)
@given(RANKED, POSITIVE, st.fractions(-9, 9, max_denominator=4))
def test_a_new_first_item_had_a_gap_below_s(
    ranked: Ranked, epsilon: Fraction, shift: Fraction
) -> None:
    """S counts differences of delta only, so a shift of all scores leaves it and the ranking."""
    scores, ranking = ranked
    delta = witness(scores, epsilon, ranking)
    assume(delta is not None and len(scores) > 1)
    assert delta is not None
    delta = tuple(change + shift for change in delta)
    new, runner_up = ranking[:2]
    s = max(delta[new] - other for other in delta)
    gap = Fraction(scores[new]) + delta[new] - Fraction(scores[runner_up]) - delta[runner_up]
    assert 0 <= s <= 2 * epsilon
    if Fraction(scores[new]) < max(Fraction(score) for score in scores):
        assert 0 < gap < s


@settings(deadline=None)
@given(RANKED, POSITIVE, st.integers(1, 5), COARSE)
def test_units_and_zero_of_the_scores_do_not_matter(
    ranked: Ranked, epsilon: Fraction, unit: int, zero: int
) -> None:
    scores, ranking = ranked
    moved = [Fraction(score) * unit + zero for score in scores]
    assert is_reachable(moved, epsilon * unit, ranking) == is_reachable(scores, epsilon, ranking)


@settings(deadline=None)
@given(GAPS, SCALES)
def test_the_flip_probability_lies_between_its_limits(gaps: list[float], scale: float) -> None:
    low, high = flip_probability_limits(sum(gap < 2 * scale for gap in gaps))
    flips = flip_probability(np.array([gaps]), scale)[0]
    assert 0 <= low <= flips <= min(1, high + ROUNDING)


@settings(deadline=None)
@given(GAPS, SCALES)
def test_no_contender_no_flip(gaps: list[float], scale: float) -> None:
    behind = [gap + 2 * scale for gap in gaps]
    assert flip_probability(np.array([behind]), scale)[0] == 0
    assert (
        flip_probability(np.array([[*gaps, *behind]]), scale)[0]
        == (flip_probability(np.array([gaps]), scale)[0])
    )


@settings(deadline=None)
@given(GAPS, SCALES, st.floats(1, 10))
def test_a_larger_scale_never_flips_less(gaps: list[float], scale: float, factor: float) -> None:
    small, large = flip_probability(np.array([gaps, gaps]), np.array([scale, scale * factor]))
    assert small <= large + ROUNDING


@settings(deadline=None)
@given(GAPS, SCALES, st.floats(0, 10), st.floats(0, 1))
def test_a_closer_or_further_contender_never_flips_less(
    gaps: list[float], scale: float, another: float, share: float
) -> None:
    fewer, more = (flip_probability(np.array([g]), scale)[0] for g in (gaps, [*gaps, another]))
    closer = flip_probability(np.array([[*gaps, another * share]]), scale)[0]
    assert fewer <= more + ROUNDING
    assert more <= closer + ROUNDING


@settings(deadline=None)
@given(GAPS, SCALES, st.integers(-20, 20))
def test_only_the_ratio_of_gap_and_scale_counts(
    gaps: list[float], scale: float, power: int
) -> None:
    unit = 2.0**power  # exact, so that not a digit may change
    one = flip_probability(np.array([gaps]), scale)
    assert flip_probability(np.array([gaps]) * unit, scale * unit) == one


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=8), SCALES)
def test_a_fitted_scale_gives_back_the_rate(gaps: list[float], scale: float) -> None:
    table = np.array(gaps)[:, None] * [1.0, 2.0]
    rate = float(flip_probability(table, scale).mean())
    fit = fit_effective_scale(table, rate)
    if fit.scale is None:
        assert rate == 0
        assert scale <= min(gaps) / 2
    else:
        assert fit.predicted is not None
        assert math.isclose(fit.predicted, rate, abs_tol=1e-11)
