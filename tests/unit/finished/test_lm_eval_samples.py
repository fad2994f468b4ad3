from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quantdrift.errors import RunError
from quantdrift.finished.lm_eval_evidence import PairedFilter, details_of, pair_samples
from quantdrift.metrics import measure, parse_metric
from support.lm_eval_log import document, generated, logged, question, sample, text

Form = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


@pytest.fixture(params=[list, logged], ids=["in memory", "from a file"])
def form(request: pytest.FixtureRequest) -> Form:
    """The two forms of the same samples: everything holds for both."""
    found: Form = request.param
    return found


def paired(before: list[dict[str, Any]], after: list[dict[str, Any]], form: Form) -> PairedFilter:
    return pair_samples(form(before), form(after), task="t").filters["none"]


def values(of: PairedFilter, *names: str) -> list[float | None]:
    assert of.evidence is not None
    found = measure(of.evidence, [parse_metric(name) for name in names])
    return [found[name].value for name in names]


def test_a_question_with_choices(form: Form) -> None:
    before = [question(0, [-1.0, -2.0]), question(1, [-3.0, -1.0], 1), question(2, [-5.0, -4.0])]
    after = [question(0, [-3.0, -2.5]), question(1, [-3.0, -2.0], 1), question(2, [-1.0, -4.0])]
    of = paired(before, after, form)
    assert of.kind == "multiple_choice"
    assert of.doc_ids == (0, 1, 2)
    assert of.judged_by == "acc"
    # 0: right to wrong; 1: stays right; 2: wrong to right
    assert values(of, "flip@1", "harm", "benefit") == [2 / 3, 1 / 3, 1 / 3]
    assert values(of, "reference.accuracy", "accuracy", "gold_lost@1") == [2 / 3, 2 / 3, 1 / 2]
    # gaps 1, 2, 1 and epsilons 2, 1, 4: separations 1/4, 1, 1/8
    assert values(of, "separation", "at_risk", "epsilon") == [0.25, 2 / 3, 2.0]
    assert of.right_or_wrong == ["acc"]
    assert [arm.tolist() for arm in of.values["acc"]] == [[1, 1, 0], [0, 1, 1]]


def test_of_equal_choices_the_first_is_chosen_as_numpy_does(form: Form) -> None:
    before, after = [-1.0, -1.0, -1.0 - 1e-12], [-1.0 - 1e-12, -1.0, -1.0]
    of = paired([question(10, before)], [question(10, after, metrics={"acc": 0.0})], form)
    assert (np.argmax(before), np.argmax(after)) == (0, 1)
    assert values(of, "flip@1") == [1.0]  # in float32 all of them are equal


def test_ten_choices_keep_their_order(form: Form) -> None:
    same = [question(0, [-1.0] * 11, 0)]
    assert values(paired(same, same, form), "flip@1", "accuracy") == [0.0, 1.0]


@pytest.mark.parametrize(
    ("target", "right"), [(1, {"1"}), ("1", {"1"}), ([0, 2], {"0", "2"}), ("choice 2", {"2"}), (" choice 2", {"2"})]
)
def test_the_right_choice_is_told_from_any_kind_of_target(form: Form, target: Any, right: set[str]) -> None:
    same = [question(0, [-2.0, -1.0, -3.0], target, metrics={})]
    evidence = paired(same, same, form).evidence
    assert evidence is not None
    assert evidence.judgements is not None
    assert {str(evidence.item_ids[item]) for item in evidence.judgements.of(0)} == right


def test_a_reading_of_the_target_that_contradicts_the_accuracy_is_not_taken(form: Form) -> None:
    # the target "1" is the text of the first choice here, not the number of the second
    requests = [("two minus one", " 1"), ("two minus one", " 0")]
    answers = [(-1.0, False), (-2.0, False)]
    same = [sample(0, requests, answers, "1", {"acc": 1.0})]
    assert values(paired(same, same, form), "accuracy") == [1.0]


@pytest.mark.parametrize("target", ["1e999", "-1e999", "9" * 5_000, "(" * 5_000, "0.5", "[1e999]"])
def test_a_target_that_is_no_choice_names_none(form: Form, target: str) -> None:
    same = [question(0, [-2.0, -1.0, -3.0], target, metrics={})]
    assert paired(same, same, form).judged_by is None


