"""Two runs of lm-eval on one task: what is joined, what an answer is, and the figures of it."""

import math
from typing import Any

import pytest

from quantdrift.base.errors import RunError
from quantdrift.finished.lm_eval_evidence import PairedFilter, medians_of, pair_samples, per_document, scores_of
from quantdrift.metrics import measure, parse_metric
from support.lm_eval_log import logged, question, sample


def text(doc_id: int, loglikelihood: float, greedy: bool) -> dict[str, Any]:
    metrics = {"acc": int(greedy), "perplexity": loglikelihood}
    answers = [(loglikelihood, greedy)]
    return sample(doc_id, [(f"prompt {doc_id}", " word")], answers, "word", metrics)


def document(doc_id: int, loglikelihood: float) -> dict[str, Any]:
    metrics = {"word_perplexity": (loglikelihood, 7)}
    return sample(doc_id, [(f"document {doc_id}",)], [loglikelihood], f"document {doc_id}", metrics)


def generated(doc_id: int, answer: Any, right: float, filter_name: str = "none") -> dict[str, Any]:
    settings = {"until": ["\n"], "do_sample": False}
    return sample(doc_id, [(f"sum {doc_id}", settings)], [answer], "4", {"exact_match": right}, filter_name=filter_name)


Samples = list[dict[str, Any]]
BEFORE = [question(0, [-1.0, -2.0]), question(1, [-3.0, -1.0], 1), question(2, [-5.0, -4.0])]
AFTER = [question(0, [-3.0, -2.5]), question(1, [-3.0, -2.0], 1), question(2, [-1.0, -4.0])]
INF = math.inf


both_forms = pytest.mark.parametrize("form", [list, logged], ids=["in memory", "from a file"])
"""Everything holds for the two forms of the same samples."""


def paired(before: Samples, after: Samples) -> PairedFilter:
    return pair_samples(before, after, task="t")["none"]


def values(of: PairedFilter, *names: str) -> list[float | None]:
    assert of.evidence is not None
    estimates = measure(of.evidence, [parse_metric(name) for name in names])
    return [estimates[name].value for name in names]


TWO_CONTEXTS = [("the trophy is", " big"), ("the case is", " big")]
NUMBERS = [("one less than one?", " 1"), ("one less than one?", " 0")]
SCORES = [(-1.0, False), (-2.0, False)]
RATES = ("flip@1", "harm", "benefit")


@pytest.mark.parametrize(
    ("before", "after", "judged_by", "names", "expected"),
    [
        # 0: right to wrong; 1: stays right; 2: wrong to right
        (BEFORE, AFTER, "acc", RATES, [2 / 3, 1 / 3, 1 / 3]),
        (BEFORE, AFTER, "acc", ("reference.accuracy", "accuracy", "gold_lost@1"), [2 / 3, 2 / 3, 1 / 2]),
        # gaps 1, 2, 1 and epsilons 2, 1, 4: separations 1/4, 1, 1/8
        (BEFORE, AFTER, "acc", ("separation", "at_risk", "epsilon"), [0.25, 2 / 3, 2.0]),
        # of equal choices the first is chosen, as numpy does; in float32 all of these are equal
        (
            [question(10, [-1.0, -1.0, -1.0 - 1e-12])],
            [question(10, [-1.0 - 1e-12, -1.0, -1.0], metrics={"acc": 0.0})],
            "acc", ("flip@1",), [1.0],
        ),
        ([question(0, [-1.0] * 11)], [question(0, [-1.0] * 11)], "acc", ("flip@1", "accuracy"), [0.0, 1.0]),
        # the target "1" is the text of the first choice here, not the number of the second
        *[([sample(0, NUMBERS, SCORES, "1", {"acc": 1.0})],) * 2 + ("acc", ("accuracy",), [1.0])],
        # is the second right, or number 0? only an accuracy tells
        *[([sample(0, NUMBERS, SCORES, "0", {"acc_norm": 0.0})],) * 2 + (None, ("accuracy",), [None])],
        *[([sample(0, NUMBERS, SCORES, "0", {"acc": 0.0})],) * 2 + ("acc", ("accuracy",), [0.0])],
        # as winogrande has it: the target is what follows in both, and does not say which is right
        (
            [sample(0, TWO_CONTEXTS, [(-2.0, False), (-1.0, False)], "big", {"acc": 0.0})],
            [sample(0, TWO_CONTEXTS, SCORES, "big", {"acc": 1.0})],
            "acc", ("flip@1", "benefit"), [1.0, 1.0],
        ),
        *[([question(0, [-2.0, -1.0, -3.0], "none", metrics={"acc": 0.0})],) * 2 + (None, RATES[:2], [0.0, None])],
        # one text, that greedy decoding gives or not
        (
            [text(0, -1.0, True), text(1, -2.0, True), text(2, -3.0, False)],
            [text(0, -1.5, True), text(1, -1.0, False), text(2, -3.0, False)],
            "acc", (*RATES, "separation"), [1 / 3, 1 / 3, 0.0, None],
        ),
        # generated text, although a number could be a log-likelihood; of several the whole
        (
            [generated(0, "4", 1.0), generated(1, "5", 0.0), generated(2, "-7.5", 0.0)],
            [generated(0, "3", 0.0), generated(1, "4", 1.0), generated(2, "-7.5", 0.0)],
            "exact_match", RATES, [2 / 3, 1 / 3, 1 / 3],
        ),
        ([generated(0, ["4", "5"], 1.0)], [generated(0, ["4", "6"], 1.0)], "exact_match", RATES[:2], [1.0, 0.0]),
        # a judge that goes by more than the answer is none
        ([generated(0, "4", 1.0)], [generated(0, "4", 0.0)], None, RATES[:2], [0.0, None]),
    ],
)  # fmt: skip
@both_forms
def test_answers_by_hand(
    *, form: Any, before: Samples, after: Samples, judged_by: str | None, names: Any, expected: Any
) -> None:
    of = paired(form(before), form(after))
    assert of.judged_by == judged_by
    assert values(of, *names) == expected


