"""Resamples and changes of sign against scipy.stats, draw by draw, without importing it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import bootstrap, permutation_test

from quantdrift import statistics
from quantdrift.statistics import estimates as resampling
from quantdrift.statistics import (
    mean_estimate,
    paired_mean_difference,
    paired_quantile_difference,
    randomization_test,
    relative_change_estimate,
)
from quantdrift.statistics import paired as sign_changes
from quantdrift.statistics.estimates import percentile_interval, resampled
from quantdrift.statistics.paired import sign_change_tails

Floats = NDArray[np.float64]

CLOSE = {"rel": 1e-13, "abs": 1e-15}
"""The quantiles of scipy before 1.17 differ from those since in the last digit."""


def theirs(samples: tuple[Floats, ...], statistic: Callable[..., Any], seed: int) -> Any:
    return bootstrap(
        samples,
        statistic,
        n_resamples=2000,
        batch=100,
        method="percentile",
        paired=True,
        rng=np.random.default_rng(seed),
    )


# --- the bootstrap ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("n", [2, 13, 225, 1190])
def test_the_same_seed_gives_the_resamples_of_scipy(n: int, seed: int) -> None:
    values = np.random.default_rng(n).random(n)
    expected = theirs((values,), np.mean, seed)
    found = resampled(lambda places: values[places].mean(axis=-1), n, seed=seed)
    assert found.tolist() == expected.bootstrap_distribution.tolist()
    interval = expected.confidence_interval
    assert percentile_interval(found) == pytest.approx((interval.low, interval.high), **CLOSE)


@pytest.mark.parametrize("at_once", [1, 1000, 99_999])
def test_the_draws_do_not_depend_on_how_many_are_made_at_once(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).random(301)  # an odd number: half a random word stays over
    step = np.random.default_rng(2).normal(0.02, 0.3, 21)
    before = mean_estimate(values), sign_change_tails(step, seed=3)
    monkeypatch.setattr(resampling, "_AT_ONCE", at_once)
    monkeypatch.setattr(sign_changes, "_AT_ONCE", at_once)
    assert (mean_estimate(values), sign_change_tails(step, seed=3)) == before


def test_no_more_places_are_drawn_at_once_than_fit() -> None:
    sizes = []

    def size(places: NDArray[np.int64]) -> Floats:
        sizes.append(places.shape)
        return np.zeros(len(places))

    assert resampled(size, 30_000, seed=0).shape == (2000,)
    assert {columns for _, columns in sizes} == {30_000}
    assert max(rows * columns for rows, columns in sizes) <= 2**20


@pytest.mark.parametrize("seed", [0, 3])
def test_the_interval_of_a_mean_against_scipy(seed: int) -> None:
    values = np.random.default_rng(4).choice([0.0, 0.5, 0.63, 1.0], 90)
    interval = theirs((np.sort(values),), np.mean, seed).confidence_interval
    estimate = mean_estimate(values, seed=seed)
    assert (estimate.low, estimate.high) == pytest.approx((interval.low, interval.high), **CLOSE)


def test_the_interval_of_a_difference_of_means_against_scipy() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.random((2, 120))
    step = np.sort(b - a)
    interval = theirs((step,), np.mean, 2).confidence_interval
    estimate = paired_mean_difference(a, b, seed=2)
    if tuple(np.sort(-step)) > tuple(step):  # then that is what is resampled, and turned round
        turned = theirs((np.sort(-step),), np.mean, 2).confidence_interval
        interval = (-turned.high, -turned.low)
    assert (estimate.low, estimate.high) == pytest.approx(tuple(interval), **CLOSE)


def test_the_interval_of_a_relative_change_against_scipy() -> None:
    rng = np.random.default_rng(6)
    before = np.sort(rng.random(80))  # in the order in which they are resampled
    after = before + rng.normal(0, 0.1, 80)

    def change(one: Floats, other: Floats, axis: int = -1) -> Any:
        return other.mean(axis=axis) / one.mean(axis=axis) - 1

    interval = theirs((before, after), change, 1).confidence_interval
    estimate = relative_change_estimate(after, before, seed=1)
    assert (estimate.low, estimate.high) == pytest.approx((interval.low, interval.high), **CLOSE)


def test_a_resample_of_nothing_has_no_relative_change() -> None:
    before = np.array([0.0, 0.0, 0.0, 1.0])
    estimate = relative_change_estimate(before[::-1].copy(), before)
    assert (estimate.value, estimate.low, estimate.high) == (0, None, None)


def test_the_interval_of_a_difference_of_medians_against_scipy() -> None:
    rng = np.random.default_rng(7)
    a = np.sort(rng.random(75))
    b = a + np.where(rng.random(75) < 0.4, rng.normal(0, 0.2, 75), 0)

    def step(one: Floats, other: Floats, axis: int = -1) -> Any:
        return np.median(other, axis=axis) - np.median(one, axis=axis)

    as_is, exchanged = sorted(zip(a, b, strict=True)), sorted(zip(b, a, strict=True))
    first, second = np.array(max(as_is, exchanged)).T
    interval = tuple(theirs((first, second), step, 5).confidence_interval)
    estimate = paired_quantile_difference(a, b, seed=5)
    expected = interval if as_is > exchanged else (-interval[1], -interval[0])
    assert (estimate.low, estimate.high) == pytest.approx(expected, **CLOSE)


def test_the_percentiles_by_hand() -> None:
    """Of 1 to 41, at 95 %: 2.5 % of the way of 40 steps is one step."""
    assert percentile_interval(np.arange(41.0, 0, -1)) == pytest.approx((2, 40))
    assert percentile_interval(np.array([3.0, 1.0]), confidence=0.5) == pytest.approx((1.5, 2.5))
    assert np.isnan(percentile_interval(np.array([1.0, np.nan, 2.0]))).all()


# --- changes of sign -------------------------------------------------------------------------


def their_p(step: Floats, alternative: str, seed: int = 0) -> float:
    result = permutation_test(
        (step,),
        np.sum,
        permutation_type="samples",
        n_resamples=9_999,
        batch=500,
        alternative=alternative,
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)


@pytest.mark.parametrize("n", [2, 5, 12, 13])
def test_all_changes_of_sign_against_scipy(n: int) -> None:
    step = np.random.default_rng(n).normal(0.2, 0.5, n)
    lower, upper = sign_change_tails(step, seed=0)
    assert lower == their_p(step, "less")
    assert upper == their_p(step, "greater")
    assert randomization_test(np.zeros(n), step) == their_p(step, "two-sided")


@pytest.mark.parametrize("seed", [0, 4])
@pytest.mark.parametrize("n", [14, 51, 300])
def test_the_same_seed_gives_the_changes_of_sign_of_scipy(n: int, seed: int) -> None:
    step = np.random.default_rng(n).normal(0.03, 0.3, n)
    lower, upper = sign_change_tails(step, seed=seed)
    assert lower == their_p(step, "less", seed)
    assert upper == their_p(step, "greater", seed)


def test_the_signs_observed_count_as_one_of_those_drawn() -> None:
    assert sign_change_tails(np.ones(40), seed=0) == (1, 1 / 10_000)
    assert sign_change_tails(-np.ones(13), seed=0) == (1 / 2**13, 1)
    assert sign_change_tails(np.array([0.3]), seed=0) == (1, 1 / 2)


def test_sums_that_differ_by_rounding_alone_are_the_same() -> None:
    """0.1 + 0.2 - 0.3 is 5.6e-17, and exactly 0 with other signs of all three."""
    step = np.array([0.1, 0.2, -0.3])
    # of eight sums, the two of 0 are in both tails, and three are on either side
    assert sign_change_tails(step, seed=0) == (5 / 8, 5 / 8)
    assert randomization_test(np.zeros(3), step) == 1
    tenths = np.repeat(0.1, 30)  # drawn: the sum of all 30 is reached by no other signs
    assert sign_change_tails(tenths, seed=0)[1] == 1 / 10_000


# --- what is imported ------------------------------------------------------------------------

CALLS = """
a = np.array([0.0, 1, 1, 0, 1] * 6)
b = np.array([0.0, 1, 0, 1, 1, 0] * 5)
x, y = np.linspace(0, 1, 30), np.linspace(0, 1, 30) ** 2
calls = {
    "compare_samples": lambda: [
        compare([S(metric=k, kind=k, better="lower", a=a, b=b)], margin=0.1)
        for k in ("rate", "mean", "quantile")
    ],
    "holm": lambda: s.holm([0.1, 0.2]),
    "inputs_for_mean": lambda: s.inputs_for_mean(spread, margin=0.1, span=1.0),
    "inputs_for_rate": lambda: s.inputs_for_rate(0.01, margin=0.02),
    "mcnemar_exact": lambda: s.mcnemar_exact(a, b),
    "mean_estimate": lambda: s.mean_estimate(x),
    "mean_no_worse": lambda: s.mean_no_worse(x, y, margin=0.1, better="lower", span=1.0),
    "mean_worse": lambda: s.mean_worse(x, y, better="lower"),
    "paired_mean_difference": lambda: s.paired_mean_difference(x, y),
    "paired_quantile_difference": lambda: s.paired_quantile_difference(x, y),
    "paired_rate_difference": lambda: s.paired_rate_difference(a, b),
    "quantile_estimate": lambda: s.quantile_estimate(x),
    "randomization_test": lambda: s.randomization_test(x, y),
    "rate_estimate": lambda: s.rate_estimate(a),
    "rate_no_worse": lambda: s.rate_no_worse(a, b, margin=0.1, better="lower"),
    "rate_worse": lambda: s.rate_worse(a, b, better="lower"),
    "relative_change_estimate": lambda: s.relative_change_estimate(x, y),
    "shrunken_spread": lambda: s.shrunken_spread(x, span=1.0),
    "tango_interval": lambda: s.tango_interval(3, 4, 30),
    "tango_z": lambda: s.tango_z(3, 4, 30, 0.1),
    "undefined": lambda: s.undefined("why"),
}
"""

PROGRAM = f"""
import sys
import numpy as np
import quantdrift.statistics as s
assert not any(name.startswith("scipy") for name in sys.modules)
compare, S, spread = s.compare_samples, s.PairedSample, s.Spread(share=0.01, mean_square=0.01)
{CALLS}
for name, call in calls.items():
    call()
    for module in ("scipy.stats", "scipy.optimize"):
        assert module not in sys.modules, f"{{name}} imports {{module}}"
print(*calls)
"""


def test_no_function_needs_what_takes_long_to_import() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    public = {name for name in statistics.__all__ if name[0].islower()}
    assert set(done.stdout.split()) == public
