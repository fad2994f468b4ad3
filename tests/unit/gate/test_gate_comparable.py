"""Whether a run and a baseline belong together: what differs, what to know, which inputs remain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quantdrift.gate.baseline import Snapshot, answer_of
from quantdrift.gate.judge import GateResult, Matched, gate, match, snapshot_for
from support.gate_samples import IDENTITY, evidence, ones, rules, snapshot, target

FLIPS = {"flip@1": ones(20, range(4))}


def matched(baseline: dict[str, Any], now: dict[str, Any]) -> Matched:
    return match(snapshot(FLIPS, **now), snapshot(FLIPS, **baseline))


def test_the_same_is_comparable() -> None:
    found = matched({}, {})
    assert found.differs == ()
    assert found.notes == ("the candidate's weights are those of the baseline, to the bit",)
    assert found.same_candidate
    assert found.n_answers_changed == 0
    assert found.now.input_ids == found.before.input_ids


@pytest.mark.parametrize(
    ("baseline", "now", "told"),
    [
        (
            {"model_fingerprint": "a" * 40},
            {"model_fingerprint": "b" * 40},
            "reference model: minilm (digest aaaaaaaaaaaa in the baseline, bbbbbbbbbbbb now)",
        ),
        (
            {"model_fingerprint": "a", "model": "bge"},
            {"model_fingerprint": "b"},
            "reference model: bge, now minilm (digest a in the baseline, b now)",
        ),
        (
            {"data_fingerprint": "old"},
            {"data_fingerprint": "new"},
            "data: corpus (test) (digest old in the baseline, new now): ids, texts or labels are "
            "others, or their order",
        ),
        (
            {"settings": {"similarity": "cosine"}},
            {"settings": {"similarity": "dot"}},
            "setting similarity: cosine in the baseline, dot now",
        ),
        ({"settings": {}}, {"settings": {"prompt": "query: "}}, "setting prompt: nothing in the baseline, query:  now"),
        (
            {"settings": {"shortlist": {"digest": "0123456789abcdef", "top": 10}}},
            {"settings": {}},
            "setting shortlist: digest 0123456789ab in the baseline, nothing now",
        ),
    ],
)
def test_what_makes_them_incomparable(baseline: dict[str, Any], now: dict[str, Any], told: str) -> None:
    assert matched(baseline, now).differs == (told,)


def test_other_definitions_of_the_metrics_make_them_incomparable() -> None:
    found = match(replace(snapshot(FLIPS), definitions=2), snapshot(FLIPS))
    assert found.differs == ("definitions of the metrics: version 1 in the baseline, version 2 now",)


def test_all_that_differs_is_listed() -> None:
    found = matched(
        {"model_fingerprint": "a", "data_fingerprint": "a", "settings": {"one": 1, "two": 2}},
        {"model_fingerprint": "b", "data_fingerprint": "b", "settings": {"one": 2, "two": 1}},
    )
    assert len(found.differs) == 4


@pytest.mark.parametrize("side", ["baseline", "now"])
@pytest.mark.parametrize("what", ["model_fingerprint", "data_fingerprint"])
def test_a_digest_that_one_side_has_not_tells_nothing(side: str, what: str) -> None:
    sides: dict[str, dict[str, Any]] = {"baseline": {}, "now": {}, side: {what: None}}
    assert matched(**sides).differs == ()


def test_another_scheme_is_a_note() -> None:
    found = matched({"spec": "minilm@W3-rtn", "candidate_fingerprint": "other"}, {})
    assert found.differs == ()
    assert found.notes == ("the baseline is of minilm@W3-rtn",)
    assert not found.same_candidate
    # nor are the same weights under another spec, as they may be run in another way
    assert not matched({"spec": "minilm@W3-rtn"}, {}).same_candidate
    # the same spec made into other weights (another library, another calibration) is no news
    assert matched({"candidate_fingerprint": "other"}, {}).notes == ()
    unseen = matched({"candidate_fingerprint": None}, {"candidate_fingerprint": None})
    assert (unseen.notes, unseen.same_candidate) == ((), False)


def test_other_software_is_a_note() -> None:
    old = {"device": "cpu", "torch": "2.5", "probe": {"digest": "0123456789abcdef"}}
    found = matched({"settings": old}, {"settings": {"device": "cuda", "torch": "2.5"}})
    assert found.differs == ()
    assert found.notes[1:] == (
        "device differs: cpu in the baseline, cuda now",
        "probe differs: digest 0123456789ab in the baseline, nothing now",
    )


def test_inputs_of_the_same_data_that_one_has_not_are_left_out() -> None:
    now = snapshot(FLIPS)
    baseline = snapshot(FLIPS).part([0, 2, 5, 7, 19])
    found = match(now, baseline)
    assert found.differs == ()
    assert found.notes[0] == (
        "inputs that only one of the two has are left out: 15 only in this run ('q1', 'q3', 'q4', ...)"
    )
    assert found.now.input_ids == found.before.input_ids == ("q0", "q2", "q5", "q7", "q19")
    assert found.now.values["flip@1"].tolist() == [1, 1, 0, 0, 0]
    both = match(now.part(range(12)), snapshot(FLIPS).part(range(10, 20)))
    assert both.notes[0].endswith(
        "10 only in this run ('q0', 'q1', 'q2', ...), 8 only in the baseline ('q12', 'q13', 'q14', ...)"
    )


@pytest.mark.parametrize("digests", [(None, None), ("texts", None), (None, "texts")])
def test_other_inputs_of_unknown_data_make_them_incomparable(digests: tuple[str | None, str | None]) -> None:
    now = replace(snapshot(FLIPS), identity=replace(IDENTITY, data_fingerprint=digests[0]))
    there = replace(snapshot(FLIPS), identity=replace(IDENTITY, data_fingerprint=digests[1]))
    found = match(now, there.part(range(17)))
    assert found.differs == ("inputs: 3 only in this run ('q17', 'q18', 'q19')",)


def test_no_input_in_common_is_never_comparable() -> None:
    one, other = (snapshot(FLIPS).part(rows) for rows in (range(10), range(10, 20)))
    assert match(one, other).differs == (
        "inputs: 10 only in this run ('q0', 'q1', 'q2', ...), 10 only in the baseline ('q10', 'q11', 'q12', ...)",
    )


def test_rows_are_paired_by_name() -> None:
    rng = np.random.default_rng(0)
    values = {"ndcg@10": rng.random(50)}
    shuffled = snapshot(values).part(rng.permutation(50))
    found = match(shuffled, snapshot(values))
    assert found.now.input_ids == shuffled.input_ids
    np.testing.assert_array_equal(found.now.values["ndcg@10"], found.before.values["ndcg@10"])


def answered(moved: int, *, seen: bool, n: int = 100) -> Matched:
    """The reference's first answer is another one on some inputs."""
    digest = "reference weights" if seen else None
    flips = {"flip@1": ones(n, [])}
    old = [answer_of("a", "b")] * n
    new = [answer_of("c", "b")] * moved + old[moved:]
    return match(
        snapshot(flips, answers=new, model_fingerprint=digest), snapshot(flips, answers=old, model_fingerprint=digest)
    )


