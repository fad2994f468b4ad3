"""Is there a difference between two systems on the same inputs: published intervals, other implementations."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest, bootstrap, chi2, permutation_test

from quantdrift.base.errors import QuantDriftError
from quantdrift.statistics import paired
from quantdrift.statistics.estimates import quantile_estimate
from support.paired_values import Floats, ends, rates

# --- rates: Tango's interval

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
    estimate = paired.paired_rate_difference(*rates(b, c, n), confidence=confidence)
    assert (estimate.value, estimate.n) == (pytest.approx((b - c) / n), n)
    assert [round(end, digits) for end in ends(estimate)] == [low, high]


@pytest.mark.parametrize("n", [1, 3, 50])
def test_no_input_that_differs_and_none_that_does_not(n: int) -> None:
    z2 = 1.959964**2
    assert ends(paired.paired_rate_difference(*rates(0, 0, n))) == pytest.approx((-z2 / (n + z2), z2 / (n + z2)))
    low, high = ends(paired.paired_rate_difference(*rates(n, 0, n)))
    assert (low, high) == (pytest.approx((n - z2) / (n + z2)), 1)
    assert abs(paired.tango_z(n, 0, n, low)) == pytest.approx(1.959964)
    assert ends(paired.paired_rate_difference(*rates(0, n, n))) == (-1, -low)


# --- rates: McNemar


def test_mcnemar_by_hand() -> None:
    """Of 8 tosses of a fair coin, 7 or more alike: 2 (1 + 8) / 2^8."""
    test = paired.mcnemar_exact(*rates(7, 1, 30))
    assert (test.only_a, test.only_b, test.n) == (1, 7, 30)
    assert test.p_value == pytest.approx(2 * 9 / 256)
    same = np.array([True, False, True])
    assert paired.mcnemar_exact(same, same).p_value == paired.mcnemar_exact(same, ~same).p_value == 1


@pytest.mark.parametrize("differing", [1, 2, 7, 8, 61, 400])
def test_mcnemar_against_the_binomial_test(differing: int) -> None:
    for only_b in range(differing + 1):
        theirs = binomtest(only_b, differing).pvalue
        p_value = paired.mcnemar_exact(*rates(only_b, differing - only_b, differing + 5)).p_value
        assert p_value == pytest.approx(theirs, rel=1e-12, abs=0)


def test_the_score_test_against_statsmodels() -> None:
    tables = pytest.importorskip("statsmodels.stats.contingency_tables")
    theirs = tables.mcnemar([[5, 12], [3, 10]], exact=False, correction=False)
    assert paired.tango_z(12, 3, 30, 0) ** 2 == pytest.approx(theirs.statistic)
    assert chi2.sf(paired.tango_z(12, 3, 30, 0) ** 2, 1) == pytest.approx(theirs.pvalue)


# --- means


@pytest.fixture
def scores() -> tuple[Floats, Floats]:
    rng = np.random.default_rng(5)
    a = rng.random(200)
    return a, np.clip(a + np.where(rng.random(200) < 0.4, rng.normal(0.03, 0.1, 200), 0), 0, 1)


def test_the_interval_of_a_difference_of_means_against_scipy(scores: tuple[Floats, Floats]) -> None:
    a, b = scores
    step = np.sort(b - a)
    mirror = tuple(np.sort(-step)) > tuple(step)  # then that is what is resampled, and turned round

    def theirs(values: Floats) -> tuple[float, float]:
        rng = np.random.default_rng(2)
        resamples = bootstrap((values,), np.mean, n_resamples=2000, batch=100, method="percentile", rng=rng)
        return tuple(resamples.confidence_interval)

    expected = tuple(-end for end in theirs(np.sort(-step))[::-1]) if mirror else theirs(step)
    estimate = paired.paired_mean_difference(a, b, seed=2)
    assert ends(estimate) == pytest.approx(expected, rel=1e-13, abs=1e-15)
    assert estimate.value == pytest.approx(b.mean() - a.mean())
    assert paired.paired_mean_difference(a, b, seed=1) != estimate


@pytest.mark.parametrize(("n", "seed"), [(2, 0), (5, 0), (13, 0), (14, 0), (14, 4), (51, 4), (300, 0)])
def test_the_same_seed_gives_the_changes_of_sign_of_scipy(n: int, seed: int) -> None:
    step = np.random.default_rng(n).normal(0.1, 0.4, n)

    def theirs(alternative: str) -> float:
        rng = np.random.default_rng(seed)
        settings = {"permutation_type": "samples", "n_resamples": 9_999, "batch": 500, "rng": rng}
        return float(permutation_test((step,), np.sum, alternative=alternative, **settings).pvalue)

    assert paired.sign_change_tails(step, seed=seed) == (theirs("less"), theirs("greater"))
    assert n > 13 or paired.randomization_test(np.zeros(n), step) == theirs("two-sided")


def test_the_signs_observed_count_and_sums_that_differ_by_rounding_are_the_same() -> None:
    """0.1 + 0.2 - 0.3 is 5.6e-17, and exactly 0 with other signs of all three."""
    assert paired.sign_change_tails(np.ones(40), seed=0) == (1, 1 / 10_000)
    assert paired.sign_change_tails(-np.ones(13), seed=0) == (1 / 2**13, 1)
    # of eight sums, the two of 0 are in both tails, and three are on either side
    assert paired.sign_change_tails(np.array([0.1, 0.2, -0.3]), seed=0) == (5 / 8, 5 / 8)
    assert paired.sign_change_tails(np.repeat(0.1, 30), seed=0)[1] == 1 / 10_000  # no other signs reach the sum


# --- medians


def test_the_difference_of_medians(scores: tuple[Floats, Floats]) -> None:
    a, b = scores
    estimate = paired.paired_quantile_difference(a, b + 0.2)
    assert estimate.value == pytest.approx(np.median(b + 0.2) - np.median(a))
    assert 0.1 < ends(estimate)[0] < float(estimate.value or 0) < ends(estimate)[1] < 0.35
    # the two medians come from the same resamples; apart, they would vary far more
    assert ends(paired.paired_quantile_difference(a, a + 0.5)) == pytest.approx((0.5, 0.5))
    for q in (0.1, 0.25, 0.9):
        here, there = (quantile_estimate(values, q).value for values in (a, b))
        assert here is not None
        assert there is not None
        assert paired.paired_quantile_difference(a, b, q=q).value == pytest.approx(there - here)


def test_infinite_medians_have_no_difference() -> None:
    finite, infinite = np.array([1.0, 2, 3]), np.array([1.0, np.inf, np.inf])
    assert str(paired.paired_quantile_difference(finite, infinite).reason).startswith("infinite for B")
    assert paired.paired_quantile_difference(infinite, infinite).value is None
    few = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, np.inf, np.inf, np.inf])
    estimate = paired.paired_quantile_difference(np.arange(11.0), few)
    assert (estimate.value, estimate.low, estimate.high) == (1, None, None)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [([1.0], [1.0, 0.0], "one value per input"), ([], [], "one value per input"), ([1.0, math.nan], [1, 0], "finite")],
)
def test_what_cannot_be_paired(a: list[float], b: list[float], message: str) -> None:
    for compare in (paired.paired_mean_difference, paired.paired_rate_difference, paired.mcnemar_exact):
        with pytest.raises(QuantDriftError, match=message):
            compare(np.array(a), np.array(b))
    with pytest.raises(QuantDriftError, match="0 and 1"):
        paired.mcnemar_exact(np.array([0.5, 1]), np.array([1.0, 0]))
