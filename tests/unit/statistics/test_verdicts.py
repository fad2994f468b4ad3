"""Worse, no worse by a margin, how many inputs that takes, and verdicts: error rates and other implementations."""

import itertools
import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import beta, binom, binomtest, ttest_1samp

from quantdrift.base.errors import QuantDriftError
from quantdrift.statistics import verdicts
from quantdrift.statistics.estimates import as_json
from quantdrift.statistics.paired import tango_z
from quantdrift.statistics.verdicts import Better, PairedSample, Spread
from support.paired_values import Floats, rates

ALPHA = 0.05
LEVELS = (0.05, 0.05 / 8, 0.001)
CONFIGURATIONS: tuple[Better, ...] = ("lower", "higher")


def p_rate(worse: int, improved: int, n: int, margin: float) -> float:
    return verdicts.rate_no_worse(*rates(worse, improved, n), margin=margin, better="lower")


def p_worse(worse: int, improved: int, better: Better = "lower") -> float:
    return verdicts.rate_worse(*rates(worse, improved, worse + improved + 20), better=better)


def p_mean(harm: Floats, seed: int = 0) -> float:
    return verdicts.mean_worse(np.zeros(len(harm)), harm, better="lower", seed=seed)


def p_below(values: Floats, margin: float) -> float:
    """Of values from 0 to 1, against a mean of the margin or more."""
    p_value = verdicts.mean_no_worse(np.zeros(len(values)), values, margin=margin, better="lower", span=1)
    assert p_value is not None
    return p_value


# --- a rate that is no worse by a margin


def test_five_inputs_without_a_difference_show_nothing() -> None:
    a, b = rates(0, 0, 5)
    assert verdicts.rate_no_worse(a, b, margin=0.02, better="lower") == pytest.approx(0.98**5)
    assert verdicts.mean_no_worse(a, b, margin=0.02, better="higher", span=1) == pytest.approx(0.98**5)


def test_with_many_that_differ_it_is_tangos_score_test_one_way() -> None:
    assert p_rate(20, 15, 500, 0.04) == NormalDist().cdf(tango_z(20, 15, 500, 0.04))
    a, b = rates(30, 5, 300)  # B has more events
    fine = verdicts.rate_no_worse(a, b, margin=0.05, better="higher")
    assert fine < 1e-6
    assert verdicts.rate_no_worse(a, b, margin=0.05, better="lower") > 0.9
    assert verdicts.rate_no_worse(b, a, margin=0.05, better="lower") == fine


@pytest.mark.parametrize(("worse", "n", "margin"), [(0, 150, 0.02), (3, 400, 0.02), (2, 40, 0.1)])
def test_the_bound_is_where_the_clopper_pearson_limit_meets_the_margin(worse: int, n: int, margin: float) -> None:
    p_value = verdicts.mean_no_worse(*rates(worse, 0, n), margin=5 * margin, better="lower", span=5)
    assert p_value is not None
    assert beta.ppf(1 - p_value, worse + 1, n - worse) == pytest.approx(margin)


# --- a mean that is no worse by a margin


@pytest.mark.parametrize("limit", [0.3, 0.36, 0.4, 0.5])
def test_it_is_a_t_test_with_the_worst_values_added(limit: float) -> None:
    """One down to exp(-2), two down to exp(-4): the least level at which so many as it asks for reject."""
    values = np.random.default_rng(2).beta(2, 5, 60)
    p_values = [float(ttest_1samp([*values, *[1.0] * k], limit, alternative="less").pvalue) for k in range(1, 20)]
    expected = next(min(p, math.exp(-2 * (k - 1))) for k, p in enumerate(p_values, start=1) if p >= math.exp(-2 * k))
    assert p_below(values, limit) == pytest.approx(expected)
    higher = verdicts.mean_no_worse(values, np.zeros(60), margin=limit, better="higher", span=1)
    assert higher == pytest.approx(expected)


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


def test_no_worse_against_statsmodels() -> None:
    """Without a span there is no difference to add, and it is the usual one-sided t-test."""
    stats = pytest.importorskip("statsmodels.stats.weightstats")
    rng = np.random.default_rng(4)
    a = rng.normal(size=50)
    b = a + rng.normal(0.05, 0.5, size=50)
    _, below, above = stats.ttost_paired(b, a, -0.2, 0.2)
    no_worse = [
        verdicts.mean_no_worse(a, b, margin=0.2, better=better, span=math.inf) for better in ("higher", "lower")
    ]
    assert no_worse == pytest.approx([below[1], above[1]])


