"""The sequential test of a rate: by hand, by another computation, and by simulated gates that stop when they like."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, stats

from quantdrift.statistics.sequential import LOOKING, log_evidence, p_above, p_below, rate_bounds

ALPHA, RUNS, N = 0.05, 2000, 200
SURE = math.log(1 / (ALPHA * LOOKING))
Outcomes = NDArray[np.float64]


def drawn(rate: float, *shape: int, seed: int = 0) -> Outcomes:
    return (np.random.default_rng(seed).random(shape) < rate).astype(np.float64)


def test_evidence_by_hand() -> None:
    # one input, a one, against 1/2: the mean of 2 t over t from 1/2 to 1
    assert math.exp(float(log_evidence(1, 1, 0.5))) == pytest.approx(1.5)
    # none of n: the mean of (1 - u)^n over u from 0 to 1, whatever the limit
    assert np.exp(log_evidence(0, 9, 0.2)) == pytest.approx(1 / 10)
    # two ones against 1/2: an evidence of 7/3, which looks may spend four fifths of the error on
    assert p_above(np.ones(2), 0.5, ended=False) == pytest.approx(3 / 7 / 0.8)
    # and eight: 1 / 256 at the end, in the fifth that is left
    assert p_above(np.ones(8), 0.5, ended=True) == pytest.approx(1 / 256 / 0.2)


@pytest.mark.parametrize(("ones", "n", "limit"), [(3, 10, 0.1), (30, 400, 0.25), (90, 100, 0.5), (7, 7, 0.9)])
def test_evidence_is_the_mean_of_likelihood_ratios(ones: int, n: int, limit: float) -> None:
    def ratio(rate: float) -> float:
        return float(np.exp(stats.binom.logpmf(ones, n, rate) - stats.binom.logpmf(ones, n, limit)))

    area, _ = integrate.quad(ratio, limit, 1, points=[max(limit, ones / n)], epsabs=0)
    assert math.exp(float(log_evidence(ones, n, limit))) == pytest.approx(area / (1 - limit), rel=1e-6)


@pytest.mark.parametrize("limit", [0.75, 0.25, 0.95])
def test_whenever_one_stops_the_error_is_what_was_allowed(limit: float) -> None:
    outcomes = drawn(limit, RUNS, N)
    ones, n = np.cumsum(outcomes, axis=1), np.arange(1, N + 1)
    looked = (log_evidence(ones, n, limit) >= SURE).any(axis=1)
    at_end = stats.binom.sf(ones[:, -1] - 1, N, limit) <= ALPHA * (1 - LOOKING)
    allowed = ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / RUNS)
    assert (looked | at_end).mean() <= allowed
    # a test for one fixed number of inputs, asked again and again, is no such test
    assert (stats.binom.sf(ones - 1, n, limit) <= ALPHA).any(axis=1).mean() > 1.5 * allowed


def stopped(outcomes: Outcomes, limit: float) -> int:
    """Inputs that a gate takes that looks as often as the real one does."""
    n = 0
    while n < len(outcomes):
        n = min(len(outcomes), n + max(16, n // 4))
        sure: Any = (test(outcomes[:n], limit, ended=n == len(outcomes)) <= ALPHA for test in (p_above, p_below))
        if any(sure):
            break
    return n


@pytest.mark.parametrize(("rate", "n", "most"), [(0.089, 1190, 48), (0.45, 3000, 48), (0.21, 3000, 1200)])
def test_few_inputs_decide(rate: float, n: int, most: int) -> None:
    taken = [stopped(drawn(rate, n, seed=seed), 0.25) for seed in range(60)]
    assert np.median(taken) <= most


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.6, 1.0])
def test_bounds_are_the_limits_that_are_not_ruled_out(rate: float, ended: bool) -> None:
    outcomes = drawn(rate, 150)
    low, high = rate_bounds(outcomes, alpha=ALPHA, ended=ended)
    assert low <= outcomes.mean() <= high
    for bound, test, step in ((low, p_above, 1e-6), (high, p_below, -1e-6)):
        outside, inside = bound - step, bound + step
        assert not 0 < outside < 1 or test(outcomes, outside, ended=ended) <= ALPHA
        assert not 0 < inside < 1 or test(outcomes, inside, ended=ended) > ALPHA


def test_what_is_left_of_the_error_is_spent_at_the_end() -> None:
    outcomes = (np.arange(400) % 40 == 0).astype(np.float64)
    exact = stats.binom.cdf(10, 400, 0.05)
    assert p_below(outcomes, 0.05, ended=True) == pytest.approx(exact / (1 - LOOKING))
    assert p_below(outcomes, 0.05, ended=False) > ALPHA > p_below(outcomes, 0.05, ended=True)