def test_two_contexts_of_which_one_is_right_are_judged_by_the_accuracy(form: Form) -> None:
    # as winogrande has it: the target is what follows in both, and does not say which is right
    requests = [("the trophy is", " big"), ("the case is", " big")]
    before = [sample(0, requests, [(-2.0, False), (-1.0, False)], "big", {"acc": 0.0})]
    after = [sample(0, requests, [(-1.0, False), (-2.0, False)], "big", {"acc": 1.0})]
    assert values(paired(before, after, form), "flip@1", "benefit") == [1.0, 1.0]


def test_where_the_right_choice_cannot_be_told_there_is_no_judgement(form: Form) -> None:
    same = [question(0, [-2.0, -1.0, -3.0], "none of these", metrics={"acc": 0.0})]
    of = paired(same, same, form)
    assert of.judged_by is None
    assert values(of, "flip@1", "harm") == [0.0, None]


def test_with_mutual_information_only_the_prompted_half_are_choices(form: Form) -> None:
    requests = [("q", " a"), ("q", " b"), ("", " a"), ("", " b")]
    scores = [(-1.0, False), (-2.0, False), (-0.1, False), (-9.0, False)]
    same = [sample(0, requests, scores, 0, {"acc": 1.0, "acc_mutual_info": 0.0})]
    of = paired(same, same, form)
    assert of.evidence is not None
    assert of.evidence.n_items.tolist() == [2]
    assert values(of, "accuracy") == [1.0]


def test_four_choices_without_a_prompt_are_four(form: Form) -> None:
    same = [sample(0, [("", f" {n}") for n in "abcd"], [(-1.0, False)] * 4, 0, {"acc": 1.0})]
    evidence = paired(same, same, form).evidence
    assert evidence is not None
    assert evidence.n_items.tolist() == [4]


def test_one_text_that_greedy_decoding_gives_or_not(form: Form) -> None:
    before = [text(0, -1.0, True), text(1, -2.0, True), text(2, -3.0, False)]
    after = [text(0, -1.5, True), text(1, -1.0, False), text(2, -3.0, False)]
    of = paired(before, after, form)
    assert of.kind == "loglikelihood"
    assert values(of, "flip@1", "harm", "benefit", "separation") == [1 / 3, 1 / 3, 0.0, None]
    change = of.values["loglikelihood"][1] - of.values["loglikelihood"][0]
    assert change.tolist() == [-0.5, 1.0, 0.0]
    # what lm-eval logs as `perplexity` is the log-likelihood, and is not shown as another thing
    assert sorted(of.values) == ["acc", "loglikelihood"]
    assert of.right_or_wrong == ["acc"]


def test_a_document_whose_perplexity_is_measured_has_no_answer(form: Form) -> None:
    of = paired([document(0, -70.0)], [document(0, -71.5)], form)
    assert of.kind == "rolling"
    assert of.evidence is None
    assert of.reason is not None
    assert "perplexity" in of.reason
    assert list(of.values) == ["loglikelihood"]  # (-70.0, 7) is no number of the document's own
    assert [arm.tolist() for arm in of.values["loglikelihood"]] == [[-70.0], [-71.5]]


def test_generated_text(form: Form) -> None:
    before = [generated(0, "4", 1.0), generated(1, "5", 0.0), generated(2, "-7.5", 0.0)]
    after = [generated(0, "3", 0.0), generated(1, "4", 1.0), generated(2, "-7.5", 0.0)]
    of = paired(before, after, form)
    assert of.kind == "generate_until"  # although a number could be a log-likelihood
    assert of.judged_by == "exact_match"
    assert values(of, "flip@1", "harm", "benefit") == [2 / 3, 1 / 3, 1 / 3]


def test_several_generated_texts_are_one_answer(form: Form) -> None:
    before, after = [generated(0, ["4", "5"], 1.0)], [generated(0, ["4", "6"], 1.0)]
    assert values(paired(before, after, form), "flip@1", "harm") == [1.0, 0.0]


