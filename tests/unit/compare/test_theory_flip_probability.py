"""Flip probability: closed forms, the integral in rational arithmetic, and simulation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quantdrift.compare.contenders import flip_probability, flip_probability_limits, relative_gaps
from quantdrift.errors import TheoryError
from support.theory_samples import evidence

Floats = NDArray[np.float64]


def exact_flip_probability(ratios: Floats) -> Fraction:
    """The integral with polynomials over the rationals; the ratios are gap / (2 scale)."""
    near = [Fraction(a) for a in ratios.tolist() if a < 1]
    ends = sorted({Fraction(0), Fraction(1), *(1 - a for a in near)})
    kept = Fraction(0)
    for low, high in itertools.pairwise(ends):
        coefficients = [Fraction(1)]  # in powers of u - low
        for a in near:
            if a < 1 - low:
                shifted = [Fraction(0), *coefficients]
                scaled = [(low + a) * c for c in coefficients] + [Fraction(0)]
                coefficients = [x + y for x, y in zip(shifted, scaled, strict=True)]
        kept += sum(c * (high - low) ** (power + 1) / (power + 1) for power, c in enumerate(coefficients))
    return 1 - kept


def test_one_contender_has_a_closed_form() -> None:
    ratios = np.linspace(0, 1, 33)
    flips = flip_probability(ratios[:, None] * 2 * 0.7, 0.7)
    np.testing.assert_allclose(flips, (1 - ratios) ** 2 / 2, rtol=0, atol=1e-15)


def test_two_contenders_by_hand() -> None:
    # gaps 0 and s: from 0 to 1/2 u (u + 1/2), then u, so 1/24 + 1/16 + 3/8 = 23/48 is kept
    assert flip_probability([0.0, 1.0], 1.0)[0] == pytest.approx(25 / 48, abs=1e-15)


@pytest.mark.parametrize("n_contenders", [1, 2, 3, 7, 21, 22, 50, 199])
def test_all_tied_is_a_draw_among_equals(n_contenders: int) -> None:
    low, high = flip_probability_limits(n_contenders)
    assert high == n_contenders / (n_contenders + 1)
    tied = flip_probability(np.zeros((1, n_contenders)), 0.3)
    np.testing.assert_allclose(tied, high, rtol=0, atol=1e-12)
    assert low == 0
    at_the_boundary = flip_probability(np.full((1, n_contenders), 0.6), 0.3)
    assert at_the_boundary[0] == 0


def profiles(n_contenders: int) -> dict[str, Floats]:
    rng = np.random.default_rng(n_contenders)
    grid = 2.0**-20  # so that ratios and breakpoints are exact in both arithmetics
    uniform = rng.integers(0, 2**20, n_contenders) * grid
    return {
        "uniform": uniform,
        "close": rng.integers(0, 2**10, n_contenders) * grid,
        "at the boundary": 1 - rng.integers(1, 2**10, n_contenders) * grid,
        "in two groups": np.repeat([0.0, 0.25], n_contenders)[::2],
        "some far away": np.concatenate([uniform, [1.0, 1.5, 40.0]]),
    }


@pytest.mark.parametrize("n_contenders", [1, 2, 5, 20, 45])
def test_the_quadrature_is_the_integral(n_contenders: int) -> None:
    for name, ratios in profiles(n_contenders).items():
        exact = float(exact_flip_probability(ratios))
        computed = flip_probability(2 * ratios, 1.0)[0]
        assert computed == pytest.approx(exact, rel=1e-12, abs=1e-14), name


def test_simulation_agrees_within_four_standard_errors() -> None:
    rng = np.random.default_rng(7)
    draws, scale = 200_000, 0.05
    gaps = np.array([[0.001, 0.02, 0.05, 0.08], [0.09, 0.095, 0.2, np.nan], [0, 0, 0.03, 0.031]])
    for row, predicted in zip(gaps, flip_probability(gaps, scale), strict=True):
        behind = row[~np.isnan(row)]
        delta = rng.uniform(-scale, scale, (draws, 1 + len(behind)))
        flips = (delta[:, 1:] - behind > delta[:, :1]).any(axis=1).mean()
        assert abs(flips - predicted) <= 4 * np.sqrt(predicted * (1 - predicted) / draws)


def test_no_contender_no_flip() -> None:
    assert flip_probability([[2.0, 3.0], [np.nan, np.nan], [np.inf, 7.0]], 1.0).tolist() == [0] * 3
    assert flip_probability(np.empty((2, 0)), 1.0).tolist() == [0, 0]
    assert flip_probability(np.empty((0, 3)), 1.0).tolist() == []


def test_the_order_of_ranks_and_missing_ones_do_not_matter() -> None:
    plain = flip_probability([0.1, 0.4, 0.9], 1.0)
    assert flip_probability([np.nan, 0.9, 0.1, 5.0, 0.4], 1.0) == plain


def test_each_input_may_have_its_own_scale_and_0_moves_nothing() -> None:
    gaps = np.array([[0.0, 0.2], [0.0, 0.2], [0.5, 0.6]])
    scales = np.array([0.0, 0.3, 0.4])
    together = flip_probability(gaps, scales)
    assert together[0] == 0
    one_by_one = [flip_probability(gaps[i], scales[i])[0] for i in (1, 2)]
    assert together[1:].tolist() == one_by_one


def test_many_inputs_are_taken_in_blocks() -> None:
    rng = np.random.default_rng(0)
    gaps = rng.exponential(1.0, (5000, 3))
    some = [0, 2047, 2048, 4095, 4096, 4999]
    np.testing.assert_array_equal(flip_probability(gaps, 1.0)[some], flip_probability(gaps[some], 1.0))


def test_long_and_short_segments_in_one_profile() -> None:
    """More than 20 contenders: few nodes on short segments, an exact rule on the long one."""
    ratios = np.concatenate([np.arange(30) / 2**12, 0.75 + np.arange(30) / 2**12])
    exact = float(exact_flip_probability(ratios))
    assert flip_probability(2 * ratios, 1.0)[0] == pytest.approx(exact, rel=1e-13)


def test_relative_gaps_are_in_units_of_each_inputs_epsilon() -> None:
    record = evidence([[5, 4, 1], [5, 4, 1], [5, 5, 1], [5, np.nan, np.nan]], [1, 0.5, 0, 0])
    np.testing.assert_array_equal(relative_gaps(record), [[1, 4], [2, 8], [np.inf, np.inf], [np.nan, np.nan]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: flip_probability([-0.1], 1.0), "negative"),
        (lambda: flip_probability([0.1], -1.0), "finite and 0 or more"),
        (lambda: flip_probability([0.1], np.inf), "finite and 0 or more"),
        (lambda: flip_probability([0.1], np.nan), "finite and 0 or more"),
        (lambda: flip_probability([[0.1], [0.2]], [1.0, 1.0, 1.0]), r"one per input \(2\)"),
        (lambda: flip_probability(np.zeros((1, 1, 1)), 1.0), r"\[n_inputs, k\]"),
        (lambda: flip_probability_limits([1, -1]), "0 or more"),
    ],
)
def test_what_cannot_be_used_is_said(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TheoryError, match=message):
        call()