@pytest.mark.parametrize("changed", [0, 3, 9])
def test_few_differences_or_no_variance_without_a_span_show_nothing(changed: int) -> None:
    a = np.zeros(500)
    b = a - np.repeat([1.0, 0.0], [changed, 500 - changed])
    assert verdicts.mean_no_worse(a, b, margin=0.1, better="lower", span=math.inf) is None
    assert verdicts.mean_no_worse(a, b, margin=0.1, better="lower", span=2) == pytest.approx(0.95**500)
    assert verdicts.mean_no_worse(a, a - 1, margin=0.1, better="lower", span=math.inf) is None
    assert verdicts.mean_no_worse(a, a + 1, margin=0.1, better="lower", span=1) == 1


@pytest.mark.parametrize("margin", [0, 1, math.nan])
def test_a_margin_that_is_none(margin: float) -> None:
    with pytest.raises(QuantDriftError, match="2 percentage points"):
        p_rate(1, 1, 10, margin)
    with pytest.raises(QuantDriftError, match="above 0"):
        verdicts.mean_no_worse(np.zeros(3), np.ones(3), margin=margin, better="lower", span=1)


# --- worse, asked one way


@pytest.mark.parametrize(("w", "i"), [(1, 0), (0, 1), (5, 5), (12, 3), (57, 21), (300, 340)])
def test_rates_against_the_binomial_test(w: int, i: int) -> None:
    assert p_worse(w, i) == pytest.approx(binomtest(w, w + i, alternative="greater").pvalue, rel=1e-12, abs=0)


@pytest.mark.parametrize("harm", [[0.3], [-0.3], [0.1, 0.2, 0.3], [0.5, -0.1, 0.25, 0.25], [1, 2, 3, -4, 5, 6, 7.5]])
def test_all_changes_of_sign_by_hand(harm: list[float]) -> None:
    def by_hand(values: list[float]) -> float:
        signs = itertools.product((-1, 1), repeat=len(values))
        sums = [math.fsum(s * abs(h) for s, h in zip(row, values, strict=True)) for row in signs]
        return sum(total >= math.fsum(values) - 1e-12 for total in sums) / len(sums)

    step = np.array([0.0, *harm, 0.0])
    assert p_mean(step) == pytest.approx(by_hand(harm))
    assert verdicts.mean_worse(np.zeros(len(step)), step, better="higher") == pytest.approx(by_hand([-h for h in harm]))
    assert p_mean(np.zeros(5)) == 1


# --- how many inputs it takes


def test_the_formula_by_hand() -> None:
    """(1.6449 + 0.8416)^2 = 6.1826, times discordance over margin squared if that is much less."""
    assert verdicts.inputs_for_rate(0.4, margin=0.01) == pytest.approx(6.18256 * 0.4 / 1e-4, rel=1e-3)
    plain = verdicts.inputs_for_mean(Spread(share=1, mean_square=0.5), margin=0.01, span=math.inf)
    assert plain == math.ceil(6.18256 * 0.5 / 1e-4)
    assert verdicts.inputs_for_rate(0.1, margin=0.02, alpha=0.005) > 1.8 * verdicts.inputs_for_rate(0.1, margin=0.02)
    # without any discordance: 0.98^149 is the first power below 5 %
    assert verdicts.inputs_for_rate(0.0, margin=0.02) == 149
    assert verdicts.inputs_for_mean(Spread(share=0, mean_square=0), margin=0.02, span=1) >= 149


def shown_rate(n: int, psi: float, margin: float, repeats: int = 1500) -> float:
    rng = np.random.default_rng(6)
    tables = rng.multinomial(n, [psi / 2, psi / 2, 1 - psi], size=repeats)
    distinct, times = np.unique(tables[:, :2], axis=0, return_counts=True)
    shown = [p_rate(x, y, n, margin) <= ALPHA for x, y in distinct.tolist()]
    return float(times[shown].sum() / repeats)


@pytest.mark.parametrize(("psi", "margin"), [(0.1, 0.05), (0.2, 0.08), (0.04, 0.02), (0.15, 0.1)])
def test_the_power_of_rates_at_that_number(psi: float, margin: float) -> None:
    assert 0.785 < shown_rate(verdicts.inputs_for_rate(psi, margin=margin), psi, margin, repeats=8000) < 0.85


