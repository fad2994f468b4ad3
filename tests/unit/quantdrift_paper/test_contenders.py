"""Flip probability, the effective scale, and predicted against measured flips per contender count."""

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quantdrift.base.errors import TheoryError
from quantdrift_paper.contenders import (
    fit_effective_scale,
    flip_probability,
    predicted_by_contender_count,
    relative_gaps,
)
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


def test_one_and_two_contenders_have_closed_forms() -> None:
    ratios = np.linspace(0, 1, 33)
    np.testing.assert_allclose(flip_probability(ratios[:, None] * 1.4, 0.7), (1 - ratios) ** 2 / 2, rtol=0, atol=1e-15)
    # gaps 0 and s: from 0 to 1/2 u (u + 1/2), then u, so 1/24 + 1/16 + 3/8 = 23/48 is kept
    assert flip_probability([0.0, 1.0], 1.0)[0] == pytest.approx(25 / 48, abs=1e-15)


@pytest.mark.parametrize("n_contenders", [1, 5, 12, pytest.param(45, marks=pytest.mark.slow)])
def test_the_quadrature_is_the_integral(n_contenders: int) -> None:
    rng = np.random.default_rng(n_contenders)
    grid = 2.0**-20  # so that ratios and breakpoints are exact in both arithmetics
    uniform = rng.integers(0, 2**20, n_contenders) * grid
    profiles = {
        "uniform": uniform,
        "close": rng.integers(0, 2**10, n_contenders) * grid,
        "at the boundary": 1 - rng.integers(1, 2**10, n_contenders) * grid,
        "in two groups": np.repeat([0.0, 0.25], n_contenders)[::2],
        "some far away": np.concatenate([uniform, [1.0, 1.5, 40.0]]),
        "long and short segments": np.concatenate([np.arange(30) / 2**12, 0.75 + np.arange(30) / 2**12]),
    }
    for name, ratios in profiles.items():
        exact = float(exact_flip_probability(ratios))
        assert flip_probability(2 * ratios, 1.0)[0] == pytest.approx(exact, rel=1e-12, abs=1e-14), name


def test_relative_gaps_are_in_units_of_each_inputs_epsilon() -> None:
    record = evidence([[5, 4, 1], [5, 4, 1], [5, 5, 1], [5, np.nan, np.nan]], [1, 0.5, 0, 0])
    np.testing.assert_array_equal(relative_gaps(record), [[1, 4], [2, 8], [np.inf, np.inf], [np.nan, np.nan]])


def test_scales_by_hand() -> None:
    # (1 - 1 / (2 s))^2 / 2 = 1/32 where 1 / (2 s) = 3/4
    assert fit_effective_scale([[1.0]], 1 / 32).scale == pytest.approx(2 / 3, rel=1e-11)
    fit = fit_effective_scale([[1.0, np.nan], [np.inf, np.inf], [1.0, np.inf]], 2 / 3 * 0.125)
    assert fit.scale == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("gaps", "rate", "reason"),
    [
        ([[1.0, 2.0]], 2 / 3, "no scale predicts more than 0.6667"),
        ([[1.0, 2.0]], 0.0, "exact ties alone predict 0,"),
        ([[0.0], [3.0]], 0.1, "exact ties alone predict 0.25"),
    ],
)
def test_a_rate_that_no_one_scale_gives_says_why(gaps: Any, rate: float, reason: str) -> None:
    fit = fit_effective_scale(gaps, rate)
    assert fit.scale is None
    assert reason in (fit.reason or "")


def test_contenders_count_at_the_full_epsilon_and_the_boundary_is_none() -> None:
    record = evidence([[4, 2, 1], [4, 2.5, 1]], [1, 1], flips=[False, True])
    table = predicted_by_contender_count([record], buckets=[(0, 0), (1, 1)])
    assert [bucket.measured.value for bucket in table.buckets] == [0, 1]
    copy = evidence([[5, 5], [5, 4]], [0, 1], flips=[False, True])  # an exact copy does not flip, ties included
    reason = predicted_by_contender_count([copy]).fit.reason or ""
    assert all(part in reason for part in ("ties alone predict 0,", "no scale predicts more than 0.25"))


@pytest.mark.parametrize(
    "call",
    [
        lambda: flip_probability([-0.1], 1.0),
        lambda: flip_probability([0.1], -1.0),
        lambda: fit_effective_scale([[1.0]], 1.5),
        lambda: predicted_by_contender_count([]),
    ],
)
def test_what_cannot_be_used_is_said(call: Callable[[], Any]) -> None:
    with pytest.raises(TheoryError):
        call()
