"""Comparisons with the baseline: p-values by hand and by scipy, and what they come to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from quantdrift.errors import DataError, QuantDriftError, UnknownNameError
from quantdrift.gate.judge import (
    Judgement,
    Verdict,
    decide,
    gate,
    judge_changes,
    least_inputs,
    snapshot_for,
    verdict_of,
)
from quantdrift.gate.rules import RuleError, parse_rule
from support.gate_samples import Values, evidence, judged, ones, pair, rules, target

BOTH = "flip@1 no worse by 0.03"
EXACT = pytest.approx


def moved(n: int, worse: int, better: int) -> tuple[Values, Values]:
    """Flips of a baseline and a run: some inputs flip only now, and some only then."""
    return ones(n, range(worse, worse + better)), ones(n, range(worse))


def test_the_exact_test_of_worse_by_hand() -> None:
    """Nine worse and one better: P(X >= 9) of ten fair coins is (10 + 1) / 1024."""
    found = judged(BOTH, *moved(300, 9, 1))
    assert (found.worse, found.better, found.n) == (9, 1, 300)
    assert found.p_worse == EXACT(11 / 1024)
    assert found.p_worse_holm == EXACT(11 / 1024)
    assert found.before == EXACT(1 / 300)
    assert found.now is not None
    assert found.now.value == EXACT(9 / 300)
    assert found.difference is not None
    assert found.difference.value == EXACT(8 / 300)


@pytest.mark.parametrize(("worse", "better"), [(1, 0), (5, 0), (7, 3), (3, 7), (0, 4), (30, 18)])
def test_worse_is_the_binomial_test_of_scipy(worse: int, better: int) -> None:
    found = judged(BOTH, *moved(200, worse, better))
    wanted = stats.binomtest(worse, worse + better, alternative="greater").pvalue
    assert found.p_worse == EXACT(wanted)


def test_where_higher_is_better_worse_is_lower() -> None:
    before, now = 1 - moved(300, 9, 1)[0], 1 - moved(300, 9, 1)[1]
    found = judged("accuracy no worse by 0.03", before, now)
    assert (found.worse, found.better) == (9, 1)
    assert found.p_worse == EXACT(11 / 1024)
    assert judged("accuracy no worse by 0.03", now, before).p_worse == EXACT(1023 / 1024)


def test_a_mean_by_hand() -> None:
    """Five inputs lose and one gains as much: 7 of 64 changes of sign have such a sum."""
    before = np.full(200, 0.5)
    now = before.copy()
    now[:5] -= 0.25
    now[5] += 0.25
    found = judged("ndcg@10 no worse by 0.03", before, now)
    assert found.p_worse == EXACT(7 / 64)
    assert (found.worse, found.better) == (5, 1)
    # at most 5 of 200 are worse, if 3 in 100 were: the bound, as few differ
    assert found.p_no_worse == EXACT(stats.binom.cdf(5, 200, 0.03))
    assert judged("ndcg@10 no worse by 0.03", now, before).p_worse == EXACT(63 / 64)


def test_no_difference_is_shown_by_as_many_inputs_as_there_are() -> None:
    """0.97 to the 98th is 0.0505, and to the 99th 0.0490."""
    for metric in ("flip@1", "ndcg@10"):
        rule = f"{metric} no worse by 0.03"
        short, enough = (judged(rule, np.zeros(n), np.zeros(n)) for n in (98, 99))
        assert short.p_no_worse == EXACT(0.97**98)
        assert (short.outcome, enough.outcome) == ("underpowered", "pass")
        assert enough.reason == "shown to be no worse"


@pytest.mark.parametrize(
    ("rule", "counts", "outcome", "reason"),
    [
        (BOTH, (300, 30, 5), "fail", "shown to be worse, and by 0.03 or more cannot be ruled out"),
        (BOTH, (300, 5, 30), "pass", "shown to be no worse"),
        (BOTH, (300, 12, 9), "underpowered", "too few inputs to tell: 300, and it takes about"),
        (BOTH, (2000, 20, 5), "pass", "worse, but shown to be by less than the margin"),
        (BOTH, (2000, 100, 40), "fail", "shown to be worse"),
        (BOTH, (1000, 58, 43), "underpowered", "the difference is about as large as the margin"),
        ("flip@1 no worse", (2000, 20, 5), "fail", "worse than the baseline"),
        ("flip@1 no worse", (2000, 12, 9), "pass", "not shown to be worse"),
        ("flip@1 no worse", (1, 1, 0), "pass", "not shown to be worse"),
        (BOTH, (300, 300, 0), "fail", "shown to be worse"),
        (BOTH, (1, 1, 0), "underpowered", "too few inputs to tell: 1, and it takes about"),
        (BOTH, (72, 0, 0), "underpowered", "nothing differs, but 72 inputs are too few to show it; 99 would"),
    ],
)
def test_what_it_comes_to(rule: str, counts: tuple[int, int, int], outcome: Verdict, reason: str) -> None:
    """Counts are of all inputs, of those that are worse, and of those that are better."""
    found = judged(rule, *moved(*counts))
    assert found.outcome == outcome
    assert reason in found.reason


@pytest.mark.parametrize(
    ("rule", "alpha", "least"),
    [
        (BOTH, 0.05, 99),
        ("ndcg@10 no worse by 0.05", 0.05, 59),
        ("flip@1 no worse by 0.5", 0.125, 4),  # three of them come to the level, and not below
        ("flip@1 no worse by 0.03", 0.01, 152),
    ],
)
def test_least_inputs_is_where_nothing_that_differs_shows_it(rule: str, alpha: float, least: int) -> None:
    """The least n with (1 - margin)^n below the level."""
    asked = parse_rule(rule)
    assert least_inputs(asked, alpha=alpha) == least
    assert asked.number is not None
    assert (1 - asked.number) ** least < alpha <= (1 - asked.number) ** (least - 1)


def test_what_is_shown_to_be_better_is_no_worse() -> None:
    """None worse and nine better: nine fair coins fall so once in 512."""
    found = judged(BOTH, *moved(72, 0, 9))
    assert (found.outcome, found.reason) == ("pass", "shown to be no worse")
    assert found.p_no_worse == EXACT(1 / 512)
    # four are too few: 1 / 16
    assert judged(BOTH, *moved(72, 0, 4)).outcome == "underpowered"


def same(now: int, then: int = 0, **identity: Any) -> Judgement:
    """Of five inputs; the digest is that of the baseline, and some flip."""
    there = snapshot_for(target(evidence(range(then), n=5), **identity), [])
    (found,) = gate(target(evidence(range(now), n=5)), rules(BOTH), there).judgements
    return found


def test_the_same_candidate_passes_with_however_few_inputs() -> None:
    found = same(2, 2)
    assert (found.outcome, found.n, found.p_worse) == ("pass", 5, None)
    assert found.reason == "the same candidate as in the baseline, to the bit, and nothing differs"
    for other in (
        same(2, 2, spec="minilm@W3-rtn"),
        same(2, 2, candidate_fingerprint="other"),
        same(2, 2, candidate_fingerprint=None),
        same(3, 2),  # the same weights, but something differs, either way
        same(2, 3),
    ):
        assert other.outcome == "underpowered"


def test_a_rule_names_the_inputs_that_lost_the_most() -> None:
    before, now = np.full(40, 0.5), np.full(40, 0.5)
    before[0] = now[0] = np.nan  # so that rows and inputs differ
    now[3], now[7], now[9], now[20] = 0.4, 0.1, 0.9, 0.3
    assert judged("ndcg@10 no worse by 0.03", before, now).inputs == ("q7", "q20", "q3")
    assert judged("ndcg@10 no worse by 0.03", now, before).inputs == ("q9",)
    # of a rate all lose alike; ten are named
    found = judged(BOTH, ones(300, []), ones(300, range(5)))
    assert found.inputs == ("q0", "q1", "q2", "q3", "q4")
    assert len(judged(BOTH, *moved(300, 12, 3)).inputs) == 10


def test_holm_over_the_rules() -> None:
    """Of three p-values the least counts three times, the next twice, and none below one before."""
    n = 300
    columns = {
        "flip@1": moved(n, 9, 1),  # 11 / 1024
        "gold_lost@10": moved(n, 5, 0),  # 1 / 32
        "gold_lost@5": moved(n, 4, 0),  # 1 / 16
    }
    matched = pair({name: held[0] for name, held in columns.items()}, {name: held[1] for name, held in columns.items()})
    asked = rules(*(f"{name} no worse" for name in columns))
    found = judge_changes(asked, matched)
    assert [each.p_worse for each in found] == EXACT([11 / 1024, 1 / 32, 1 / 16])
    assert [each.p_worse_holm for each in found] == EXACT([33 / 1024, 2 / 32, 2 / 32])
    assert [each.outcome for each in found] == ["fail", "pass", "pass"]
    # by itself the second would fail
    assert judge_changes(asked[1:2], matched)[0].outcome == "fail"
    # in whatever order
    assert judge_changes(asked[::-1], matched) == found[::-1]


def test_holm_leaves_out_what_could_not_be_tested() -> None:
    there = snapshot_for(target(evidence([])), rules("flip@1 no worse"))
    here = target(evidence(range(5)))
    asked = rules("flip@1 no worse", "harm no worse", "flip@1 <= 0.5")
    found = gate(here, asked, there).judgements
    assert found[0].p_worse_holm == found[0].p_worse == EXACT(1 / 32)
    assert [each.outcome for each in found] == ["fail", "incomparable", "pass"]


def test_p_no_worse_is_not_adjusted() -> None:
    """All rules have to pass, so none passes by luck of one among several."""
    before = {"flip@1": np.zeros(99), "gold_lost@10": np.zeros(99), "ndcg@10": np.ones(99)}
    asked = rules(*(f"{name} no worse by 0.03" for name in before))
    found = judge_changes(asked, pair(before, before))
    assert [each.p_no_worse for each in found] == EXACT([0.97**99] * 3)
    assert {each.outcome for each in found} == {"pass"}


def test_the_same_rule_twice_counts_once() -> None:
    there = snapshot_for(target(evidence([])), [])
    here = target(evidence(range(5)))
    once = gate(here, rules("flip@1 no worse by 0.03"), there)
    twice = gate(here, rules("flip@1 no worse by 0.03", "flip@1 no worse by 3 %"), there)
    assert len(twice.judgements) == 1
    assert twice.judgements == once.judgements


def test_two_rules_of_one_metric_each_have_their_say() -> None:
    there = snapshot_for(target(evidence([])), [])
    asked = rules("flip@1 no worse by 0.2", "flip@1 no worse by 0.01", "flip@1 <= 0.1")
    found = gate(target(evidence(range(2))), asked, there).judgements
    assert [each.outcome for each in found] == ["pass", "underpowered", "pass"]


def noisy(before: Values, now: Values, *, then: Values | None = None, today: Values | None = None) -> Judgement:
    n = len(before)
    unknown = np.full(n, np.nan)
    matched = pair(
        {"flip@1": before, "noise_floor": unknown if then is None else then},
        {"flip@1": now, "noise_floor": unknown if today is None else today},
    )
    return judge_changes(rules(BOTH), matched)[0]


def test_noise_is_set_aside_on_either_side() -> None:
    before, now = moved(300, 9, 1)
    # of the nine worse ones, two are noisy now and one was then; so was the one that is better,
    # and inputs that do not differ
    found = noisy(before, now, today=ones(300, [0, 1, 50]), then=ones(300, [2, 9, 60, 61]))
    assert found.set_aside == 7
    assert (found.worse, found.better) == (6, 0)
    assert found.p_worse == EXACT(1 / 64)
    assert found.n == 293
    assert found.difference is not None
    assert found.difference.value == EXACT(6 / 293)
    # both values are those measured, on all inputs
    assert found.now is not None
    assert (found.before, found.now.value) == (EXACT(1 / 300), EXACT(9 / 300))
    assert noisy(before, now).set_aside == 0


def test_where_all_is_noise_nothing_is_shown() -> None:
    everywhere = ones(300, range(300))
    for text in (BOTH, "flip@1 no worse"):
        before, now = moved(300, 30, 5)
        matched = pair({"flip@1": before}, {"flip@1": now, "noise_floor": everywhere})
        (found,) = judge_changes(rules(text), matched)
        assert (found.outcome, found.set_aside) == ("underpowered", 300)
        assert found.reason.startswith("noise alone changes 300 inputs, more than the margin")


def test_more_noise_than_the_margin_cannot_pass_for_proof() -> None:
    """Ten of 300 are more than three in a hundred, nine are not."""
    before, now = moved(300, 0, 0)
    for count, outcome in ((9, "pass"), (10, "underpowered")):
        noise = {"noise_floor": ones(300, range(count))}
        matched = pair({"flip@1": before}, {"flip@1": now, **noise})
        (found,) = judge_changes(rules(BOTH), matched)
        assert (found.outcome, found.set_aside, found.n) == (outcome, count, 300 - count)
    assert found.reason.startswith("noise alone changes 10 inputs")


@pytest.mark.parametrize(
    ("metric", "aside"),
    [("flip@1", 50), ("gold_lost@1", 50), ("flip@1:gap=0..1", 50), ("gold_lost@5", 0), ("ndcg@10", 0)],
)
def test_noise_is_known_of_the_first_answer_only(metric: str, aside: int) -> None:
    before, now = moved(100, 9, 0)
    matched = pair({metric: before, "noise_floor": ones(100, range(50))}, {metric: now})
    (found,) = judge_changes(rules(f"{metric} no worse"), matched)
    assert found.set_aside == aside


def test_noise_of_real_evidence() -> None:
    there = snapshot_for(target(evidence([], noise=[])), [])
    here = target(evidence(range(5), noise=[4, 30]))
    (found,) = gate(here, rules("flip@1 no worse"), there).judgements
    assert (found.set_aside, found.worse) == (2, 4)


def test_one_side_without_a_value() -> None:
    """One in a hundred is an accident of rounding at the end of a slice; more are other inputs."""
    before, now = moved(202, 9, 1)
    before[200] = np.nan
    now[201] = np.nan
    fine = judged(BOTH, before, now)
    assert (fine.n, fine.p_worse) == (200, EXACT(11 / 1024))
    now[199] = np.nan
    other = judged(BOTH, before, now)
    assert other.outcome == "incomparable"
    assert other.reason.startswith("3 inputs have a value on one side only")


def test_no_value_in_the_baseline_at_all() -> None:
    before, now = moved(100, 9, 1)
    found = judged(BOTH, np.full(100, np.nan), now)
    assert (found.outcome, found.p_worse) == ("incomparable", None)
    assert judged(BOTH, before, np.full(100, np.nan)).outcome == "incomparable"


def test_a_baseline_without_the_metric() -> None:
    there = snapshot_for(target(evidence(range(2))), [])
    there = replace(there, values={"flip@1": there.values["flip@1"]})
    result = gate(target(evidence(range(2))), rules("ndcg@10 no worse by 0.1"), there)
    assert result.verdict == "incomparable"
    assert result.judgements[0].reason == (
        "the baseline has no outcomes of this metric; write it anew with --update, from the "
        "version it is of and not from this run"
    )


def test_what_the_run_itself_does_not_know_is_an_error() -> None:
    """Writing the baseline anew would not help, so it is not said."""
    unlabelled = target(evidence(range(2), labels=False))
    for there in (unlabelled, target(evidence(range(2)))):
        baseline = snapshot_for(there, rules("ndcg@10 no worse by 0.1"))
        result = gate(unlabelled, rules("ndcg@10 no worse by 0.1", "flip@1 no worse"), baseline)
        assert (result.verdict, result.exit_code) == ("error", 2)
        assert result.judgements[0].reason == "undefined: no relevance labels"
        assert result.judgements[1].outcome == "pass"


def test_more_columns_than_are_asked_for_do_not_matter() -> None:
    here = target(evidence(range(9)))
    asked = rules(BOTH)
    there = snapshot_for(target(evidence(range(3))), asked)
    bare = replace(there, values={"flip@1": there.values["flip@1"]})
    assert gate(here, asked, there).judgements == gate(here, asked, bare).judgements


def test_exchanging_run_and_baseline_mirrors() -> None:
    before, now = moved(300, 30, 5)
    one, other = judged(BOTH, before, now), judged(BOTH, now, before)
    assert (one.outcome, other.outcome) == ("fail", "pass")
    assert (one.worse, one.better) == (other.better, other.worse)
    assert one.difference is not None
    assert other.difference is not None
    assert one.difference.value == -(other.difference.value or 0)
    assert one.difference.low == -(other.difference.high or 0)


def test_without_a_bound_few_differences_show_nothing() -> None:
    """A relevance grade has no greatest value, so one input could undo any number of others."""
    grades = np.ones(500)
    found = judged("served_relevance no worse by 0.1", grades, grades)
    assert (found.outcome, found.p_no_worse, found.needed) == ("underpowered", None, None)
    assert found.reason == "too few inputs differ, and nothing bounds by how much one of them can"
    worse = grades - ones(500, range(200))
    assert judged("served_relevance no worse by 0.1", grades, worse).outcome == "fail"


def test_needed_is_how_many_it_takes() -> None:
    found = judged(BOTH, *moved(98, 0, 0))
    assert found.needed is not None
    assert found.n < found.needed
    assert judged("flip@1 no worse", *moved(98, 0, 0)).needed is None


SLICES = {"tens": ["q1?"], "rest": ["q?", "q[2-5]?"]}


def test_a_rule_on_a_slice_sees_its_inputs_only() -> None:
    there = snapshot_for(target(evidence([]), candidate_fingerprint="other"), [])
    here = target(evidence(range(10, 18)))
    asked = rules("flip@1 [tens] no worse", "flip@1 [rest] no worse", "flip@1 no worse")
    found = gate(here, asked, there, slices=SLICES).judgements
    assert [each.n for each in found] == [10, 50, 60]
    assert [each.worse for each in found] == [8, 0, 8]
    assert [each.p_worse for each in found] == EXACT([1 / 256, 1, 1 / 256])
    assert [each.outcome for each in found] == ["fail", "pass", "fail"]


def test_a_slice_follows_its_inputs_to_other_rows() -> None:
    """The run has the inputs in another order than the baseline, and only some of them."""
    rows = np.random.default_rng(1).permutation(60)[:45]
    part = evidence(range(10, 18)).part(rows)
    inside = [f"q{row}" for row in rows if 10 <= row < 20]
    there = snapshot_for(target(evidence([])), [])
    asked = rules("flip@1 [tens] no worse")
    (found,) = gate(target(part), asked, there, slices=SLICES).judgements
    assert found.n == len(inside)
    assert found.worse == sum(int(name[1:]) < 18 for name in inside)


def test_a_slice_of_what_both_have() -> None:
    """The baseline has not the first inputs of the run, so that rows are others than before."""
    there = snapshot_for(target(evidence([])), []).part(range(7, 60))
    asked = rules("flip@1 [tens] no worse", "flip@1 [tens] <= 0.5")
    found = gate(target(evidence(range(10, 14))), asked, there, slices=SLICES).judgements
    assert [(each.n, each.worse) for each in found] == [(10, 4), (10, None)]


def test_slices_that_cannot_be() -> None:
    here = target(evidence([]))
    there = snapshot_for(here, [])
    with pytest.raises(UnknownNameError, match="unknown slice 'ten'; did you mean tens"):
        gate(here, rules("flip@1 [ten] no worse"), there, slices=SLICES)
    # of several patterns each has to match, as one that does not is a slip of the pen
    for patterns in (["x*"], ["q1?", "x*"], ["x*", "q1?"]):
        with pytest.raises(DataError, match=r"slice 'none': no input matches 'x\*'; ids are like"):
            gate(here, rules("flip@1 [none] no worse"), there, slices={"none": patterns})
    # the run has inputs of the slice, but the baseline has none of them
    result = gate(here, rules("flip@1 [tens] no worse"), there.part(range(10)), slices=SLICES)
    assert result.verdict == "error"
    assert "have no input of the slice in common" in result.judgements[0].reason


def test_slices_by_what_the_reference_says() -> None:
    """Every input of the samples has a gap of 1 / 11."""
    there = snapshot_for(target(evidence([])), rules("flip@1:gap=0.05.. no worse"))
    asked = rules("flip@1:gap=0.05.. no worse", "flip@1:gap=0..0.05 no worse")
    found = gate(target(evidence(range(5))), asked, there).judgements
    assert (found[0].n, found[0].p_worse) == (60, EXACT(1 / 32))
    assert (found[1].outcome, found[1].reason) == ("error", "undefined: no input has gap=0..0.05")


@pytest.mark.parametrize("alpha", [0, -0.1, 0.51, 1, float("nan"), 1e-10])
def test_levels_that_make_no_sense(alpha: float) -> None:
    here = target(evidence([]))
    with pytest.raises(QuantDriftError, match="alpha is a probability from 1e-09"):
        gate(here, rules("flip@1 <= 0.1"), alpha=alpha)


@pytest.mark.parametrize("alpha", [1e-9, 0.05, 0.5])
def test_levels_that_do(alpha: float) -> None:
    there = snapshot_for(target(evidence([])), [])
    asked = rules(BOTH, "ndcg@10 no worse by 0.03", "ndcg@10 no worse", "flip@1 <= 0.25")
    result = gate(target(evidence(range(5))), asked, there, alpha=alpha)
    assert result.alpha == alpha
    assert all(each.reason for each in result.judgements)


def test_nothing_to_judge_by() -> None:
    here = target(evidence([]))
    with pytest.raises(RuleError, match=r"expected a rule, such as flip@1 <= 0.25"):
        gate(here, [])
    with pytest.raises(RuleError, match=r"the rule 'flip@1 no worse' needs a baseline"):
        gate(here, rules("flip@1 <= 0.25", "flip@1 no worse"))


def test_several_parts() -> None:
    """Inputs of one name in two parts are two inputs; flips of both count."""
    old = target(evidence([]), evidence([0]), names=("arc", "piqa"))
    new = target(evidence(range(4)), evidence(range(4)), names=("arc", "piqa"))
    there = snapshot_for(old, [])
    assert there.input_ids[0] == "arc:q0"
    asked = rules("flip@1 no worse", "flip@1 [piqa] no worse", "flip@1 <= 0.1")
    result = gate(new, asked, there, slices={"piqa": ["piqa:*"]})
    assert [each.n for each in result.judgements] == [120, 60, 120]
    assert [each.worse for each in result.judgements] == [7, 3, None]
    assert (result.n_changed, result.n_new) == (8, 7)
    assert {(each.part, each.changed.input_id) for each in result.worst if not each.new} == {("piqa", "q0")}
    # one part alone has other names
    assert gate(target(evidence([])), rules("flip@1 no worse"), there).verdict == "incomparable"


def test_a_part_without_labels_takes_no_part() -> None:
    both = target(evidence(range(3)), evidence(range(3), labels=False), names=("a", "b"))
    there = snapshot_for(both, [])
    asked = rules("gold_lost@1 no worse", "flip@1 no worse", "gold_lost@1 <= 0.1")
    found = gate(both, asked, there).judgements
    assert [each.n for each in found] == [60, 120, 60]


def test_the_worst_inputs_come_first_in_any_order_of_inputs() -> None:
    there = snapshot_for(target(evidence(range(3))), [])
    whole = evidence(range(9))
    rng = np.random.default_rng(0)
    lists = []
    for _ in range(4):
        shuffled = target(whole.part(rng.permutation(60)))
        result = gate(shuffled, rules("flip@1 no worse"), there, n_worst=7)
        lists.append([(each.changed.input_id, each.new) for each in result.worst])
    assert lists[0] == [(f"q{row}", True) for row in range(3, 9)] + [("q0", False)]
    assert all(other == lists[0] for other in lists)
    none = gate(target(whole), rules("flip@1 no worse"), there, n_worst=0)
    assert (none.worst, none.n_changed, none.n_new) == ((), 9, 6)


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (["pass", "pass"], "pass"),
        (["pass", "underpowered"], "underpowered"),
        (["underpowered", "incomparable"], "incomparable"),
        (["incomparable", "fail"], "fail"),
        (["fail", "error"], "error"),
        ([], "pass"),
    ],
)
def test_the_verdict_is_the_gravest(outcomes: list[Any], verdict: str) -> None:
    assert verdict_of(outcomes) == verdict
    assert verdict_of(outcomes[::-1]) == verdict


def test_the_level_itself_is_not_below_the_level() -> None:
    found = Judgement(rule=parse_rule(BOTH), outcome="underpowered", reason="", n=1, p_worse=0.05, p_no_worse=0.05)
    assert [decide([found], alpha=alpha)[0].outcome for alpha in (0.05, 0.0501)] == ["underpowered", "pass"]


def test_json_has_every_number() -> None:
    there = snapshot_for(target(evidence([])), [])
    read = gate(target(evidence(range(5))), rules(BOTH, "flip@1 <= 0.05"), there).to_json()
    assert (read["verdict"], read["exit_code"], read["n_new"]) == ("fail", 1, 5)
    first, limit = read["rules"]
    assert first["rule"] == BOTH
    assert first["p_worse"] == EXACT(1 / 32)
    assert first["p_worse_holm"] == EXACT(1 / 32)
    assert first["now"]["value"] == EXACT(5 / 60)
    assert (limit["outcome"], limit["before"], limit["p_worse"]) == ("fail", None, None)
    assert len(read["worst"]) == 5


def test_both_sides_are_rounded_alike() -> None:
    """A run is not better or worse than its own file, which holds six decimals."""
    here = target(evidence(range(30)))
    there = snapshot_for(here, [])
    assert there.values["ndcg@10"][0] == 0.63093
    (found,) = gate(here, rules("ndcg@10 no worse"), there).judgements
    assert (found.worse, found.better) == (0, 0)