@pytest.mark.parametrize(
    ("share", "margin"), [(0.004, 0.02), (0.01, 0.02), (0.002, 0.005), (0.03, 0.08), (0.001, 0.004)]
)
def test_the_first_number_of_inputs_that_the_bound_needs(share: float, margin: float) -> None:
    """By trying all numbers of inputs, with power 0.8 at 5 %."""
    sizes = np.arange(2, math.ceil(15 / share) + 1)
    shown = np.asarray(binom.cdf(binom.ppf(0.8, sizes, share / 2), sizes, margin)) <= ALPHA
    assert verdicts.inputs_for_rate(share, margin=margin) == sizes[np.argmax(shown)]


@pytest.mark.parametrize(("sd", "margin"), [(0.5, 0.1), (0.2, 0.05), (1.0, 0.1)])
def test_the_number_against_statsmodels(sd: float, margin: float) -> None:
    power = pytest.importorskip("statsmodels.stats.power")
    theirs = power.tt_solve_power(effect_size=margin / sd, alpha=ALPHA, power=0.8, alternative="larger")
    ours = verdicts.inputs_for_mean(Spread(share=1, mean_square=sd**2), margin=margin, span=math.inf)
    assert ours == pytest.approx(theirs, abs=3)  # t instead of normal: one or two more


def test_the_spread_is_never_estimated_from_nothing() -> None:
    def square(values: list[float]) -> float:
        spread = verdicts.shrunken_spread(np.array(values), span=1)
        assert spread is not None
        return spread.mean_square

    assert verdicts.shrunken_spread(np.zeros(6), span=1) == Spread(share=2 / 10, mean_square=2 / 10)
    assert verdicts.shrunken_spread(np.zeros(6), span=math.inf) is None
    assert square([1, -1, 1, 0, 0, 0]) == pytest.approx(5 / 10)
    assert square([0.1] * 500 + [-0.1] * 500 + [0] * 9000) == pytest.approx(0.001, rel=0.01)
    assert square([0.1, 0, 0, 0]) == pytest.approx((0.01 + 2 * (0.01 + 1) / 2) / 8)


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"power": 1.0}, {"margin": 0.0}, {"margin": 1}])
def test_a_sample_size_that_cannot_be_computed(wrong: dict[str, float]) -> None:
    asked = {"margin": 0.1, "alpha": 0.05, "power": 0.8} | wrong
    with pytest.raises(QuantDriftError, match="a sample size needs"):
        verdicts.inputs_for_rate(0.1, **asked)
    with pytest.raises(QuantDriftError, match="a sample size needs"):
        verdicts.inputs_for_mean(Spread(share=0.1, mean_square=0.1), span=1, **asked)


# --- several tests, and verdicts


def test_holm_by_hand_and_against_statsmodels() -> None:
    assert verdicts.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert verdicts.holm([0.6, 0.7]) == [1, 1]
    assert verdicts.holm([None, 0.02, None, 0.5]) == [None, 0.04, None, 0.5]
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p_values = np.random.default_rng(2).random(12) ** 3
    theirs = multitest.multipletests(p_values, method="holm")[1]
    assert verdicts.holm(p_values.tolist()) == pytest.approx(theirs.tolist())


def sample(worse: int, improved: int, n: int) -> PairedSample:
    a, b = rates(worse, improved, n)
    return PairedSample(metric="flip@1", kind="rate", better="lower", a=a, b=b)


@pytest.mark.parametrize(
    ("worse", "improved", "n", "verdict"),
    [
        (5, 5, 1000, "no worse"),
        (60, 10, 1200, "worse"),
        (1, 1, 40, "underpowered"),
        (42, 28, 1300, "inconclusive"),  # enough, had there been no difference
        (36, 10, 3000, "no worse"),  # significantly worse, but by less than the margin
    ],
)
def test_verdicts_with_a_margin(worse: int, improved: int, n: int, verdict: str) -> None:
    (pair,) = verdicts.compare_samples([sample(worse, improved, n)], margin=0.02)
    assert pair.verdict == verdict
    assert pair.inputs_needed is not None
    assert (pair.n < pair.inputs_needed) == (verdict == "underpowered")
    assert (pair.higher_b, pair.higher_a, pair.n) == (worse, improved, n)


