"""Estimates against formulas written out, and against what coverage means."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from quantdrift.statistics import Estimate, mean_estimate, quantile_estimate, rate_estimate, undefined

Z = NormalDist().inv_cdf(0.975)


def interval(estimate: Estimate) -> tuple[float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


# --- rates: Wilson ---------------------------------------------------------------------------


def wilson(hits: int, n: int) -> tuple[float, float]:
    p = hits / n
    centre = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    return centre - half, centre + half


@pytest.mark.parametrize(("hits", "n"), [(57, 225), (1, 2), (0, 225), (225, 225), (0, 1), (3, 7)])
def test_the_wilson_interval(hits: int, n: int) -> None:
    outcomes = np.repeat([1.0, 0.0], [hits, n - hits])
    estimate = rate_estimate(outcomes)
    assert estimate.value == hits / n
    assert estimate.n == n
    assert interval(estimate) == pytest.approx(wilson(hits, n), abs=1e-12)
    assert 0 <= interval(estimate)[0] <= hits / n <= interval(estimate)[1] <= 1


def test_no_flip_at_all_still_leaves_room() -> None:
    """The rule of thumb: none of n can be up to about 3.8 / n."""
    low, high = interval(rate_estimate(np.zeros(100)))
    assert low == 0
    assert 0.03 < high < 0.04


# --- medians: order statistics ---------------------------------------------------------------


def order_statistics(n: int) -> tuple[int, int]:
    """0-based places of the interval: the innermost with at most 2.5 % beyond either end."""
    tail, place = 0.0, -1
    while tail + math.comb(n, place + 1) / 2**n <= 0.025:
        place += 1
        tail += math.comb(n, place) / 2**n
    return place, n - 1 - place


@pytest.mark.parametrize("n", [6, 7, 9, 20, 101, 225])
def test_the_median_lies_between_two_order_statistics(n: int) -> None:
    values = np.random.default_rng(0).permutation(n).astype(np.float64)  # value = place
    estimate = quantile_estimate(values)
    assert estimate.value == np.median(values)
    assert interval(estimate) == order_statistics(n)
    assert estimate.n == n


def test_the_middle_of_two() -> None:
    assert quantile_estimate(np.array([4.0, 1, 2, 3])).value == 2.5


@pytest.mark.parametrize("n", [1, 5])
def test_few_values_have_no_interval(n: int) -> None:
    estimate = quantile_estimate(np.ones(n))
    assert (estimate.value, estimate.low, estimate.high) == (1, None, None)
    assert estimate.to_json() == {"value": 1, "low": None, "high": None, "n": n}


def test_infinite_values_are_values() -> None:
    infinite = np.array([math.inf] * 3 + [1.0, 2, 3, 4, 5, 6, 7])
    estimate = quantile_estimate(infinite)
    assert estimate.value == 5.5
    assert estimate.high == math.inf
    assert estimate.to_json()["high"] is None
    most = quantile_estimate(np.array([1.0, math.inf, math.inf]))
    assert most.value == math.inf
    assert most.to_json() == {"value": None, "reason": "+infinity: no finite value"}
    half = quantile_estimate(np.array([1.0, math.inf]))
    assert half.value == math.inf  # half of the way to infinity


# --- means: bootstrap ------------------------------------------------------------------------


def test_the_bootstrap_interval_is_near_the_normal_one() -> None:
    values = np.random.default_rng(3).random(400)
    estimate = mean_estimate(values)
    assert estimate.value == pytest.approx(values.mean())
    half = Z * values.std() / math.sqrt(len(values))
    assert interval(estimate) == pytest.approx((values.mean() - half, values.mean() + half), abs=2e-3)


def test_the_bootstrap_is_seeded() -> None:
    values = np.random.default_rng(3).random(30)
    state = np.random.get_state()[1].tolist()  # type: ignore[union-attr,index]
    assert mean_estimate(values) == mean_estimate(values)
    assert interval(mean_estimate(values, seed=1)) != interval(mean_estimate(values))
    assert np.random.get_state()[1].tolist() == state  # type: ignore[union-attr,index]


@pytest.mark.parametrize("values", [[0.25], [0.25] * 9])
def test_without_spread_the_interval_is_the_value(values: list[float]) -> None:
    estimate = mean_estimate(np.array(values))
    assert (estimate.value, *interval(estimate)) == (0.25, 0.25, 0.25)
    assert estimate.n == len(values)


# --- undefined -------------------------------------------------------------------------------


def test_an_undefined_estimate_says_why() -> None:
    assert undefined("no labels").to_json() == {"value": None, "reason": "no labels"}


def test_minus_infinity_is_told_apart() -> None:
    assert Estimate(value=-math.inf).to_json()["reason"].startswith("-infinity")