@pytest.mark.parametrize(
    ("target", "right"), [(1, {"1"}), ("1", {"1"}), ([0, 2], {"0", "2"}), ("choice 2", {"2"}), (" choice 2", {"2"})]
)
def test_the_right_choice_is_told_from_any_kind_of_target(target: Any, right: set[str]) -> None:
    evidence = paired(*[logged([question(0, [-2.0, -1.0, -3.0], target, metrics={})])] * 2).evidence
    assert evidence is not None
    assert evidence.judgements is not None
    assert {str(evidence.item_ids[item]) for item in evidence.judgements.of(0)} == right


@pytest.mark.parametrize("target", ["1e999", "-1e999", "9" * 5_000, "(" * 5_000, "0.5", "[1e999]"])
def test_a_target_that_is_no_choice_names_none(target: str) -> None:
    assert paired(*[[question(0, [-2.0, -1.0, -3.0], target, metrics={})]] * 2).judged_by is None


@both_forms
def test_where_there_is_no_answer_there_is_a_reason(form: Any) -> None:
    rolling = paired(form([document(0, -70.0)]), form([document(0, -71.5)]))
    infinite = paired([question(0, [-1.0, -INF])], [question(0, [-1.0, -2.0])])
    for of, why in ((rolling, "perplexity"), (infinite, "not finite")):
        assert of.evidence is None
        assert why in (of.reason or "")
    # (-70.0, 7) is no number of the document's own
    assert {name: [arm.tolist() for arm in arms] for name, arms in rolling.values.items()} == {
        "loglikelihood": [[-70.0], [-71.5]]
    }


def questions(n: int = 5, **hashes: str) -> Samples:
    return [question(number, [-1.0, -2.0], **hashes) for number in range(n)]


BARE = [{key: value for key, value in asked.items() if not key.endswith("_hash")} for asked in questions()]
OTHER_CHOICE = [*questions(2), {**question(2, [-1.0, -2.0]), "arguments": [("question 2", " choice 0"), ("x", " y")]}]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (questions(5), questions(9)[3:], r"t: .*same documents.*3 of 5 only in the ref.*\(0, 1, 2\); 4 of 6 only in"),
        (questions(), questions(doc_hash="other"), "differ in doc of 5 documents"),
        (questions(3), OTHER_CHOICE, r"choices or settings of generation of 1 documents \(2\)"),
        ([generated(0, "4", 1.0, "strict")], [generated(0, "4", 1.0, "loose")], "same filters"),
        (questions(1) * 2, questions(1), "document 0 occurs twice"),
    ],
)
def test_runs_on_other_questions_are_refused(before: Samples, after: Samples, message: str) -> None:
    for form in (list, logged):
        with pytest.raises(RunError, match=message):
            paired(form(before), form(after))
    assert paired(BARE, questions()).doc_ids == (0, 1, 2, 3, 4)  # by their requests


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {**question(0, [-1.0]), "doc_id": "x"},
        {**question(0, [-1.0]), "arguments": []},
        {**question(0, [-1.0, -2.0]), "filtered_resps": [[10**400, False], [0.5, False]]},
        {**question(0, [-1.0, -2.0]), "acc": 10**400, "metrics": ["acc"]},
    ],
)
def test_what_is_no_sample_is_refused(broken: Any) -> None:
    with pytest.raises(RunError, match="sample of lm-eval"):
        pair_samples([broken], [broken], task="t")


def listed(columns: dict[str, Any]) -> dict[str, list[float]]:
    return {name: column.tolist() for name, column in columns.items()}


def test_figures_of_every_document() -> None:
    of = paired(BEFORE, AFTER)
    assert listed(per_document(of)) == {
        "drift_flip_at_1": [1, 0, 1],
        "drift_at_risk": [1, 0, 1],
        "drift_right_to_wrong_acc": [1, 0, 0],
        "drift_wrong_to_right_acc": [0, 0, 1],
    }
    scores = {"drift_gap": [1, 2, 1], "drift_epsilon": [2, 1, 4], "drift_separation": [0.25, 1, 0.125]}
    assert listed(scores_of(of)) == scores
    of = paired([text(0, -1.0, True), text(1, -4.0, True)], [text(0, -3.0, False), text(1, -3.5, True)])
    assert listed(per_document(of)) == {
        "drift_flip_at_1": [1, 0],
        "drift_right_to_wrong_acc": [1, 0],
        "drift_wrong_to_right_acc": [0, 0],
        "drift_change_loglikelihood": [-2, 0.5],
    }
    assert {name: median.value for name, median in medians_of([of]).items()} == {"drift_epsilon_median": 1.25}
    of = paired([generated(0, "4", 1.0)], [generated(0, "3", 0.0)])
    assert (medians_of([of]), scores_of(of)) == ({}, {})
