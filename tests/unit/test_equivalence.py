"""Being no worse is shown, not assumed: exact error rates, other implementations, few inputs."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import beta, binom, multinomial, ttest_1samp

from quantdrift.errors import QuantDriftError
from quantdrift.statistics import (
    PairedSample,
    Spread,
    compare_samples,
    inputs_for_mean,
    inputs_for_rate,
    mean_equivalent,
    mean_no_worse,
    rate_equivalent,
    rate_no_worse,
    shrunken_spread,
    tango_z,
)

Floats = NDArray[np.float64]
ALPHA = 0.05


def rates(worse: int, improved: int, n: int) -> tuple[Floats, Floats]:
    """Values of 0 and 1 where B has `worse` events that A lacks, and the other way round."""
    a = np.repeat([0.0, 1.0, 0.0], [worse, improved, n - worse - improved])
    b = np.repeat([1.0, 0.0, 0.0], [worse, improved, n - worse - improved])
    return a, b


def p_rate(worse: int, improved: int, n: int, margin: float) -> float:
    return rate_no_worse(*rates(worse, improved, n), margin=margin, better="lower")


# --- rates -----------------------------------------------------------------------------------


def test_five_inputs_without_a_difference_show_nothing() -> None:
    a, b = rates(0, 0, 5)
    assert rate_no_worse(a, b, margin=0.02, better="lower") == pytest.approx(0.98**5)
    assert rate_equivalent(a, b, margin=0.02) > 0.9
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
    assert rate_equivalent(a, b, margin=0.05) == worse == rate_equivalent(b, a, margin=0.05)


@pytest.mark.parametrize(("worse", "n", "margin"), [(0, 150, 0.02), (3, 400, 0.02), (2, 40, 0.1)])
def test_the_bound_is_where_the_clopper_pearson_limit_meets_the_margin(
    worse: int, n: int, margin: float
) -> None:
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
        tables = np.array(
            [(x, y) for x in range(min(n, most_x) + 1) for y in range(min(n - x, most_y) + 1)]
        )
        rest = n - tables.sum(axis=1, keepdims=True)
        mass = multinomial.pmf(
            np.hstack([tables, rest]), n, [worse, improved, 1 - worse - improved]
        )
        assert mass.sum() > 0.999
        for x, y in tables[mass > 1e-7].tolist():
            if (x, y) not in p_values:
                p_values[x, y] = p_rate(x, y, n, margin)
        rejected = [p_values.get((x, y), 1.0) <= ALPHA for x, y in tables.tolist()]
        errors.append(mass[rejected].sum())
    assert max(errors) <= 0.053  # the score test is asymptotic; alone it comes to 0.06 here


# --- means -----------------------------------------------------------------------------------

GAINS = np.array([1 / 2, 2 / 3, 1 / 6, 1 / 4, 9 / 10, 1.0, 0.37, 0.1])
"""Changes of reciprocal ranks and of nDCG that one place or a few make."""


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


@pytest.mark.parametrize(
    ("shift", "added"), [(0.1, 1), (-0.05, 2), (-0.15, 3), (-0.25, 4), (-0.4, 6)]
)
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


def test_equivalence_against_statsmodels() -> None:
    """Without a span there is no difference to add, and it is the usual pair of t-tests."""
    stats = pytest.importorskip("statsmodels.stats.weightstats")
    rng = np.random.default_rng(4)
    a = rng.normal(size=50)
    b = a + rng.normal(0.05, 0.5, size=50)
    theirs, below, above = stats.ttost_paired(b, a, -0.2, 0.2)
    assert mean_equivalent(a, b, margin=0.2, span=math.inf) == pytest.approx(theirs)
    no_worse = [
        mean_no_worse(a, b, margin=0.2, better=better, span=math.inf)
        for better in ("higher", "lower")
    ]
    assert no_worse == pytest.approx([below[1], above[1]])


@pytest.mark.parametrize("changed", [0, 3, 9])
def test_few_differences_without_a_span_show_nothing(changed: int) -> None:
    a = np.zeros(500)
    b = a - np.repeat([1.0, 0.0], [changed, 500 - changed])
    assert mean_no_worse(a, b, margin=0.1, better="lower", span=math.inf) is None
    assert mean_equivalent(a, b, margin=0.1, span=math.inf) is None
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


# --- how many inputs it takes ----------------------------------------------------------------


def test_the_formula_by_hand() -> None:
    """(1.6449 + 0.8416)^2 = 6.1826, times discordance over margin squared if that is much less."""
    assert inputs_for_rate(0.4, margin=0.01) == pytest.approx(6.18256 * 0.4 / 1e-4, rel=1e-3)
    plain = inputs_for_mean(Spread(share=1, mean_square=0.5), margin=0.01, span=math.inf)
    assert plain == math.ceil(6.18256 * 0.5 / 1e-4)
    assert inputs_for_rate(0.1, margin=0.02, alpha=0.005) > 1.8 * inputs_for_rate(0.1, margin=0.02)


def test_even_without_any_discordance_there_is_a_least_number() -> None:
    """0.98^149 is the first power below 5 %."""
    assert inputs_for_rate(0.0, margin=0.02) == 149
    assert inputs_for_mean(Spread(share=0, mean_square=0), margin=0.02, span=1) >= 149


def shown_rate(n: int, psi: float, margin: float, repeats: int = 1500) -> float:
    rng = np.random.default_rng(6)
    tables = rng.multinomial(n, [psi / 2, psi / 2, 1 - psi], size=repeats)
    distinct, times = np.unique(tables[:, :2], axis=0, return_counts=True)
    shown = [p_rate(x, y, n, margin) <= ALPHA for x, y in distinct.tolist()]
    return float(times[shown].sum() / repeats)


@pytest.mark.parametrize(("psi", "margin"), [(0.1, 0.05), (0.2, 0.08), (0.04, 0.02), (0.15, 0.1)])
def test_the_power_of_rates_at_that_number(psi: float, margin: float) -> None:
    n = inputs_for_rate(psi, margin=margin)
    assert 0.785 < shown_rate(n, psi, margin, repeats=8000) < 0.85


@pytest.mark.parametrize(
    ("psi", "margin"),
    [(0.04, 0.03), (0.01, 0.02), (0.005, 0.02), (0.02, 0.02), (0.03, 0.05), (0.001, 0.1)],
)
def test_where_few_inputs_differ_there_are_enough_all_the_same(psi: float, margin: float) -> None:
    n = inputs_for_rate(psi, margin=margin)
    assert shown_rate(n, psi, margin) > 0.76
    assert n <= 1 + 15 / psi


@pytest.mark.parametrize(("share", "margin"), [(0.2, 0.05), (0.1, 0.02)])
def test_the_power_of_means_at_that_number(share: float, margin: float) -> None:
    square = share * float(np.square(GAINS).mean())
    n = inputs_for_mean(Spread(share=share, mean_square=square), margin=margin, span=1)
    rng = np.random.default_rng(7)
    none, shown = np.zeros(n), []
    for _ in range(500):
        step = rng.choice(GAINS, n) * rng.choice([-1, 0, 1], n, p=[share / 2, 1 - share, share / 2])
        p_value = mean_no_worse(none, step, margin=margin, better="lower", span=1)
        shown.append(p_value is not None and p_value <= ALPHA)
    assert np.mean(shown) == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize(("sd", "margin"), [(0.5, 0.1), (0.2, 0.05), (1.0, 0.1)])
def test_the_number_against_statsmodels(sd: float, margin: float) -> None:
    power = pytest.importorskip("statsmodels.stats.power")
    theirs = power.tt_solve_power(
        effect_size=margin / sd, alpha=ALPHA, power=0.8, alternative="larger"
    )
    spread = Spread(share=1, mean_square=sd**2)
    ours = inputs_for_mean(spread, margin=margin, span=math.inf)
    assert ours == pytest.approx(theirs, abs=3)  # t instead of normal: one or two more


def test_the_spread_is_never_estimated_from_nothing() -> None:
    def square(values: list[float], span: float = 1) -> float:
        spread = shrunken_spread(np.array(values), span=span)
        assert spread is not None
        return spread.mean_square

    assert shrunken_spread(np.zeros(6), span=1) == Spread(share=2 / 10, mean_square=2 / 10)
    assert shrunken_spread(np.zeros(6), span=math.inf) is None
    assert square([1, -1, 1, 0, 0, 0]) == pytest.approx(5 / 10)
    assert square([0.1] * 500 + [-0.1] * 500 + [0] * 9000) == pytest.approx(0.001, rel=0.01)
    assert square([0.1, 0, 0, 0]) == pytest.approx((0.01 + 2 * (0.01 + 1) / 2) / 8)
    assert inputs_for_rate(2 / 10, margin=0.02) > 3000


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"power": 1.0}, {"margin": 0.0}, {"margin": 1}])
def test_a_sample_size_that_cannot_be_computed(wrong: dict[str, float]) -> None:
    asked = {"margin": 0.1, "alpha": 0.05, "power": 0.8} | wrong
    with pytest.raises(QuantDriftError, match="a sample size needs"):
        inputs_for_rate(0.1, **asked)
    with pytest.raises(QuantDriftError, match="a sample size needs"):
        inputs_for_mean(Spread(share=0.1, mean_square=0.1), span=1, **asked)


# --- verdicts --------------------------------------------------------------------------------


def sample(worse: int, improved: int, n: int, name: str = "flip@1") -> PairedSample:
    a, b = rates(worse, improved, n)
    return PairedSample(metric=name, kind="rate", better="lower", a=a, b=b)


@pytest.mark.parametrize(
    ("worse", "improved", "n", "verdict"),
    [
        (5, 5, 1000, "no worse"),
        (60, 10, 1200, "worse"),
        (1, 1, 40, "underpowered"),
        (45, 28, 1500, "inconclusive"),  # enough, had there been no difference
        (36, 10, 3000, "no worse"),  # significantly worse, but by less than the margin
    ],
)
def test_verdicts_with_a_margin(worse: int, improved: int, n: int, verdict: str) -> None:
    (found,) = compare_samples([sample(worse, improved, n)], margin=0.02)
    assert found.verdict == verdict
    assert found.inputs_needed is not None
    assert (found.n < found.inputs_needed) == (verdict == "underpowered")
    assert (found.higher_b, found.higher_a, found.n) == (worse, improved, n)


@pytest.mark.parametrize(
    ("worse", "improved", "verdict"),
    [
        (30, 5, "worse"),
        (5, 30, "better"),
        (12, 5, "no difference shown"),
        (0, 0, "no difference shown"),
    ],
)
def test_verdicts_without_a_margin(worse: int, improved: int, verdict: str) -> None:
    (found,) = compare_samples([sample(worse, improved, 400)])
    assert found.verdict == verdict
    assert (found.p_no_worse, found.p_equivalent, found.inputs_needed) == (None, None, None)


def test_where_higher_is_better() -> None:
    a, b = rates(30, 5, 400)
    for one, other, verdict in ((a, b, "better"), (b, a, "worse")):
        gain = PairedSample(metric="ndcg@10", kind="mean", better="higher", a=one, b=other)
        assert compare_samples([gain])[0].verdict == verdict


def test_p_values_are_adjusted_for_the_number_of_metrics() -> None:
    one = sample(14, 3, 400)
    (alone,) = compare_samples([one], margin=0.1)
    among = compare_samples([one, *[sample(3, 4, 400)] * 5], margin=0.1)
    assert alone.p_value is not None
    assert (alone.verdict, among[0].p_value) == ("no worse", alone.p_value)
    assert among[0].p_holm == pytest.approx(6 * alone.p_value)
    assert alone.inputs_needed is not None
    assert among[0].inputs_needed is not None
    assert among[0].inputs_needed > alone.inputs_needed
    without = [
        compare_samples(part)[0].verdict for part in ([one], [one, *[sample(3, 4, 400)] * 5])
    ]
    assert without == ["worse", "no difference shown"]


def test_no_worse_among_many_takes_more() -> None:
    near = sample(12, 9, 700)  # shown to be no worse if it is all that is asked
    (alone,) = compare_samples([near], margin=0.02)
    among = compare_samples([near, *[sample(30, 10, 700)] * 5], margin=0.02)
    assert alone.p_no_worse is not None
    assert 0.05 / 6 < alone.p_no_worse < 0.05
    assert alone.verdict == "no worse"
    assert among[0].p_no_worse_holm == pytest.approx(6 * alone.p_no_worse)
    assert among[0].verdict == "underpowered"


def test_what_is_not_tested_does_not_count_and_says_why() -> None:
    rng = np.random.default_rng(0)
    empty = np.empty(0)
    samples = [
        sample(14, 3, 400),
        PairedSample(metric="separation", kind="quantile", better="higher", a=rng.random(400),
                     b=rng.random(400)),
        PairedSample(metric="recall@1", kind="mean", better="higher", a=empty, b=empty,
                     reason="no relevance labels in A"),
        PairedSample(metric="mean", kind="mean", better="lower", a=np.array([1.0, math.inf]),
                     b=np.ones(2)),
    ]  # fmt: skip
    tested, median, undefined, infinite = compare_samples(samples, margin=0.05)
    assert tested.p_holm == tested.p_value
    assert median.verdict is None
    assert median.p_value is None
    assert median.difference.low is not None
    assert median.reason == "a median or quantile has an interval here, no test"
    assert undefined.to_json()["difference"] == {
        "value": None,
        "reason": "no relevance labels in A",
    }
    assert undefined.reason == "no relevance labels in A"
    assert infinite.to_json()["value_a"] is None
    assert "infinite for some inputs" in str(infinite.reason)


def test_neither_way_is_better() -> None:
    a, b = rates(30, 2, 400)
    (found,) = compare_samples(
        [PairedSample(metric="x", kind="rate", better=None, a=a, b=b)], margin=0.05
    )
    assert found.p_value is not None
    assert (found.p_no_worse, found.verdict) == (None, None)
    assert found.reason == "neither way is better: no verdict"
