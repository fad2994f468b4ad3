"""Binomial tails and quantiles and what rests on them, against scipy.stats and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom, binomtest, quantile_test

from quantdrift.statistics import (
    inputs_for_rate,
    mcnemar_exact,
    quantile_estimate,
    rate_estimate,
    tango_interval,
    tango_z,
)
from quantdrift.statistics.estimates import at_least, at_most, lower_quantile, upper_quantile

SHARES = [0.0, 1e-3, 0.02, 0.3, 0.5, 0.97, 1.0]


# --- tails -----------------------------------------------------------------------------------


def test_three_tosses_by_hand() -> None:
    assert [float(at_most(k, 3, 0.5)) for k in range(-1, 5)] == pytest.approx([0, 1 / 8, 4 / 8, 7 / 8, 1, 1])
    assert [float(at_least(k, 3, 0.5)) for k in range(-1, 5)] == pytest.approx([1, 1, 7 / 8, 4 / 8, 1 / 8, 0])


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("n", [1, 2, 25, 1190])
def test_the_tails_against_scipy(n: int, share: float) -> None:
    counts = np.arange(-2, n + 3)
    below, above = binom.cdf(counts, n, share), binom.sf(counts - 1, n, share)
    # the least numbers there are, below 1e-307, have fewer digits
    assert at_most(counts, n, share) == pytest.approx(below, rel=1e-12, abs=1e-280)
    assert at_least(counts, n, share) == pytest.approx(above, rel=1e-12, abs=1e-280)


def test_the_tails_of_many_inputs_keep_their_digits() -> None:
    """Where `scipy.special.bdtr` has ten."""
    n = 100_000
    counts = np.arange(1600, 2400, 7)
    assert at_most(counts, n, 0.02) == pytest.approx(binom.cdf(counts, n, 0.02), rel=3e-12, abs=0)


def test_the_tails_of_several_sizes_at_once() -> None:
    sizes = np.array([149, 150, 600])
    assert at_most(0, sizes, 0.02) == pytest.approx(0.98**sizes)
    assert at_least(np.array([1, 2, 3]), sizes, 0.02) == pytest.approx(binom.sf([0, 1, 2], sizes, 0.02))


# --- quantiles -------------------------------------------------------------------------------


def test_the_quantiles_of_three_tosses_by_hand() -> None:
    """P(X <= 0) = 1/8, so that is where the lower 1/8 ends; P(X > 2) = 1/8 likewise."""
    assert [lower_quantile(q, 3, 0.5) for q in (0.1, 1 / 8, 0.13, 0.9)] == [0, 0, 1, 3]
    assert [upper_quantile(q, 3, 0.5) for q in (0.1, 1 / 8, 0.13, 0.9)] == [3, 2, 2, 0]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("n", [1, 2, 5, 6, 40, 1190, 100_000])
def test_the_quantiles_against_scipy(n: int, share: float) -> None:
    for level in (0.001, 0.025, 0.5 + 1e-9, 0.8, 0.975):
        assert lower_quantile(level, n, share) == binom.ppf(level, n, share)
        assert upper_quantile(level, n, share) == binom.isf(level, n, share)


# --- what rests on them ----------------------------------------------------------------------


@pytest.mark.parametrize("differing", [1, 2, 7, 8, 61, 400])
def test_mcnemar_against_the_binomial_test(differing: int) -> None:
    for only_b in range(differing + 1):
        a = np.repeat([0.0, 1.0], [only_b, differing - only_b])
        theirs = binomtest(only_b, differing).pvalue
        assert mcnemar_exact(a, 1 - a).p_value == pytest.approx(theirs, rel=1e-12, abs=0)


@pytest.mark.parametrize("n", [1, 2, 30, 1190])
def test_wilson_against_scipy(n: int) -> None:
    for hits in {0, 1, n // 3, n - 1, n}:
        estimate = rate_estimate(np.repeat([1.0, 0.0], [hits, n - hits]))
        theirs = binomtest(hits, n).proportion_ci(0.95, method="wilson")
        assert (estimate.low, estimate.high) == pytest.approx((theirs.low, theirs.high), rel=1e-12)
        assert 0 <= float(estimate.low or 0) <= hits / n <= float(estimate.high or 0) <= 1


def drawn_values(kind: str, n: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(n)
    if kind == "ties":
        return rng.choice([0.0, 0.5, 1.0], n)
    values = rng.normal(size=n)
    return np.where(rng.random(n) < 0.3, np.inf, values) if kind == "infinite" else values


@pytest.mark.parametrize("kind", ["distinct", "ties", "infinite"])
@pytest.mark.parametrize("n", [1, 5, 6, 7, 40, 301])
def test_the_ends_of_a_quantile_against_scipy(n: int, kind: str) -> None:
    values = drawn_values(kind, n)
    for q in (0.5, 0.1, 1 / 3, 0.99):
        estimate = quantile_estimate(values, q)
        theirs = quantile_test(values, p=q).confidence_interval(0.95)
        for ours, their in zip((estimate.low, estimate.high), theirs, strict=True):
            assert ours == (None if math.isnan(their) else their)


def first_shown(first: int, last: int, *, share: float, margin: float) -> int | None:
    """By trying all numbers of inputs, with power 0.8 at 5 %."""
    sizes = np.arange(first, last + 1)
    most = binom.ppf(0.8, sizes, share / 2)
    shown = np.asarray(binom.cdf(most, sizes, margin)) <= 0.05
    return int(sizes[np.argmax(shown)]) if shown.any() else None


@pytest.mark.parametrize(
    ("share", "margin"), [(0.004, 0.02), (0.01, 0.02), (0.002, 0.005), (0.03, 0.08), (0.001, 0.004)]
)
def test_the_first_number_of_inputs_that_the_bound_needs(share: float, margin: float) -> None:
    last = math.ceil(15 / share)
    found = first_shown(2, last, share=share, margin=margin)
    assert found is not None
    assert inputs_for_rate(share, margin=margin) == found


@pytest.mark.parametrize(("x", "y", "n"), [(9, 3, 32), (0, 4, 500), (57, 21, 1190), (1, 0, 3)])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_ends_of_tangos_interval_by_another_search(x: int, y: int, n: int, confidence: float) -> None:
    z = {0.9: 1.6448536269514722, 0.95: 1.959963984540054}[confidence]
    low, high = tango_interval(x, y, n, confidence=confidence)
    estimate, near = (x - y) / n, 1e-9
    theirs = [
        brentq(lambda d: tango_z(x, y, n, d) - z, near - 1, estimate - near, xtol=1e-15),
        brentq(lambda d: tango_z(x, y, n, d) + z, estimate + near, 1 - near, xtol=1e-15),
    ]
    assert [low, high] == pytest.approx(theirs, rel=0, abs=1e-12)
