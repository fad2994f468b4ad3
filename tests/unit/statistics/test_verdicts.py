"""Verdicts of several metrics together."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantdrift.statistics import PairedSample, compare_samples
from support.equivalence_samples import rates

ALPHA = 0.05


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
    [(30, 5, "worse"), (5, 30, "better"), (12, 5, "no difference shown"), (0, 0, "no difference shown")],
)
def test_verdicts_without_a_margin(worse: int, improved: int, verdict: str) -> None:
    (found,) = compare_samples([sample(worse, improved, 400)])
    assert found.verdict == verdict
    assert (found.p_no_worse, found.inputs_needed) == (None, None)


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
    without = [compare_samples(part)[0].verdict for part in ([one], [one, *[sample(3, 4, 400)] * 5])]
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
    assert undefined.to_json()["difference"] == {"value": None, "reason": "no relevance labels in A"}
    assert undefined.reason == "no relevance labels in A"
    assert infinite.to_json()["value_a"] is None
    assert "infinite for some inputs" in str(infinite.reason)


def test_neither_way_is_better() -> None:
    a, b = rates(30, 2, 400)
    (found,) = compare_samples([PairedSample(metric="x", kind="rate", better=None, a=a, b=b)], margin=0.05)
    assert found.p_value is not None
    assert (found.p_no_worse, found.verdict) == (None, None)
    assert found.reason == "neither way is better: no verdict"