@pytest.mark.parametrize(
    ("seen", "why"), [(False, "or the two runs are swapped"), (True, "another prompt, length or pooling")]
)
def test_another_reference_is_known_by_its_answers(seen: bool, why: str) -> None:
    """Its weights may be known to be the same: they do not tell the prompt."""
    assert answered(0, seen=seen).differs == ()
    two = answered(2, seen=seen)
    assert two.differs == ()
    assert two.notes[0] == (
        "the reference gives another first answer on 2 of 100 inputs than when the baseline was made"
    )
    three = answered(3, seen=seen)
    assert three.differs == (
        f"reference: the reference gives another first answer on 3 of 100 inputs, which is another model ({why})",
    )


def test_answers_that_the_candidate_changed_are_counted() -> None:
    old = [answer_of("a", "a"), answer_of("a", "b"), answer_of("a", "b"), answer_of(None, None)]
    new = [answer_of("a", "b"), answer_of("a", "a"), answer_of("a", "c"), answer_of("a", None)]
    flips = {"flip@1": ones(4, [])}
    found = match(snapshot(flips, answers=new), snapshot(flips, answers=old))
    assert found.n_answers_changed == 3
    assert found.differs[0].startswith("reference: the reference gives another first answer on 1 of")


def gated(now: Snapshot | None = None, **baseline: Any) -> GateResult:
    asked = rules("flip@1 no worse by 0.1", "flip@1 <= 0.5", "flip@1 no worse")
    there = snapshot_for(target(evidence(range(3)), **baseline), asked)
    return gate(target(evidence(range(9))), asked, there)


def test_an_incomparable_run_is_still_held_to_its_limits() -> None:
    result = gated(data_fingerprint="other")
    assert result.verdict == "incomparable"
    assert [each.outcome for each in result.judgements] == ["incomparable", "pass", "incomparable"]
    assert result.exit_code == 3
    # nothing is called new beside a baseline that is not of the same
    assert (result.n_new, result.n_answers_changed) == (None, None)
    assert {each.new for each in result.worst} == {None}
    assert result.baseline is not None
    fine = gated()
    assert fine.verdict == "fail"
    assert fine.n_new == 6
    assert fine.n_answers_changed == 6
    assert sum(each.new is True for each in fine.worst) == 6


def test_a_broken_limit_fails_whatever_the_baseline() -> None:
    there = snapshot_for(target(evidence(range(3)), data_fingerprint="other"), rules("flip@1 no worse"))
    asked = rules("flip@1 no worse", "flip@1 <= 0.1")
    result = gate(target(evidence(range(9))), asked, there)
    assert (result.verdict, result.exit_code) == ("fail", 1)


def test_limits_alone_do_not_care_about_the_baseline() -> None:
    there = snapshot_for(target(evidence(range(3)), data_fingerprint="other"), rules("flip@1 no worse"))
    result = gate(target(evidence(range(9))), rules("flip@1 <= 0.5"), there)
    assert (result.verdict, result.differs, result.notes) == ("pass", (), ())
    assert (result.baseline, result.n_new, result.n_answers_changed) == (None, None, None)
    assert {each.new for each in result.worst} == {None}
    assert [each.rule for each in result.judgements] == rules("flip@1 <= 0.5")
