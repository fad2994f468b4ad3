"""Tests that ask one way: worse than another system, and a mean below a margin."""

from __future__ import annotations

import itertools
import math
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, binomtest, permutation_test, ttest_1samp

from quantdrift.errors import QuantDriftError
from quantdrift.statistics import mcnemar_exact, mean_no_worse, mean_worse, randomization_test, rate_worse
from quantdrift.statistics.verdicts import Better
from support.equivalence_samples import rates

Floats = NDArray[np.float64]
LEVELS = (0.05, 0.05 / 8, 0.001)
WAYS: tuple[Better, ...] = ("lower", "higher")


def p_rate(worse: int, improved: int, better: Better = "lower") -> float:
    return rate_worse(*rates(worse, improved, worse + improved + 20), better=better)


def p_mean(harm: Floats, seed: int = 0) -> float:
    return mean_worse(np.zeros(len(harm)), harm, better="lower", seed=seed)


def p_below(values: Floats, margin: float) -> float:
    """Of values from 0 to 1, against a mean of the margin or more."""
    found = mean_no_worse(np.zeros(len(values)), values, margin=margin, better="lower", span=1)
    assert found is not None
    return found


# --- rates of two systems --------------------------------------------------------------------


def test_seven_of_eight_by_hand() -> None:
    """Of 8 tosses of a fair coin, 7 or 8 heads: (8 + 1) / 2^8; 1 or more: all but one of 2^8."""
    assert p_rate(7, 1) == pytest.approx(9 / 256)
    assert p_rate(7, 1, better="higher") == pytest.approx(255 / 256)
    assert p_rate(1, 7) == pytest.approx(255 / 256)
    assert p_rate(0, 0) == 1
    assert rate_worse(np.array([True, False]), np.array([True, False]), better="lower") == 1


@pytest.mark.parametrize(("w", "i"), [(1, 0), (0, 1), (5, 5), (12, 3), (57, 21), (300, 340)])
def test_rates_against_the_binomial_test(w: int, i: int) -> None:
    assert p_rate(w, i) == pytest.approx(binomtest(w, w + i, alternative="greater").pvalue, rel=1e-12, abs=0)
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    theirs = proportion.binom_test(w, w + i, prop=0.5, alternative="larger")
    assert p_rate(w, i) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize(("w", "i"), [(7, 1), (2, 9), (40, 40), (57, 21)])
def test_the_two_sided_test_doubles_the_smaller_one(w: int, i: int) -> None:
    both = mcnemar_exact(*rates(w, i, 200)).p_value
    assert both == pytest.approx(min(1, 2 * min(p_rate(w, i), p_rate(i, w))), rel=1e-12)


@pytest.mark.parametrize("n", [1, 6, 30, 101])
def test_equal_rates_are_called_worse_no_more_often_than_the_level(n: int) -> None:
    """From all outcomes: of n inputs that differ, any number is worse."""
    counts = np.arange(n + 1)
    chances = binom.pmf(counts, n, 0.5)
    p_values = np.array([p_rate(w, n - w) for w in counts])
    for level in (0.3, *LEVELS):
        assert chances[p_values <= level].sum() <= level
    assert chances[p_values <= 0.3].sum() > 0.1 or n == 1  # and it does reject


# --- means of two systems --------------------------------------------------------------------


def share_by_hand(harm: list[float]) -> float:
    """Share of all sign changes with as large a sum."""
    signs = itertools.product((-1, 1), repeat=len(harm))
    sums = [math.fsum(s * abs(h) for s, h in zip(row, harm, strict=True)) for row in signs]
    return sum(total >= math.fsum(harm) - 1e-12 for total in sums) / len(sums)


@pytest.mark.parametrize("harm", [[0.3], [-0.3], [0.1, 0.2, 0.3], [0.5, -0.1, 0.25, 0.25], [1, 2, 3, -4, 5, 6, 7.5]])
def test_all_changes_of_sign_by_hand(harm: list[float]) -> None:
    step = np.array([0.0, *harm, 0.0])
    assert p_mean(step) == pytest.approx(share_by_hand(harm))
    assert p_mean(step) == p_mean(step, seed=1)  # nothing is drawn
    assert mean_worse(np.zeros(len(step)), step, better="higher") == pytest.approx(share_by_hand([-h for h in harm]))
    assert p_mean(np.zeros(5)) == 1


@pytest.mark.parametrize("n", [2, 9, 13])
def test_exact_means_against_scipy(n: int) -> None:
    harm = np.random.default_rng(n).normal(0.2, 0.5, n)
    for step, alternative in ((harm, "greater"), (-harm, "greater")):
        theirs = permutation_test((step,), np.sum, permutation_type="samples", alternative=alternative)
        assert p_mean(step) == theirs.pvalue


