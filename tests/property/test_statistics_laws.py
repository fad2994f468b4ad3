"""Laws of comparisons: systems exchanged, inputs reordered, the margin or the limit moved; and verdicts by chance."""

import random
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantdrift.statistics import paired
from quantdrift.statistics.estimates import Estimate, mean_estimate, share_estimate
from quantdrift.statistics.paired import borne_out
from quantdrift.statistics.standing import Tolerances, exceeds, standing
from quantdrift.statistics.verdicts import mean_no_worse, mean_worse, rate_no_worse, rate_worse

Floats = NDArray[np.float64]
Pair = tuple[Floats, Floats]

margins = st.floats(0.005, 0.95)
CONFIGURATIONS: tuple[Literal["lower", "higher"], ...] = ("lower", "higher")
betters = st.sampled_from(CONFIGURATIONS)


@st.composite
def rate_pairs(draw: st.DrawFn) -> Pair:
    outcomes = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60)
    a, b = np.array(draw(outcomes), dtype=np.float64).T
    return a, b


@st.composite
def score_pairs(draw: st.DrawFn) -> Pair:
    """Scores from 0 to 1 that are often the same, as ranks make them."""
    scores = st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 0.75, 1.0])
    values = draw(st.lists(st.tuples(scores, scores), min_size=1, max_size=40))
    a, b = np.array(values).T
    return a, b


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, int, int]:
    n = draw(st.integers(1, 2000))
    x = draw(st.integers(0, n))
    return x, draw(st.integers(0, n - x)), n


def mirrored(estimate: Estimate) -> tuple[float | None, ...]:
    ends = (estimate.value, estimate.high, estimate.low)
    return tuple(None if end is None else -end for end in ends)


def parts(estimate: Estimate) -> tuple[float | None, ...]:
    return estimate.value, estimate.low, estimate.high


# --- exchanging the systems ------------------------------------------------------------------


@given(rate_pairs())
def test_exchanged_rates_mirror_the_difference_and_keep_p(pair: Pair) -> None:
    a, b = pair
    assert parts(paired.paired_rate_difference(a, b)) == mirrored(paired.paired_rate_difference(b, a))
    assert paired.mcnemar_exact(a, b).p_value == paired.mcnemar_exact(b, a).p_value
    assert paired.mcnemar_exact(a, b).only_a == paired.mcnemar_exact(b, a).only_b


@given(score_pairs())
def test_exchanged_scores_mirror_the_difference_and_keep_p(pair: Pair) -> None:
    a, b = pair
    assert parts(paired.paired_mean_difference(a, b)) == mirrored(paired.paired_mean_difference(b, a))
    assert parts(paired.paired_quantile_difference(a, b)) == mirrored(paired.paired_quantile_difference(b, a))
    assert paired.randomization_test(a, b) == paired.randomization_test(b, a)


# --- reordering the inputs -------------------------------------------------------------------


@given(score_pairs(), rate_pairs(), st.randoms(use_true_random=False), margins)
def test_the_order_of_inputs_does_not_matter(scores: Pair, rates: Pair, shuffler: random.Random, margin: float) -> None:
    (a, b), (x, y) = scores, rates
    order, other = (np.array(shuffler.sample(range(len(side)), len(side))) for side in (a, x))
    for statistic in (paired.paired_mean_difference, paired.paired_quantile_difference, paired.randomization_test):
        assert statistic(a[order], b[order]) == statistic(a, b)
    assert paired.paired_rate_difference(x[other], y[other]) == paired.paired_rate_difference(x, y)
    for better in CONFIGURATIONS:
        reordered = mean_no_worse(a[order], b[order], margin=margin, better=better, span=1)
        assert reordered == mean_no_worse(a, b, margin=margin, better=better, span=1)


# --- margins ---------------------------------------------------------------------------------


@given(rate_pairs(), margins, margins, betters)
def test_wider_never_raises_p(pair: Pair, first: float, second: float, better: Literal["lower", "higher"]) -> None:
    a, b = pair
    narrow, wide = sorted((first, second))
    loose = rate_no_worse(a, b, margin=wide, better=better)
    assert loose <= rate_no_worse(a, b, margin=narrow, better=better) + 1e-9


# --- worse, one way --------------------------------------------------------------------------


