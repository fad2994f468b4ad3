"""Showing that a system is no worse: error rates, bounds, and statsmodels."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import beta, binom, multinomial, ttest_1samp

from quantdrift.errors import QuantDriftError
from quantdrift.statistics import mean_no_worse, rate_no_worse, tango_z
from support.equivalence_samples import GAINS, Floats, p_rate, rates

ALPHA = 0.05


# --- rates -----------------------------------------------------------------------------------


def test_five_inputs_without_a_difference_show_nothing() -> None:
    a, b = rates(0, 0, 5)
    assert rate_no_worse(a, b, margin=0.02, better="lower") == pytest.approx(0.98**5)
    assert mean_no_worse(a, b, margin=0.02, better="higher", span=1) == pytest.approx(0.98**5)


def test_with_many_that_differ_it_is_tangos_score_test() -> None:
    assert p_rate(20, 15, 500, 0.04) == NormalDist().cdf(tango_z(20, 15, 500, 0.04))


def test_which_way_is_better() -> None:
    a, b = rates(30, 5, 300)  # B has more events
    worse = rate_no_worse(a, b, margin=0.05, better="lower")
    fine = rate_no_worse(a, b, margin=0.05, better="higher")
    assert fine < 1e-6
    assert worse > 0.9
    assert rate_no_worse(b, a, margin=0.05, better="lower") == fine


@pytest.mark.parametrize(("worse", "n", "margin"), [(0, 150, 0.02), (3, 400, 0.02), (2, 40, 0.1)])
def test_the_bound_is_where_the_clopper_pearson_limit_meets_the_margin(worse: int, n: int, margin: float) -> None:
    p_value = mean_no_worse(
        *rates(worse, 0, n), margin=5 * margin, better="lower", span=5
    )  # 5: a mean of values that can be that far apart
    assert p_value is not None
    upper = beta.ppf(1 - p_value, worse + 1, n - worse)
    assert upper == pytest.approx(margin)


@pytest.mark.parametrize("margin", [0.02, 0.1])
@pytest.mark.parametrize("n", [30, 100, 200, 300])
def test_the_error_rate_of_rates_computed_exactly(n: int, margin: float) -> None:
    """At a true difference of the margin: how likely is a p-value of 5 % or less?"""
    errors = []
    p_values: dict[tuple[int, int], float] = {}
    for improved in (0.0, 0.005, 0.02, 0.07):
        worse = improved + margin
        most_x, most_y = (int(n * p + 6 * math.sqrt(n * p) + 3) for p in (worse, improved))
        tables = np.array([(x, y) for x in range(min(n, most_x) + 1) for y in range(min(n - x, most_y) + 1)])
        rest = n - tables.sum(axis=1, keepdims=True)
        mass = multinomial.pmf(np.hstack([tables, rest]), n, [worse, improved, 1 - worse - improved])
        assert mass.sum() > 0.999
        for x, y in tables[mass > 1e-7].tolist():
            if (x, y) not in p_values:
                p_values[x, y] = p_rate(x, y, n, margin)
        rejected = [p_values.get((x, y), 1.0) <= ALPHA for x, y in tables.tolist()]
        errors.append(mass[rejected].sum())
    assert max(errors) <= 0.053  # the score test is asymptotic; alone it comes to 0.06 here


# --- means -----------------------------------------------------------------------------------


def draw(kind: str, n: int, margin: float, improved: float, *, repeats: int) -> Floats:
    """Differences with a true mean of the margin: worse is positive, [repeats, n]."""
    rng = np.random.default_rng(1)
    u = rng.random((repeats, n))
    if kind == "rare":  # small gains that are common, whole losses that are not
        worse, loss, gain = margin + 0.05 * improved, 1.0, 0.05
        return np.where(u < worse, loss, np.where(u < worse + improved, -gain, 0.0))
    size = rng.choice(GAINS, size=(repeats, n))
    worse = improved + margin / GAINS.mean()
    return np.where(u < worse, size, np.where(u < worse + improved, -size, 0.0))


@pytest.mark.parametrize(
    ("kind", "n", "margin", "improved"),
    [
        ("ranks", 30, 0.05, 0.1),
        ("ranks", 100, 0.05, 0.02),  # a t-test alone: 8 %
        ("ranks", 300, 0.05, 0.0),  # a t-test alone: 8 %
        ("rare", 30, 0.02, 0.3),  # a t-test alone: 34 %; with the bound for few: 16 %
        ("rare", 100, 0.02, 0.3),  # 13 %
        ("rare", 300, 0.02, 0.1),  # 11 %
    ],
)
def test_the_error_rate_of_means(kind: str, n: int, margin: float, improved: float) -> None:
    repeats = 800
    values = draw(kind, n, margin, improved, repeats=repeats)
    none = np.zeros(n)
    p_values = [mean_no_worse(none, row, margin=margin, better="lower", span=1.0) for row in values]
    errors = np.mean([p is not None and p <= ALPHA for p in p_values])
    assert errors <= ALPHA + 2.5 * math.sqrt(ALPHA * (1 - ALPHA) / repeats)


@pytest.mark.parametrize(("shift", "added"), [(0.1, 1), (-0.05, 2), (-0.15, 3), (-0.25, 4), (-0.4, 6)])
def test_the_t_test_has_differences_more_the_smaller_p_is(shift: float, added: int) -> None:
    """One down to exp(-2), two down to exp(-4), and so on."""
    rng = np.random.default_rng(3)
    a, b = rng.random(60), rng.random(60)
    b += shift - (b - a).mean()
    with_one_more, bands = 1.0, []
    for k in range(1, added + 1):
        extended = np.append(b - a, np.full(k, 1.5))
        with_one_more = float(ttest_1samp(extended, 0.1, alternative="less").pvalue)
        bands.append(with_one_more >= math.exp(-2 * k))
    assert bands == [False] * (added - 1) + [True]
    expected = pytest.approx(min(with_one_more, math.exp(-2 * (added - 1))))
    assert mean_no_worse(a, b, margin=0.1, better="lower", span=1.5) == expected
    assert mean_no_worse(b, a, margin=0.1, better="higher", span=1.5) == expected


@pytest.mark.parametrize("alpha", [0.05, 0.05 / 8, 0.05 / 20, 0.001])
@pytest.mark.parametrize(("n", "margin"), [(72, 0.02), (130, 0.02), (190, 0.02), (300, 0.05)])
def test_the_size_at_the_levels_that_holm_asks_for(alpha: float, n: int, margin: float) -> None:
    """Rare full losses among many small gains, computed from all outcomes, not simulated."""
    for share in (1.02 * margin, margin + 0.01, 2 * margin, 3 * margin):
        gain = (share - margin) / (1 - share)  # the true mean is the margin
        wrong = 0.0
        for losses in range(n + 1):
            chance = float(binom.pmf(losses, n, share))
            if chance > 1e-9 and losses < n * 0.3:
                harm = np.repeat([1.0, -gain], [losses, n - losses])
                p_value = mean_no_worse(np.zeros(n), harm, margin=margin, better="lower", span=1)
                assert p_value is not None
                wrong += chance * (p_value <= alpha)
        assert wrong <= alpha, share


def test_no_worse_against_statsmodels() -> None:
    """Without a span there is no difference to add, and it is the usual one-sided t-test."""
    stats = pytest.importorskip("statsmodels.stats.weightstats")
    rng = np.random.default_rng(4)
    a = rng.normal(size=50)
    b = a + rng.normal(0.05, 0.5, size=50)
    _, below, above = stats.ttost_paired(b, a, -0.2, 0.2)
    no_worse = [mean_no_worse(a, b, margin=0.2, better=better, span=math.inf) for better in ("higher", "lower")]
    assert no_worse == pytest.approx([below[1], above[1]])


@pytest.mark.parametrize("changed", [0, 3, 9])
def test_few_differences_without_a_span_show_nothing(changed: int) -> None:
    a = np.zeros(500)
    b = a - np.repeat([1.0, 0.0], [changed, 500 - changed])
    assert mean_no_worse(a, b, margin=0.1, better="lower", span=math.inf) is None
    assert mean_no_worse(a, b, margin=0.1, better="lower", span=2) == pytest.approx(0.95**500)


def test_no_variance_proves_nothing() -> None:
    a, b = np.zeros(12), np.full(12, -1.0)
    assert mean_no_worse(a, b, margin=0.1, better="lower", span=math.inf) is None
    assert mean_no_worse(a, -b, margin=0.1, better="lower", span=1) == 1


@pytest.mark.parametrize("margin", [0, -0.1, 1, 2, math.nan])
def test_a_margin_that_is_none(margin: float) -> None:
    with pytest.raises(QuantDriftError, match="For 2 percentage points of a rate give"):
        p_rate(1, 1, 10, margin)
    with pytest.raises(QuantDriftError, match="above 0 and below the greatest"):
        mean_no_worse(np.zeros(3), np.ones(3), margin=margin, better="lower", span=1)