@pytest.mark.parametrize(
    ("worse", "improved", "verdict"),
    [(30, 5, "worse"), (5, 30, "better"), (12, 5, "no difference shown"), (0, 0, "no difference shown")],
)
def test_verdicts_without_a_margin(worse: int, improved: int, verdict: str) -> None:
    (pair,) = verdicts.compare_samples([sample(worse, improved, 400)])
    assert (pair.verdict, pair.p_no_worse, pair.inputs_needed) == (verdict, None, None)
    a, b = rates(improved, worse, 400)
    gain = PairedSample(metric="ndcg@10", kind="mean", better="higher", a=a, b=b)
    assert verdicts.compare_samples([gain])[0].verdict == verdict


def test_p_values_are_adjusted_for_the_number_of_metrics() -> None:
    first, others = sample(12, 3, 400), [sample(3, 4, 400)] * 5
    (alone,), (among, *_) = (verdicts.compare_samples(part, margin=0.1) for part in ([first], [first, *others]))
    assert alone.p_value is not None
    assert (alone.verdict, among.p_value) == ("no worse", alone.p_value)
    assert among.p_holm == pytest.approx(6 * alone.p_value)
    assert (among.inputs_needed or 0) > (alone.inputs_needed or 0) > 0
    assert [verdicts.compare_samples(part)[0].verdict for part in ([first], [first, *others])] == [
        "worse",
        "no difference shown",
    ]
    assert among.p_worse_holm == pytest.approx(6 * (alone.p_worse_holm or 0))
    near = sample(12, 9, 700)  # shown to be no worse if it is all that is asked
    (alone,) = verdicts.compare_samples([near], margin=0.02)
    among = verdicts.compare_samples([near, *[sample(30, 10, 700)] * 5], margin=0.02)[0]
    assert (alone.verdict, among.verdict) == ("no worse", "underpowered")
    assert among.p_no_worse_holm == pytest.approx(6 * (alone.p_no_worse or 0))


def test_what_is_not_tested_does_not_count_and_says_why() -> None:
    rng = np.random.default_rng(0)
    empty, why, (a, b) = np.empty(0), "no relevance labels in A", rates(30, 2, 400)
    samples = [
        sample(14, 3, 400),
        PairedSample(metric="separation", kind="quantile", better="higher", a=rng.random(400), b=rng.random(400)),
        PairedSample(metric="recall@1", kind="mean", better="higher", a=empty, b=empty, reason=why),
        PairedSample(metric="mean", kind="mean", better="lower", a=np.array([1.0, math.inf]), b=np.ones(2)),
        PairedSample(metric="x", kind="rate", better=None, a=a, b=b),
        PairedSample(metric="ndcg@10", kind="mean", better="higher", a=a, b=b, reason="2 inputs are left out"),
    ]
    tested, median, undefined, infinite, neither, fewer = verdicts.compare_samples(samples, margin=0.05)
    assert tested.p_holm == tested.p_value
    assert (median.verdict, median.p_value) == (None, None)
    assert median.difference.low is not None
    assert as_json(undefined)["difference"] == {"value": None, "reason": why}
    assert as_json(infinite)["value_a"] is None
    assert "infinite for some inputs" in str(infinite.reason)
    assert neither.p_value is not None
    assert (neither.p_no_worse, neither.verdict) == (None, None)
    assert (fewer.reason, fewer.p_no_worse is None) == ("2 inputs are left out", False)


def test_what_a_gate_fails_a_comparison_calls_worse() -> None:
    """16 answers worse and 4 better of 120: eight metrics that nobody asked for made that "no difference shown"."""
    asked, others = sample(16, 4, 120), [replace(sample(3, 4, 120), metric=f"recall@{k}") for k in range(1, 8)]
    compared = verdicts.compare_samples([asked, *others], judged={"flip@1", "gold_lost@10", "ndcg@10"})
    assert compared[0].verdict == "worse"
    assert compared[0].p_worse_holm == verdicts.rate_worse(asked.a, asked.b, better="lower")
    assert {pair.verdict for pair in compared[1:]} == {None}
    assert {pair.p_holm for pair in compared[1:]} == {None}
    assert compared[1].p_value is not None  # it is shown, without a verdict
