"""What rules come to: p-values by hand and by scipy, limits, noise, slices, and whether two runs belong together."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from quantdrift.finished.diff import diff_runs
from quantdrift.finished.formats import read_finished
from quantdrift.gate.baseline import answer_of
from quantdrift.gate.judge import gate, match, settled, snapshot_for
from quantdrift.gate.result import GateResult, Judgement, Verdict
from quantdrift.gate.rules import parse_rule
from quantdrift.gate.target import Drawn, Target, target_of_diff
from support.finished_samples import A, B, write_trec
from support.gate_samples import IDENTITY, Values, evidence, judge_changes, judged, ones, pair, rules, snapshot, target

BOTH = "flip@1 no worse by 0.03"
EXACT = pytest.approx


def moved(n: int, worse: int, better: int) -> tuple[Values, Values]:
    """Flips of a baseline and a run: some inputs flip only now, and some only then."""
    return ones(n, range(worse, worse + better)), ones(n, range(worse))


def test_the_exact_test_of_worse_by_hand() -> None:
    """Nine worse and one better: P(X >= 9) of ten fair coins is (10 + 1) / 1024."""
    judgement = judged(BOTH, *moved(300, 9, 1))
    assert (judgement.worse, judgement.better, judgement.n) == (9, 1, 300)
    assert (judgement.p_worse, judgement.p_worse_holm) == (EXACT(11 / 1024), EXACT(11 / 1024))
    assert [judgement.before, judgement.now.value, judgement.difference.value] == EXACT([1 / 300, 9 / 300, 8 / 300])
    # where higher is better, worse is lower
    before, now = (1 - values for values in moved(300, 9, 1))
    assert judged("accuracy no worse by 0.03", before, now).p_worse == EXACT(11 / 1024)
    assert judged("accuracy no worse by 0.03", now, before).p_worse == EXACT(1023 / 1024)


def test_a_mean_by_hand() -> None:
    """Five inputs lose and one gains as much: 7 of 64 changes of sign have such a sum."""
    before = np.full(200, 0.5)
    now = before.copy()
    now[:5] -= 0.25
    now[5] += 0.25
    judgement = judged("ndcg@10 no worse by 0.03", before, now)
    assert judgement.p_worse == EXACT(7 / 64)
    assert (judgement.worse, judgement.better) == (5, 1)
    # at most 5 of 200 are worse, if 3 in 100 were: the bound, as few differ
    assert judgement.p_no_worse == EXACT(stats.binom.cdf(5, 200, 0.03))
    assert judged("ndcg@10 no worse by 0.03", now, before).p_worse == EXACT(63 / 64)


@pytest.mark.parametrize(
    ("rule", "counts", "outcome", "reason"),
    [
        (BOTH, (300, 30, 5), "fail", "shown to be worse by 0.03 or more"),
        (BOTH, (300, 14, 2), "fail", ": by 0.04, perhaps by up to 0.071, where at most 0.03 is allowed"),
        (BOTH, (300, 5, 30), "pass", "shown to be no worse"),
        (BOTH, (300, 12, 9), "underpowered", "too few inputs to tell: there are 300"),
        (BOTH, (2000, 20, 5), "pass", "by less than the margin"),
        ("flip@1 no worse", (2000, 20, 5), "fail", "worse than the baseline"),
        # none worse and nine better: nine fair coins fall so once in 512, and four once in 16
        (BOTH, (72, 0, 9), "pass", "shown to be no worse"),
        (BOTH, (72, 0, 4), "underpowered", "too few inputs"),
    ],
)
def test_what_it_comes_to(rule: str, counts: tuple[int, int, int], outcome: Verdict, reason: str) -> None:
    """Counts are of all inputs, of those that are worse, and of those that are better."""
    judgement = judged(rule, *moved(*counts))
    assert judgement.outcome == outcome
    assert reason in judgement.reason
    assert (judgement.needed is None) == (rule == "flip@1 no worse")


def same(now: int, then: int = 0, **identity: Any) -> Judgement:
    """Of five inputs; the digest is that of the baseline, and some flip."""
    there = snapshot_for(target(evidence(range(then), n=5), **identity), [])
    (judgement,) = gate(target(evidence(range(now), n=5)), rules(BOTH), there).rules
    return judgement


def test_the_same_candidate_passes_with_however_few_inputs() -> None:
    judgement = same(2, 2)
    assert (judgement.outcome, judgement.n, judgement.p_worse) == ("pass", 5, None)
    others = (
        same(2, 2, spec="minilm@W3-rtn"),
        same(2, 2, candidate_fingerprint="other"),
        same(2, 2, candidate_fingerprint=None),
        same(3, 2),  # the same weights, but something differs, either way
        same(2, 3),
    )
    assert {other.outcome for other in others} == {"underpowered"}


def test_a_rule_names_the_inputs_that_lost_the_most() -> None:
    before, now = np.full(40, 0.5), np.full(40, 0.5)
    before[0] = now[0] = np.nan  # so that rows and inputs differ
    now[3], now[7], now[9], now[20] = 0.4, 0.1, 0.9, 0.3
    assert judged("ndcg@10 no worse by 0.03", before, now).inputs == ("q7", "q20", "q3")
    assert judged("ndcg@10 no worse by 0.03", now, before).inputs == ("q9",)
    assert len(judged(BOTH, *moved(300, 12, 3)).inputs) == 10


def test_holm_over_the_rules() -> None:
    """Of three p-values the least counts three times, the next twice, and none below one before."""
    columns = {"flip@1": moved(300, 9, 1), "gold_lost@10": moved(300, 5, 0), "gold_lost@5": moved(300, 4, 0)}
    matched = pair({name: held[0] for name, held in columns.items()}, {name: held[1] for name, held in columns.items()})
    asked = rules(*(f"{name} no worse" for name in columns))
    judgements = judge_changes(asked, matched)
    assert [judgement.p_worse for judgement in judgements] == EXACT([11 / 1024, 1 / 32, 1 / 16])
    assert [judgement.p_worse_holm for judgement in judgements] == EXACT([33 / 1024, 2 / 32, 2 / 32])
    assert [judgement.outcome for judgement in judgements] == ["fail", "pass", "pass"]
    # what could not be tested does not count, nor does a rule that is there twice
    there = snapshot_for(target(evidence([])), rules("flip@1 no worse"))
    asked = rules("flip@1 no worse", "harm no worse", "flip@1 <= 0.5", "flip@1 no worse")
    others = gate(target(evidence(range(5))), asked, there).rules
    assert others[0].p_worse_holm == others[0].p_worse == EXACT(1 / 32)
    assert [judgement.outcome for judgement in others] == ["fail", "incomparable", "pass"]


def noisy(rule: str, before: Values, now: Values, **noise: Values) -> Judgement:
    """With inputs whose reference changed its own answer, then or today."""
    metric = str(parse_rule(rule).metric)
    sides = [
        {metric: values, **({"noise_floor": noise[when]} if when in noise else {})}
        for when, values in (("then", before), ("today", now))
    ]
    return judge_changes(rules(rule), pair(*sides))[0]


def test_noise_is_set_aside_on_either_side() -> None:
    before, now = moved(300, 9, 1)
    # of the nine worse ones, two are noisy now and one was then; so was the one that is better,
    # and inputs that do not differ
    judgement = noisy(BOTH, before, now, today=ones(300, [0, 1, 50]), then=ones(300, [2, 9, 60, 61]))
    assert (judgement.set_aside, judgement.worse, judgement.better, judgement.n) == (7, 6, 0, 293)
    assert (judgement.p_worse, judgement.difference.value) == (EXACT(1 / 64), EXACT(6 / 293))


@pytest.mark.parametrize(
    ("metric", "noise", "outcome", "aside"),
    [
        ("flip@1", 300, "underpowered", 300),  # all is noise
        ("flip@1", 9, "pass", 9),  # ten of 300 are more than three in a hundred
        ("flip@1", 10, "underpowered", 10),
        ("gold_lost@5", 50, "pass", 0),  # noise is known of the first answer only
    ],
)
def test_more_noise_than_the_margin_cannot_pass_for_proof(metric: str, noise: int, outcome: str, aside: int) -> None:
    judgement = noisy(f"{metric} no worse by 0.03", np.zeros(300), np.zeros(300), today=ones(300, range(noise)))
    assert (judgement.outcome, judgement.set_aside) == (outcome, aside)
    assert (f"noise alone changes {noise} inputs" in judgement.reason) == (outcome == "underpowered")


def test_what_one_side_does_not_hold() -> None:
    there = snapshot_for(target(evidence(range(2))), [])
    bare = replace(there, values={"flip@1": there.values["flip@1"]})
    result = gate(target(evidence(range(2))), rules("ndcg@10 no worse by 0.1"), bare)
    assert result.verdict == "incomparable"
    assert "has no outcomes of this metric" in result.rules[0].reason
    # what the run itself does not know is an error: writing the baseline anew would not help
    unlabelled = target(evidence(range(2), labels=False))
    result = gate(unlabelled, rules("ndcg@10 no worse by 0.1", "flip@1 no worse"), there)
    assert (result.verdict, result.exit_code) == ("error", 2)
    assert (result.rules[0].reason, result.rules[1].outcome) == ("undefined: no relevance labels", "pass")


SLICES = {"tens": ["q1?"], "rest": ["q?", "q[2-5]?"]}


def test_a_rule_on_a_slice_sees_its_inputs_only() -> None:
    there = snapshot_for(target(evidence([]), candidate_fingerprint="other"), [])
    asked = rules("flip@1 [tens] no worse", "flip@1 [rest] no worse", "flip@1 no worse")
    judgements = gate(target(evidence(range(10, 18))), asked, there, slices=SLICES).rules
    assert [judgement.n for judgement in judgements] == [10, 50, 60]
    assert [judgement.worse for judgement in judgements] == [8, 0, 8]
    assert [judgement.p_worse for judgement in judgements] == EXACT([1 / 256, 1, 1 / 256])
    # the baseline has not the first inputs of the run, so that rows are others than before
    less = gate(target(evidence(range(10, 14))), asked[:1], there.part(range(7, 60)), slices=SLICES).rules
    assert [(judgement.n, judgement.worse) for judgement in less] == [(10, 4)]


@pytest.mark.parametrize(
    ("rule", "outcome", "reason"),
    [
        ("flip@1 <= 0.25", "pass", "within the limit"),
        ("flip@1 <= 0.2499", "fail", "above the limit"),
        ("flip@1 >= 0.2501", "fail", "below the limit"),
        ("change.ndcg@10 >= -0.1", "pass", "within the limit"),  # it is -0.092, and the reference's mean 1
        ("relative.ndcg@10 >= -0.09", "fail", "below the limit"),
    ],
)
def test_what_is_observed_decides(rule: str, outcome: str, reason: str) -> None:
    """15 of 60 inputs flip, so that nDCG@10 is 0.75 + 0.25 / log2(3), 0.908."""
    (judgement,) = gate(target(evidence(range(15))), rules(rule)).rules
    assert (judgement.outcome, judgement.reason) == (outcome, reason)
    assert (judgement.n, judgement.before, judgement.p_worse, judgement.difference) == (60, None, None, None)


@pytest.fixture
def listed(tmp_path: Path) -> Target:
    """Two TREC runs: q1 flips and q2 does not; epsilon is at least 0.1 and 0.05."""
    paths = [write_trec(tmp_path / f"{name}.trec", held) for name, held in (("a", A), ("b", B))]
    return target_of_diff(diff_runs(*(read_finished(path) for path in paths)))


@pytest.mark.parametrize(
    ("rule", "outcome", "reason"),
    [
        ("at_risk <= 0.3", "fail", "above the limit"),
        ("separation >= 2", "fail", "below the limit"),
        ("at_risk <= 0.9", "error", "undefined: only a bound is known"),
        ("coverage@0.1 >= 0.5", "error", "every item's score"),
        # two lower bounds say nothing of which is the larger
        ("at_risk no worse", "error", "undefined: only a bound is known"),
        ("flip@1 no worse", "pass", "not shown to be worse"),
    ],
)
def test_a_bound_decides_one_way_only(listed: Target, rule: str, outcome: str, reason: str) -> None:
    """at_risk is at least 0.5 and the separation ratio at most 1.75, epsilon at least 0.075."""
    (judgement,) = gate(listed, rules(rule), snapshot_for(listed, rules(rule)), slices={"all": ["*"]}).rules
    assert judgement.outcome == outcome
    assert reason in judgement.reason or "same candidate" in judgement.reason


FLIPS = {"flip@1": ones(20, range(4))}
COSINE = {"similarity": "cosine", "device": "cpu"}


@pytest.mark.parametrize(
    ("baseline", "now", "differs", "notes", "same"),
    [
        ({}, {}, "", "the candidate is that of the baseline, to the bit", True),
        # the same weights under another spec may be run in another way
        ({"spec": "minilm@W3-rtn"}, {}, "", "the baseline is of minilm@W3-rtn", False),
        (
            {"settings": COSINE, "candidate_fingerprint": "x"},
            {"settings": {**COSINE, "device": "cuda"}},
            "",
            "device differs: cpu in the baseline, cuda now",
            False,
        ),
        # what two identities differ in, test_identity.py has in full
        ({}, {"data_fingerprint": "new"}, "data: corpus (test) (digest texts in the baseline, new", None, True),
    ],
)
def test_what_makes_them_incomparable_and_what_is_a_note(
    baseline: dict[str, Any], now: dict[str, Any], differs: str, notes: str | None, same: bool
) -> None:
    matched = match(snapshot(FLIPS, **now), snapshot(FLIPS, **baseline))
    assert (len(matched.differs), matched.same_candidate) == (bool(differs), same)
    assert "".join(matched.differs).startswith(differs)
    assert notes is None or matched.notes == (notes,)


def test_inputs_of_the_same_data_that_one_has_not_are_left_out() -> None:
    now, baseline = snapshot(FLIPS), snapshot(FLIPS).part([0, 2, 5, 7, 19])
    matched = match(now, baseline)
    assert matched.differs == ()
    assert "left out: 15 only in this run ('q1', 'q3', 'q4', ...)" in matched.notes[0]
    assert matched.now.input_ids == matched.before.input_ids == ("q0", "q2", "q5", "q7", "q19")
    assert matched.now.values["flip@1"].tolist() == [1, 1, 0, 0, 0]
    # of data that is not known to be the same, or where none are in common, they are other inputs
    unknown = replace(snapshot(FLIPS), identity=replace(IDENTITY, data_fingerprint=None))
    assert match(unknown, baseline).differs[0].startswith("inputs: 15 only in this run ('q1', ")
    shuffled = now.part(np.random.default_rng(0).permutation(20))
    paired = match(shuffled, now)
    assert paired.now.input_ids == paired.before.input_ids == shuffled.input_ids


@pytest.mark.parametrize(("moved", "differs"), [(0, False), (2, False), (3, True)])
def test_another_reference_is_known_by_its_answers(moved: int, differs: bool) -> None:
    """Its weights are known to be the same: they do not tell the prompt."""
    old = [answer_of("a", "b")] * 100
    answers = [answer_of("c", "b")] * moved + old[moved:]
    now, then = (snapshot({"flip@1": ones(100, [])}, answers=held) for held in (answers, old))
    matched = match(now, then)
    moves = f"the reference gives another top-1 on {moved} of 100 inputs"
    assert any(moves in line for line in matched.differs) == differs
    assert any(moves in line for line in matched.notes) == (moved > 0 and not differs)


def on_other_data(*asked: str) -> GateResult:
    """Judge nine flips of 60 by a baseline of three on other data."""
    there = snapshot_for(target(evidence(range(3)), data_fingerprint="other"), rules(*asked))
    return gate(target(evidence(range(9))), rules(*asked), there)


def test_an_incomparable_run_is_still_held_to_its_limits() -> None:
    result = on_other_data("flip@1 no worse by 0.1", "flip@1 <= 0.5", "flip@1 no worse")
    assert (result.verdict, result.exit_code) == ("incomparable", 3)
    assert [rule.outcome for rule in result.rules] == ["incomparable", "pass", "incomparable"]
    # a limit that is broken fails whatever the baseline, and limits alone do not care about it
    assert on_other_data("flip@1 no worse", "flip@1 <= 0.1").verdict == "fail"
    alone = on_other_data("flip@1 <= 0.5")
    assert (alone.verdict, alone.differs, alone.notes, alone.baseline, alone.n_new) == ("pass", (), (), None, None)


def test_the_worst_inputs_come_first_in_any_order_of_inputs() -> None:
    there, whole = snapshot_for(target(evidence(range(3))), []), evidence(range(9))
    for seed in range(4):
        shuffled = target(whole.part(np.random.default_rng(seed).permutation(60)))
        result = gate(shuffled, rules("flip@1 no worse"), there, n_worst=7)
        listed_now = [(worst.input_id, worst.new) for worst in result.worst]
        assert listed_now == [*((f"q{row}", True) for row in range(3, 9)), ("q0", False)]


# --- limits that are judged while inputs are answered ----------------------------------------------

SPREAD = range(0, 60, 10)


def drawn(flips: Iterable[int], *texts: str, of: int = 1000, **more: Any) -> GateResult:
    """Rules on the first 60 inputs of so many."""
    run = replace(target(evidence(flips)), drawn=Drawn(n=60, of=of, seed=7))
    return gate(run, rules(*texts), **more)


def test_a_limit_is_on_the_rate_of_all_inputs_that_there_could_be() -> None:
    found = drawn(SPREAD, "flip@1 <= 0.3", "flip@1 <= 0.005", "flip@1 <= 0.12", "flip@1 >= 0.02")
    assert [rule.outcome for rule in found.rules] == ["pass", "fail", "underpowered", "pass"]
    assert (found.verdict, found.exit_code) == ("fail", 1)
    assert found.to_json()["sequential"] == {"n": 60, "of": 1000, "seed": 7}


def test_failing_shares_the_error_over_the_rules_and_passing_does_not() -> None:
    flips = [*range(40, 44)]
    alone, *_ = drawn(flips, "flip@1 <= 0.01").rules
    assert alone.p_worse is not None
    # two copies of a rule are one; a slice without an input so far counts
    both = drawn(flips, "flip@1 <= 0.01", "flip@1 <= 0.01", "flip@1 [none] <= 0.5", slices={"none": "x*"}).rules
    assert [rule.n for rule in both] == [60, 0]
    assert both[0].p_worse_holm == EXACT(2 * alone.p_worse)
    assert [rule.outcome for rule in both][1] == "underpowered"
    assert drawn([], *(f"flip@1 <= {limit}" for limit in (0.08, 0.3, 0.4, 0.5))).verdict == "pass"


def test_it_goes_on_until_every_rule_is_decided() -> None:
    few = evidence(SPREAD)
    assert settled(few, rules("flip@1 <= 0.3"))
    assert not settled(few, rules("flip@1 <= 0.3", "flip@1 <= 0.12"))
    # a rule that nothing can decide keeps nobody waiting
    unlabelled = replace(few, judgements=None)
    assert settled(unlabelled, rules("flip@1 <= 0.3", "gold_lost@1 <= 0.3"))
    # the inputs ran out: the exact test of all of them has a part of the error of its own
    assert drawn(SPREAD, "flip@1 <= 0.23").verdict == "underpowered"
    assert drawn(SPREAD, "flip@1 <= 0.22", of=60).verdict == "underpowered"
    assert drawn(SPREAD, "flip@1 <= 0.23", of=60).verdict == "pass"
