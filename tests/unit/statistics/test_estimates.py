"""Estimates, binomial tails and resamples: by hand, against scipy, and without importing scipy.stats."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, binomtest, bootstrap, quantile_test

from quantdrift.statistics import estimates
from quantdrift.statistics.estimates import Estimate, undefined
from support.paired_values import ends

Floats = NDArray[np.float64]
SHARES = [0.0, 1e-3, 0.02, 0.3, 0.5, 0.97, 1.0]
CLOSE = {"rel": 1e-13, "abs": 1e-15}
"""The quantiles of scipy before 1.17 differ from those since in the last digit."""


# --- the binomial distribution


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("n", [1, 2, 25, 1190])
def test_tails_and_quantiles_against_scipy(n: int, share: float) -> None:
    counts = np.arange(-2, n + 3)
    below, above = binom.cdf(counts, n, share), binom.sf(counts - 1, n, share)
    # the least numbers there are, below 1e-307, have fewer digits
    assert estimates.at_most(counts, n, share) == pytest.approx(below, rel=1e-12, abs=1e-280)
    assert estimates.at_least(counts, n, share) == pytest.approx(above, rel=1e-12, abs=1e-280)
    for level in (0.001, 0.025, 0.5 + 1e-9, 0.8, 0.975):
        assert estimates.lower_quantile(level, n, share) == binom.ppf(level, n, share)
        assert estimates.upper_quantile(level, n, share) == binom.isf(level, n, share)


def test_the_tails_of_many_inputs_keep_their_digits() -> None:
    """Where `scipy.special.bdtr` has ten."""
    n, counts = 100_000, np.arange(1600, 2400, 7)
    assert estimates.at_most(counts, n, 0.02) == pytest.approx(binom.cdf(counts, n, 0.02), rel=3e-12, abs=0)
    sizes = np.array([149, 150, 600])
    assert estimates.at_most(0, sizes, 0.02) == pytest.approx(0.98**sizes)


# --- rates, medians, means


@pytest.mark.parametrize("n", [1, 2, 30, 1190])
def test_wilson_against_scipy(n: int) -> None:
    for hits in {0, 1, n // 3, n - 1, n}:
        estimate = estimates.rate_estimate(np.repeat([1.0, 0.0], [hits, n - hits]))
        theirs = binomtest(hits, n).proportion_ci(0.95, method="wilson")
        assert (estimate.value, estimate.n) == (hits / n, n)
        assert ends(estimate) == pytest.approx((theirs.low, theirs.high), rel=1e-12)
        assert 0 <= ends(estimate)[0] <= hits / n <= ends(estimate)[1] <= 1


def drawn_values(kind: str, n: int) -> Floats:
    rng = np.random.default_rng(n)
    if kind == "ties":
        return rng.choice([0.0, 0.5, 1.0], n)
    values = rng.normal(size=n)
    return np.where(rng.random(n) < 0.3, np.inf, values) if kind == "infinite" else values


@pytest.mark.parametrize("kind", ["distinct", "ties", "infinite"])
@pytest.mark.parametrize("n", [1, 5, 6, 7, 40, 301])
def test_the_ends_of_a_quantile_against_scipy(n: int, kind: str) -> None:
    values = drawn_values(kind, n)
    assert estimates.quantile_estimate(values).value == np.median(values)
    for q in (0.5, 0.1, 1 / 3, 0.99):
        estimate = estimates.quantile_estimate(values, q)
        theirs = quantile_test(values, p=q).confidence_interval(0.95)
        for ours, their in zip((estimate.low, estimate.high), theirs, strict=True):
            assert ours == (None if math.isnan(their) else their)


def test_infinite_values_are_values() -> None:
    estimate = estimates.quantile_estimate(np.array([math.inf] * 3 + [1.0, 2, 3, 4, 5, 6, 7]))
    assert (estimate.value, estimate.high) == (5.5, math.inf)
    assert estimate.to_json()["high"] is None
    most = estimates.quantile_estimate(np.array([1.0, math.inf, math.inf]))
    assert most.to_json() == {"value": None, "reason": "+infinity: no finite value"}
    assert estimates.quantile_estimate(np.array([1.0, math.inf])).value == math.inf  # half of the way to infinity
    assert Estimate(value=-math.inf).to_json()["reason"].startswith("-infinity")
    assert undefined("no labels").to_json() == {"value": None, "reason": "no labels"}


@pytest.mark.parametrize("values", [[0.25], [0.25] * 9])
def test_without_spread_the_interval_is_the_value(values: list[float]) -> None:
    estimate = estimates.mean_estimate(np.array(values))
    assert (estimate.value, *ends(estimate), estimate.n) == (0.25, 0.25, 0.25, len(values))


# --- resamples


def theirs(samples: tuple[Floats, ...], statistic: Callable[..., Any], seed: int) -> Any:
    settings: dict[str, Any] = {"n_resamples": 2000, "batch": 100, "method": "percentile", "paired": True}
    return bootstrap(samples, statistic, rng=np.random.default_rng(seed), **settings)


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("n", [2, 13, 225, 1190])
def test_the_same_seed_gives_the_resamples_of_scipy(n: int, seed: int) -> None:
    values = np.random.default_rng(n).random(n)
    expected = theirs((values,), np.mean, seed)
    means = estimates.resampled(lambda places: values[places].mean(axis=-1), n, seed=seed)
    assert means.tolist() == expected.bootstrap_distribution.tolist()
    assert estimates.percentile_interval(means) == pytest.approx(tuple(expected.confidence_interval), **CLOSE)
    ordered = theirs((np.sort(values),), np.mean, seed).confidence_interval
    assert ends(estimates.mean_estimate(values, seed=seed)) == pytest.approx(tuple(ordered), **CLOSE)


def test_the_interval_of_a_relative_change_against_scipy() -> None:
    rng = np.random.default_rng(6)
    before = np.sort(rng.random(80))  # in the order in which they are resampled
    after = before + rng.normal(0, 0.1, 80)

    def change(reference: Floats, candidate: Floats, axis: int = -1) -> Any:
        return candidate.mean(axis=axis) / reference.mean(axis=axis) - 1

    expected = theirs((before, after), change, 1).confidence_interval
    assert ends(estimates.relative_change_estimate(after, before, seed=1)) == pytest.approx(tuple(expected), **CLOSE)
    rare = np.array([0.0, 0.0, 0.0, 1.0])  # a resample of nothing has no relative change
    estimate = estimates.relative_change_estimate(rare[::-1].copy(), rare)
    assert (estimate.value, estimate.low, estimate.high) == (0, None, None)


# --- what is imported

PROGRAM = """
import sys
import numpy as np
from quantdrift.statistics import verdicts as v
a, b = np.array([0.0, 1, 1, 0, 1] * 6), np.array([0.0, 1, 0, 1, 1, 0] * 5)
for kind in ("rate", "mean", "quantile"):
    v.compare_samples([v.PairedSample(metric=kind, kind=kind, better="lower", a=a, b=b)], margin=0.1)
v.rate_worse(a, b, better="lower"), v.mean_worse(a, b, better="lower")
assert not {"scipy.stats", "scipy.optimize"} & sys.modules.keys()
"""


def test_no_test_needs_what_takes_long_to_import() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_means_at_once_are_what_each_is_by_itself() -> None:
    rng = np.random.default_rng(3)
    columns = [rng.normal(size=40), rng.random(40), rng.random(7), np.ones(40), rng.random(40), np.array([2.0])]
    together = estimates.mean_estimates(columns, seed=5)
    assert together == [estimates.mean_estimate(column, seed=5) for column in columns]
    assert together == estimates.mean_estimates(columns[::-1], seed=5)[::-1]
    assert len({(estimate.low, estimate.high) for estimate in together}) == len(columns)