def test_a_judge_that_goes_by_more_than_the_answer_is_no_judge(form: Form) -> None:
    of = paired([generated(0, "4", 1.0)], [generated(0, "4", 0.0)], form)
    assert of.judged_by is None
    assert values(of, "flip@1", "harm") == [0.0, None]


def test_filters_are_told_apart(form: Form) -> None:
    before = [generated(0, "4", 1.0, "strict"), generated(0, "= 4", 1.0, "flexible")]
    after = [generated(0, "5", 0.0, "strict"), generated(0, "= 4", 1.0, "flexible")]
    filters = pair_samples(form(before), form(after), task="t").filters
    assert list(filters) == ["strict", "flexible"]
    assert [values(of, "flip@1") for of in filters.values()] == [[1.0], [0.0]]


def test_the_order_of_documents_does_not_matter(form: Form) -> None:
    before = [question(n, [-1.0, -2.0]) for n in range(12)]
    after = [question(n, [-1.0, -2.0 + 3.0 * (n == 7)]) for n in reversed(range(12))]
    of = paired(before, after, form)
    assert of.doc_ids == tuple(range(12))
    assert of.evidence is not None
    flips = parse_metric("flip@1").per_input(of.evidence)
    assert np.flatnonzero(flips).tolist() == [7]


def test_a_log_likelihood_that_is_not_finite_costs_the_evidence(form: Form) -> None:
    of = paired([question(0, [-1.0, float("-inf")])], [question(0, [-1.0, -2.0])], form)
    assert of.evidence is None
    assert of.reason is not None
    assert "not finite" in of.reason


def test_a_metric_that_some_documents_lack_is_undefined_there(form: Form) -> None:
    before = [question(0, [-1.0, -2.0]), question(1, [-1.0, -2.0], metrics={})]
    of = paired(before, before, form)
    assert np.isnan(of.values["acc"][0]).tolist() == [False, True]
    assert of.right_or_wrong == []


def test_what_a_pair_has_noted_of_itself_is_no_metric_of_the_task(form: Form) -> None:
    same = [question(0, [-1.0, -2.0], metrics={"acc": 1.0, "drift_flip_at_1": 0.0})]
    assert list(paired(same, same, form).values) == ["acc"]


def test_numbers_of_numpy_are_numbers() -> None:
    same = [question(0, [-1.0, -2.0], metrics={"acc": np.float32(1), "f1": (0, np.int64(1))})]
    assert list(paired(same, same, list).values) == ["acc"]


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"doc_id": 3},
        "text",
        {**question(0, [-1.0]), "doc_id": "x"},
        {**question(0, [-1.0, -2.0]), "filtered_resps": [[10**400, False], [0.5, False]]},
        {**question(0, [-1.0, -2.0]), "acc": 10**400, "metrics": ["acc"]},
    ],
)
def test_what_is_no_sample_is_refused(broken: Any) -> None:
    with pytest.raises(RunError, match="expected a sample of lm-eval"):
        pair_samples([broken], [broken], task="t")


def test_a_text_held_for_impossible_has_no_change(form: Form) -> None:
    before = [text(n, -2.0, greedy=True) for n in range(2)]
    after = [text(0, -3.0, greedy=True), text(1, float("-inf"), greedy=False)]
    of = paired(before, after, form)
    assert np.isnan(of.values["loglikelihood"][1]).tolist() == [False, True]
    json.dumps(details_of(of, warn=pytest.fail), allow_nan=False)


def test_numbers_as_choices_have_no_right_one_where_nothing_tells_which_reading_is_meant(form: Form) -> None:
    asked = [("one less than one?", choice) for choice in (" 1", " 0")]
    scores = [(-1.0, False), (-2.0, False)]
    same = [sample(0, asked, scores, "0", {"acc_norm": 0.0})]  # is the second right, or number 0?
    of = paired(same, same, form)
    assert of.evidence is not None
    assert of.evidence.judgements is None
    told = [sample(0, asked, scores, "0", {"acc": 0.0})]
    of = paired(told, told, form)
    assert values(of, "accuracy") == [0.0]
