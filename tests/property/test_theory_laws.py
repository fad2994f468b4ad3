"""Laws of the flip probability: limits, locality, monotony, units."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quantdrift_paper.contenders import fit_effective_scale, flip_probability

GAPS = st.lists(st.floats(0, 10) | st.just(0.0), min_size=0, max_size=30)
SCALES = st.floats(1e-3, 20)

ROUNDING = 1e-12


@given(GAPS, SCALES)
def test_the_flip_probability_lies_between_its_limits(gaps: list[float], scale: float) -> None:
    n_contenders = sum(gap < 2 * scale for gap in gaps)
    flips = flip_probability(np.array([gaps]), scale)[0]
    assert 0 <= flips <= n_contenders / (n_contenders + 1) + ROUNDING


@given(GAPS, SCALES)
def test_no_contender_no_flip(gaps: list[float], scale: float) -> None:
    behind = [gap + 2 * scale for gap in gaps]
    assert flip_probability(np.array([behind]), scale)[0] == 0
    assert flip_probability(np.array([[*gaps, *behind]]), scale)[0] == (flip_probability(np.array([gaps]), scale)[0])


@given(GAPS, SCALES, st.floats(1, 10))
def test_a_larger_scale_never_flips_less(gaps: list[float], scale: float, factor: float) -> None:
    small, large = flip_probability(np.array([gaps, gaps]), np.array([scale, scale * factor]))
    assert small <= large + ROUNDING


@given(GAPS, SCALES, st.floats(0, 10), st.floats(0, 1))
def test_a_closer_or_further_contender_never_flips_less(
    gaps: list[float], scale: float, another: float, share: float
) -> None:
    fewer, more = (flip_probability(np.array([g]), scale)[0] for g in (gaps, [*gaps, another]))
    closer = flip_probability(np.array([[*gaps, another * share]]), scale)[0]
    assert fewer <= more + ROUNDING
    assert more <= closer + ROUNDING


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=8), SCALES)
def test_a_fitted_scale_gives_back_the_rate(gaps: list[float], scale: float) -> None:
    table = np.array(gaps)[:, None] * [1.0, 2.0]
    rate = float(flip_probability(table, scale).mean())
    fit = fit_effective_scale(table, rate)
    if fit.scale is None:
        assert rate == 0
        assert scale <= min(gaps) / 2
    else:
        assert math.isclose(flip_probability(table, fit.scale).mean(), rate, abs_tol=1e-11)
