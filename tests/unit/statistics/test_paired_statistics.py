"""Two systems on the same inputs, against published intervals and other implementations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2, multinomial, ttest_1samp

from quantdrift.errors import QuantDriftError
from quantdrift.statistics import (
    Estimate,
    holm,
    mcnemar_exact,
    mean_estimate,
    paired_mean_difference,
    paired_quantile_difference,
    paired_rate_difference,
    quantile_estimate,
    randomization_test,
    tango_interval,
    tango_z,
)

Floats = NDArray[np.float64]


def arms(only_b: int, only_a: int, n: int, both: int = 0) -> tuple[Floats, Floats]:
    """Values of both systems with these counts."""
    a = np.repeat([0.0, 1.0, 1.0, 0.0], [only_b, only_a, both, n - only_b - only_a - both])
    b = np.repeat([1.0, 0.0, 1.0, 0.0], [only_b, only_a, both, n - only_b - only_a - both])
    return a, b


def ends(estimate: Estimate) -> tuple[float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


# --- rates: Tango's interval -----------------------------------------------------------------

PUBLISHED = [
    # b, c, n, confidence, low, high, decimals; the difference is (b - c) / n
    (9, 3, 32, 0.95, -0.027, 0.390, 3),  # Tango 1998, as ratesci's tests have it
    (0, 1, 44, 0.90, -0.096, 0.037, 3),  # Tango 1998, contact lenses: a zero off the diagonal
    (16, 8, 86, 0.95, -0.020, 0.207, 3),  # Agresti and Min 2005
    (1, 7, 21, 0.95, -0.517, -0.026, 3),  # Fagerland, Lydersen and Laake 2014 (Bentur 2009)
    (6, 16, 161, 0.95, -0.1240, -0.0054, 4),  # contingencytables in R (Cavo 2012)
    (28, 25, 618, 0.90, -0.0148, 0.0247, 4),  # PropCIs::scoreci.mp(25, 28, 618) in R
]


@pytest.mark.parametrize("published", PUBLISHED)
def test_published_intervals(published: tuple[int, int, int, float, float, float, int]) -> None:
    b, c, n, confidence, low, high, digits = published
    estimate = paired_rate_difference(*arms(b, c, n), confidence=confidence)
    assert estimate.value == pytest.approx((b - c) / n)
    assert estimate.n == n
    assert [round(end, digits) for end in ends(estimate)] == [low, high]


@pytest.mark.parametrize(("x", "y"), [(9, 3), (3, 9), (0, 4), (1, 1)])
def test_at_no_difference_the_statistic_is_that_of_mcnemar(x: int, y: int) -> None:
    assert tango_z(x, y, 50, 0.0) == pytest.approx((x - y) / math.sqrt(x + y))


def z_by_search(x: int, y: int, n: int, difference: float) -> float:
    """The statistic with the nuisance found by walking along the likelihood, not by a formula."""
    least, most = max(0.0, -difference), (1 - difference) / 2
    for _ in range(6):  # a finer grid around the best, six times
        q = np.linspace(least, most, 401)
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = [
                np.where(count > 0, count * np.log(np.maximum(p, 0)), 0.0)
                for count, p in ((x, q + difference), (y, q), (n - x - y, 1 - 2 * q - difference))
            ]
        best = int(np.argmax(sum(parts)))
        least, most = q[max(0, best - 1)], q[min(400, best + 1)]
    variance = 2 * q[best] + difference - difference**2
    return float((x - y - n * difference) / math.sqrt(n * variance))


@pytest.mark.parametrize(("x", "y", "n"), [(9, 3, 32), (5, 0, 20), (0, 5, 20), (12, 8, 20), (1, 0, 5), (40, 20, 160)])
def test_the_interval_is_what_the_score_test_does_not_reject(x: int, y: int, n: int) -> None:
    low, high = tango_interval(x, y, n)
    grid = np.linspace(-0.995, 0.995, 200)
    kept = np.array([abs(z_by_search(x, y, n, d)) < 1.959964 for d in grid])
    assert (kept == ((grid > low) & (grid < high))).all()
    for d in grid[::20]:
        assert tango_z(x, y, n, d) == pytest.approx(z_by_search(x, y, n, d), abs=1e-4)


def test_without_any_discordant_input_there_is_still_a_width() -> None:
    low, high = ends(paired_rate_difference(*arms(0, 0, 100, both=30)))
    assert high == pytest.approx(1.959964**2 / (100 + 1.959964**2))
    assert low == -high


@pytest.mark.parametrize("n", [1, 3, 50])
def test_all_inputs_discordant_one_way(n: int) -> None:
    low, high = ends(paired_rate_difference(*arms(n, 0, n)))
    assert high == 1
    assert low == pytest.approx((n - 1.959964**2) / (n + 1.959964**2))
    assert abs(tango_z(n, 0, n, low)) == pytest.approx(1.959964)
    assert ends(paired_rate_difference(*arms(0, n, n))) == (-1, -low)


def test_the_coverage_computed_over_all_outcomes() -> None:
    """Of every table of 30 inputs: its interval, and its probability."""
    n = 30
    tables = [(x, y) for x in range(n + 1) for y in range(n + 1 - x)]
    intervals = np.array([tango_interval(x, y, n) for x, y in tables])
    counts = np.array([(x, y, n - x - y) for x, y in tables])
    coverages = []
    for p, q in [(0.02, 0.02), (0.1, 0.02), (0.2, 0.1), (0.3, 0.3), (0.05, 0.3), (0.5, 0.1)]:
        mass = multinomial.pmf(counts, n, [p, q, 1 - p - q])
        inside = (intervals[:, 0] <= p - q) & (p - q <= intervals[:, 1])
        coverages.append(mass[inside].sum())
    assert min(coverages) > 0.93
    assert np.mean(coverages) == pytest.approx(0.955, abs=0.015)


# --- rates: McNemar --------------------------------------------------------------------------


def test_mcnemar_by_hand() -> None:
    """Of 8 tosses of a fair coin, 7 or more alike: 2 (1 + 8) / 2^8."""
    found = mcnemar_exact(*arms(7, 1, 30, both=4))
    assert (found.only_a, found.only_b, found.n) == (1, 7, 30)
    assert found.p_value == pytest.approx(2 * 9 / 256)


def test_mcnemar_takes_booleans_and_sees_no_difference_in_none() -> None:
    same = np.array([True, False, True])
    assert mcnemar_exact(same, same).p_value == 1
    assert mcnemar_exact(same, ~same).p_value == 1  # one way and two the other


@pytest.mark.parametrize(("x", "y"), [(12, 3), (0, 9), (25, 25), (1, 0)])
def test_mcnemar_against_statsmodels(x: int, y: int) -> None:
    tables = pytest.importorskip("statsmodels.stats.contingency_tables")
    theirs = tables.mcnemar([[5, x], [y, 10]], exact=True).pvalue
    assert mcnemar_exact(*arms(x, y, x + y + 15, both=5)).p_value == pytest.approx(theirs)


# --- means -----------------------------------------------------------------------------------


@pytest.fixture
def scores() -> tuple[Floats, Floats]:
    rng = np.random.default_rng(5)
    a = rng.random(200)
    return a, np.clip(a + np.where(rng.random(200) < 0.4, rng.normal(0.03, 0.1, 200), 0), 0, 1)


def test_the_interval_is_that_of_the_mean_of_differences(scores: tuple[Floats, Floats]) -> None:
    a, b = scores
    estimate = paired_mean_difference(a, b)
    assert estimate.value == pytest.approx(b.mean() - a.mean())
    low, high = ends(estimate)
    low_of_means, high_of_means = ends(mean_estimate(b - a))
    assert (low, high) == pytest.approx((low_of_means, high_of_means), abs=2e-3)
    half = 1.96 * (b - a).std() / math.sqrt(200)
    assert (high - low) / 2 == pytest.approx(half, rel=0.1)
    assert paired_mean_difference(a, b, seed=1) != estimate


def signs_by_hand(step: Sequence[float]) -> float:
    """Share of all sign changes whose sum is at least as far from 0."""
    sums = [
        abs(math.fsum(s * d for s, d in zip(signs, step, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(step))
    ]
    return float(np.mean(np.array(sums) >= abs(math.fsum(step)) - 1e-12))


@pytest.mark.parametrize("step", [[0.3], [0.1, 0.2, 0.3], [0.5, -0.1, 0.25, 0.25, 0.0], [1, 2, 3, -4, 5, 6, 7.5]])
def test_all_changes_of_sign_are_tried_where_few_inputs_differ(step: list[float]) -> None:
    values = np.array([*step, 0.0, 0.0])
    p_value = randomization_test(np.zeros(len(values)), values)
    assert p_value == pytest.approx(signs_by_hand(step))
    assert p_value == randomization_test(np.zeros(len(values)), values, seed=1)  # nothing is drawn


@pytest.mark.parametrize(("x", "y"), [(7, 1), (6, 6), (13, 0), (0, 4)])
def test_of_zeros_and_ones_it_is_mcnemars_test(x: int, y: int) -> None:
    a, b = arms(x, y, 40)
    assert randomization_test(a, b) == pytest.approx(mcnemar_exact(a, b).p_value)


def test_with_many_inputs_it_is_near_the_t_test(scores: tuple[Floats, Floats]) -> None:
    a, b = scores
    expected = ttest_1samp(b - a, 0).pvalue
    assert 0.001 < expected < 0.2
    assert randomization_test(a, b) == pytest.approx(expected, abs=0.01)
    assert randomization_test(a, b) == randomization_test(a, b)
    assert randomization_test(a, a) == 1


# --- medians ---------------------------------------------------------------------------------


def test_the_difference_of_medians(scores: tuple[Floats, Floats]) -> None:
    a, b = scores
    estimate = paired_quantile_difference(a, b + 0.2)
    assert estimate.value == pytest.approx(np.median(b + 0.2) - np.median(a))
    low, high = ends(estimate)
    assert 0.1 < low < float(estimate.value or 0) < high < 0.35
    assert paired_quantile_difference(a, b + 0.2) == estimate


def test_a_shift_of_every_input_has_a_sharp_interval() -> None:
    """The two medians come from the same resamples; apart, they would vary far more."""
    a = np.random.default_rng(0).normal(size=101)
    assert ends(paired_quantile_difference(a, a + 0.5)) == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize("q", [0.1, 0.25, 0.5, 0.9])
def test_quantiles_are_those_of_estimates(q: float, scores: tuple[Floats, Floats]) -> None:
    a, b = scores
    here, there = (quantile_estimate(values, q).value for values in (a, b))
    assert here is not None
    assert there is not None
    assert paired_quantile_difference(a, b, q=q).value == pytest.approx(there - here)


def test_infinite_medians_have_no_difference() -> None:
    finite, infinite = np.array([1.0, 2, 3]), np.array([1.0, np.inf, np.inf])
    assert paired_quantile_difference(finite, infinite).reason == ("infinite for B: the difference cannot be told")
    assert paired_quantile_difference(infinite, infinite).value is None
    few = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, np.inf, np.inf, np.inf])
    estimate = paired_quantile_difference(np.arange(11.0), few)
    assert (estimate.value, estimate.low, estimate.high) == (1, None, None)


# --- what is not a pair ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([1.0], [1.0, 0.0], "one value per input"),
        ([], [], "one value per input"),
        ([[1.0]], [[1.0]], "one value per input"),
        ([1.0, math.nan], [1.0, 0.0], "leave out the inputs without one"),
        ([1.0, 0.0], [math.inf, 0.0], "needs finite values"),
    ],
)
def test_what_cannot_be_paired(a: list[float], b: list[float], message: str) -> None:
    for compare in (paired_mean_difference, paired_rate_difference, mcnemar_exact):
        with pytest.raises(QuantDriftError, match=message):
            compare(np.array(a), np.array(b))


def test_a_rate_is_of_zeros_and_ones() -> None:
    with pytest.raises(QuantDriftError, match="0 and 1; for others compare means"):
        mcnemar_exact(np.array([0.5, 1]), np.array([1.0, 0]))


# --- several tests ---------------------------------------------------------------------------


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([]) == []


def test_a_test_that_could_not_be_made_does_not_count() -> None:
    assert holm([None, 0.02, None, 0.5]) == [None, 0.04, None, 0.5]


def test_holm_against_statsmodels() -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p_values = np.random.default_rng(2).random(12) ** 3
    theirs = multitest.multipletests(p_values, method="holm")[1]
    assert holm(p_values.tolist()) == pytest.approx(theirs.tolist())


def test_the_square_of_the_statistic_is_mcnemars() -> None:
    tables = pytest.importorskip("statsmodels.stats.contingency_tables")
    theirs = tables.mcnemar([[5, 12], [3, 10]], exact=False, correction=False)
    assert tango_z(12, 3, 30, 0) ** 2 == pytest.approx(theirs.statistic)
    assert chi2.sf(tango_z(12, 3, 30, 0) ** 2, 1) == pytest.approx(theirs.pvalue)