@pytest.mark.parametrize("shift", [-0.02, 0.03, 0.06])
def test_drawn_means_against_scipy(shift: float) -> None:
    """Other draws, so within the error of either."""
    harm = np.random.default_rng(3).normal(shift, 0.3, 150)
    theirs = permutation_test(
        (harm,), np.sum, permutation_type="samples", alternative="greater", batch=500, rng=9
    ).pvalue
    error = math.sqrt(theirs * (1 - theirs) / 9_999)
    assert p_mean(harm) == pytest.approx(theirs, abs=4 * math.sqrt(2) * error)
    assert p_mean(harm) == pytest.approx(ttest_1samp(harm, 0, alternative="greater").pvalue, abs=0.02)
    assert p_mean(harm) * 10_000 == pytest.approx(round(p_mean(harm) * 10_000), abs=1e-9)
    assert p_mean(harm, seed=1) != p_mean(harm)
    assert p_mean(np.ones(40)) == 1 / 10_000


@pytest.mark.parametrize("n", [5, 13, 60])
def test_the_two_sided_means_are_twice_the_smaller_one(n: int) -> None:
    rng = np.random.default_rng(n)
    for shift in (-0.3, 0.0, 0.2):
        a = rng.random(n)
        b = a + rng.normal(shift, 0.5, n)
        sides = [mean_worse(a, b, better=way, seed=2) for way in WAYS]
        assert randomization_test(a, b, seed=2) == min(1, 2 * min(sides))


@pytest.mark.parametrize("differing", [1, 4, 11])
def test_of_zeros_and_ones_both_tests_are_one(differing: int) -> None:
    for worse in range(differing + 1):
        a, b = rates(worse, differing - worse, 30)
        for way in WAYS:
            assert mean_worse(a, b, better=way) == pytest.approx(rate_worse(a, b, better=way))


def test_means_are_called_worse_no_more_often_than_the_level_where_all_signs_are_tried() -> None:
    """All 2^9 samples that are as likely as each other if signs are."""
    sizes = np.array([0.1, 0.1, 0.2, 0.25, 0.3, 0.5, 0.5, 0.9, 1.0])
    signs = np.array(list(itertools.product((-1, 1), repeat=len(sizes))))
    p_values = np.array([p_mean(row * sizes) for row in signs])
    for level in (0.2, 0.05, 0.01, 0.002):
        assert 0 < np.mean(p_values <= level) <= level


def test_nor_where_they_are_drawn() -> None:
    rng = np.random.default_rng(8)
    harm = rng.choice([0.1, 0.37, 0.5, 1.0], (400, 20)) * rng.choice([-1, 1], (400, 20))
    p_values = np.array([p_mean(row, seed=place) for place, row in enumerate(harm)])
    for level in (0.05, 0.2):
        wrong = np.mean(p_values <= level)
        assert wrong <= level + 2.5 * math.sqrt(level * (1 - level) / 400)
        assert wrong > level / 3


# --- a mean that is below a margin -----------------------------------------------------------


def test_a_mean_below_a_margin_is_a_t_test_with_the_worst_values_added() -> None:
    rng = np.random.default_rng(2)
    values = rng.beta(2, 5, 60)
    for limit in (0.3, 0.36, 0.4, 0.5):
        p_values = [float(ttest_1samp([*values, *[1.0] * k], limit, alternative="less").pvalue) for k in range(1, 20)]
        # the least level at which the test with as many as that level asks for rejects
        expected = next(
            min(p, math.exp(-2 * (k - 1))) for k, p in enumerate(p_values, start=1) if p >= math.exp(-2 * k)
        )
        assert p_below(values, limit) == pytest.approx(expected)


@pytest.mark.parametrize("atom", [0.0, 0.4])
@pytest.mark.parametrize("n", [4, 10, 15, 40, 200])
def test_a_mean_at_the_margin_is_not_shown_to_be_below_it(n: int, atom: float) -> None:
    """Two values, the rarer the worse: all outcomes, at each level."""
    counts = np.arange(n + 1)
    for share in (0.01, 0.03, 0.1, 0.3, 0.44, 0.6, 0.9):
        limit = atom + (1 - atom) * share
        chances = binom.pmf(counts, n, share)
        likely = [int(k) for k in counts[chances > 1e-9] if k <= n * share]
        p_values = np.array([p_below(np.repeat([1.0, atom], [k, n - k]), limit) for k in likely])
        for level in LEVELS:
            assert chances[likely][p_values <= level].sum() <= level, (share, level)


# --- what cannot be tested -------------------------------------------------------------------


@pytest.mark.parametrize("test", ["rate", "mean"])
def test_what_cannot_be_paired(test: Literal["rate", "mean"]) -> None:
    worse = rate_worse if test == "rate" else mean_worse
    with pytest.raises(QuantDriftError, match="one value per input"):
        worse(np.zeros(3), np.zeros(4), better="lower")
    with pytest.raises(QuantDriftError, match="leave out the inputs without one"):
        worse(np.array([0.0, math.nan]), np.zeros(2), better="lower")
    with pytest.raises(QuantDriftError, match="0 and 1; for others compare means"):
        rate_worse(np.array([0.5]), np.zeros(1), better="lower")