@given(rate_pairs(), betters)
def test_a_rate_is_worse_one_way_or_the_other(pair: Pair, better: Literal["lower", "higher"]) -> None:
    a, b = pair
    other: Literal["lower", "higher"] = "higher" if better == "lower" else "lower"
    p = rate_worse(a, b, better=better)
    assert 0 < p <= 1
    assert p == rate_worse(b, a, better=other) == rate_worse(a[::-1], b[::-1], better=better)
    mirror = rate_worse(b, a, better=better)
    assert p + mirror >= 1 - 1e-12
    assert paired.mcnemar_exact(a, b).p_value == pytest.approx(min(1, 2 * min(p, mirror)))


@given(score_pairs(), betters, st.integers(0, 9), st.randoms(use_true_random=False))
def test_a_mean_is_worse(pair: Pair, better: Literal["lower", "higher"], seed: int, shuffler: random.Random) -> None:
    a, b = pair
    other: Literal["lower", "higher"] = "higher" if better == "lower" else "lower"
    p = mean_worse(a, b, better=better, seed=seed)
    assert 0 < p <= 1
    assert p == mean_worse(b, a, better=other, seed=seed)
    order = np.array(shuffler.sample(range(len(a)), len(a)))
    assert p == mean_worse(a[order], b[order], better=better, seed=seed)
    mirror = mean_worse(b, a, better=better, seed=seed)
    assert paired.randomization_test(a, b, seed=seed) == min(1, 2 * min(p, mirror))
    if (a != b).sum() <= 13:  # beyond that the two have an error of their own
        assert p + mirror >= 1


# --- Tango's statistic and interval ----------------------------------------------------------


@given(tables(), st.sampled_from([0.8, 0.9, 0.95, 0.99]))
def test_the_interval_ends_where_the_test_begins_to_reject(table: tuple[int, int, int], confidence: float) -> None:
    x, y, n = table
    low, high = paired.tango_interval(x, y, n, confidence=confidence)
    assert -1 <= low <= (x - y) / n <= high <= 1
    z = {0.8: 1.281552, 0.9: 1.644854, 0.95: 1.959964, 0.99: 2.575829}[confidence]
    if low > -1:
        assert paired.tango_z(x, y, n, low) == pytest.approx(z, abs=1e-4)
    if high < 1:
        assert paired.tango_z(x, y, n, high) == pytest.approx(-z, abs=1e-4)
    wider = paired.tango_interval(x, y, n, confidence=0.995)
    assert wider[0] <= low
    assert high <= wider[1]


# --- several tests ---------------------------------------------------------------------------


# --- verdicts --------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 30, 80])
def test_exchangeable_arms_are_said_to_have_lost_quality_in_at_most_one_case_of_twenty(n: int) -> None:
    """Differences of nDCG whose sign is a coin's; half of the inputs do not differ at all."""
    rng = np.random.default_rng(n)
    words = []
    for _ in range(400):
        step = rng.choice([-1, 1], n) * rng.choice([0, 0.37, 0.5, 1], n, p=[0.5, 0.2, 0.2, 0.1])
        change = borne_out(mean_estimate(step), step)
        words.append((change.high or 0.0) < 0)
        standing(share_estimate(0, n), change=change, tolerances=Tolerances())
    assert np.mean(words) <= 0.05


@pytest.mark.parametrize("limit", [0.03, 0.2])
def test_a_share_at_the_limit_is_called_more_or_no_more_in_at_most_one_case_of_forty(limit: float) -> None:
    """Exactly, over every outcome that a binomial variable can have."""
    for n in range(1, 150):
        chances = np.array([1.0])
        for _ in range(n):
            chances = np.convolve(chances, [1 - limit, limit])
        answers = [exceeds(share_estimate(hits, n), limit) for hits in range(n + 1)]
        for wrong in ("yes", "no"):
            assert sum(chance for chance, answer in zip(chances, answers, strict=True) if answer == wrong) <= 0.025


@given(n=st.integers(1, 400), hits=st.integers(0, 400), more=st.integers(0, 400))
def test_more_changes_never_make_a_verdict_better(n: int, hits: int, more: int) -> None:
    order = ["no", "open", "yes"]
    first, second = (exceeds(share_estimate(min(n, count), n), 0.03) for count in (hits, hits + more))
    assert order.index(first) <= order.index(second)
