"""Two rankings, or answers, of every input as evidence: by hand, and what cannot be compared."""

from typing import Any

import numpy as np
import pytest

from quantdrift.base.errors import RunError
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Evidence
from quantdrift.finished.rankings import evidence_of_answers, evidence_of_rankings
from quantdrift.metrics import MetricError, parse_metric
from quantdrift.metrics.keys import drift_keys
from quantdrift.statistics.conformal import StabilityError, observe

REFERENCE = {"q1": {"a": 3.0, "b": 2.0, "c": 1.0}, "q2": {"a": 1.0, "b": 0.5, "c": 0.0}}
CANDIDATE = {"q1": {"a": 2.0, "b": 2.5, "c": 1.0}, "q2": {"a": 1.25, "b": 0.5, "c": 0.25}}


def value(evidence: Evidence, name: str) -> float | None:
    return parse_metric(name)(evidence).value


def test_lists_that_were_cut_short_give_bounds_and_say_so() -> None:
    reference = {name: dict(list(scores.items())[:2]) for name, scores in REFERENCE.items()}
    evidence = evidence_of_rankings(reference, {"q1": {"b": 2.5, "a": 2.0}, "q2": {"a": 1.25, "b": 0.5}})
    assert (evidence.exact, evidence.depth, value(evidence, "flip@1")) == (False, 2, 0.5)
    bounds = dict.fromkeys(("epsilon", "S", "at_risk"), "lower") | {"separation": "upper", "stable": "upper"}
    for name in (*bounds, "gap", "candidate_gap", "flip@1"):
        assert parse_metric(name)(evidence).bound == bounds.get(name), name
    assert "truncated" in str(parse_metric("coverage@0.10")(evidence).reason)
    for name in ("violation@0.10", "set_kept@3"):
        with pytest.raises(MetricError, match=r"truncated|2 ranks|keep 2|2 deep"):
            parse_metric(name).per_input(evidence)
    with pytest.raises(StabilityError, match="some scores"):
        observe(evidence, "S")
    keys = drift_keys(evidence, [parse_metric(name) for name in ("epsilon", "separation", "flip@1")], warn=pytest.fail)
    assert {"drift_epsilon_median_at_least", "drift_separation_median_at_most", "drift_flip_at_1"} <= keys.keys()


def test_lists_are_compared_as_deep_as_both_go_and_ties_break_alike() -> None:
    deep = {"q": {str(rank): 10.0 - rank for rank in range(9)}}
    shallow = {"q": {str(rank): 10.5 - rank for rank in range(3)}}
    made = ((deep, shallow, 200), (deep, deep, 200), (deep, deep, 4))
    assert [evidence_of_rankings(a, b, depth=depth).depth for a, b, depth in made] == [3, 9, 4]
    tied = {"q": {"10": 1.0, "2": 1.0}}
    for position, first in ((None, "10"), (int, "2")):
        evidence = evidence_of_rankings(tied, tied, complete=True, position=position)
        tops = (evidence.reference_top, evidence.candidate_top)
        assert [evidence.item_ids[top.items[0, 0]] for top in tops] == [first, first]


def test_answers_flip_and_are_right_or_wrong() -> None:
    reference = {"q1": "4", "q2": "7", "q3": "9", "q4": "1"}
    candidate = {"q1": "4", "q2": "8", "q3": "10", "q4": "2"}
    right = ({"q1": True, "q2": True, "q3": False, "q4": False}, {"q1": True, "q2": False, "q3": True, "q4": False})
    evidence = evidence_of_answers(reference, candidate, right=right)
    assert [value(evidence, name) for name in ("flip@1", "harm", "benefit", "accuracy")] == [0.75, 0.25, 0.25, 0.5]
    for name in ("epsilon", "separation", "S", "coverage@0.10"):
        assert parse_metric(name)(evidence).reason == "the answers have no scores"
    # two answers can both be right, which would halve the recall of either
    assert parse_metric("recall@1")(evidence).reason == "the answers are no rankings"
    with pytest.raises(RunError, match="right in one only"):
        evidence_of_answers({"q": "a"}, {"q": "a"}, right=({"q": True}, {"q": False}))


BIG = [float("nan"), float("inf"), 1e39, -1e39, 10**400]
"""What no 32-bit float holds."""


@pytest.mark.parametrize(
    ("reference", "candidate", "complete", "message"),
    [
        ({"q": {"a": 1.0}}, {"p": {"a": 1.0}}, False, r"1 of 1 only in the reference \(q\); 1 of 1 only in"),
        ({"q": {"a": 1.0}}, {"q": {"b": 1.0}}, True, "score the same items"),
        ({"q": {}}, {"q": {}}, False, "none of the inputs has an item"),
        ({}, {}, False, "there are no inputs"),
        *[({"q": {"a": 1.0}}, {"q": {"a": score}}, False, "the candidate's score of 'a' for 'q'") for score in BIG],
    ],
)
def test_what_cannot_be_compared_is_refused(reference: Any, candidate: Any, complete: bool, message: str) -> None:
    with pytest.raises(RunError, match=message):
        evidence_of_rankings(reference, candidate, complete=complete)


def test_an_input_whose_list_ends_at_rank_1_does_not_spoil_a_bound() -> None:
    names = ("q1", "q2", "q3")
    # q1 alone is at risk: the second document comes near in one arm
    before = {name: {"a": 1.0, "b": 0.5} for name in names}
    after = {name: {"a": 1.0, "b": 0.9 if name == "q1" else 0.6} for name in names}
    exact = evidence_of_rankings(before, after, complete=True)
    cut = evidence_of_rankings(*({**arm, "q2": {"a": 1.0}, "q3": {"a": 1.0}} for arm in (before, after)))
    assert perturbation.at_risk(cut).tolist() == [1.0, 0.0, 0.0]
    assert perturbation.cut_separation(cut, 1)[1:].tolist() == [np.inf, np.inf]
    at_risk, separation = (parse_metric(name)(cut) for name in ("at_risk", "separation"))
    assert (at_risk.value, at_risk.n, at_risk.bound) == (value(exact, "at_risk"), 3, "lower")
    assert (separation.value, separation.bound) == (np.inf, "upper")
    assert "ends too early" in str(separation.reason)
