from __future__ import annotations

from typing import Any

import pytest

from quantdrift.errors import RunError
from quantdrift.finished.lm_eval_evidence import pair_samples
from support.lm_eval_log import generated, logged, question

SCORES = [-1.0, -2.0]


def questions(n: int = 5, **hashes: str) -> list[dict[str, Any]]:
    return [question(number, SCORES, **hashes) for number in range(n)]


def refusal(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    with pytest.raises(RunError) as caught:
        pair_samples(before, after, task="piqa")
    with pytest.raises(RunError) as again:
        pair_samples(logged(before), logged(after), task="piqa")
    assert str(caught.value) == str(again.value)
    return str(caught.value)


def test_other_documents_are_listed() -> None:
    told = refusal(questions(5), questions(9)[3:])
    assert told.startswith("piqa: expected the same documents in both runs")
    assert "3 of 5 only in the reference (0, 1, 2)" in told
    assert "4 of 6 only in the candidate (5, 6, 7, 8)" in told


@pytest.mark.parametrize(
    ("name", "shown"), [("doc_hash", "content"), ("prompt_hash", "prompt"), ("target_hash", "target")]
)
def test_what_differs_in_the_questions_is_named(name: str, shown: str) -> None:
    told = refusal(questions(), questions(**{name: "other"}))
    assert f"they differ in {shown} of 5 of 5 documents (0, 1, 2, 3, 4)" in told
    assert "--num_fewshot" in told


def test_other_choices_under_the_same_prompt_differ() -> None:
    other = questions()
    other[2]["arguments"] = [("question 2", " choice 0"), ("question 2", " something else")]
    assert "choices or settings of generation of 1 of 5 documents (2)" in refusal(questions(), other)


def test_other_settings_of_generation_differ() -> None:
    other = [generated(0, "4", 1.0)]
    other[0]["arguments"] = [("sum 0", {"until": ["\n"], "do_sample": True})]
    assert "settings of generation" in refusal([generated(0, "4", 1.0)], other)


def test_logs_without_hashes_are_compared_by_their_requests() -> None:
    bare = [{k: v for k, v in own.items() if not k.endswith("_hash")} for own in questions()]
    assert pair_samples(bare, questions(), task="piqa").filters["none"].doc_ids == (0, 1, 2, 3, 4)
    other = [{**own, "arguments": [("new", " a"), ("new", " b")]} for own in bare]
    assert "they differ in" in refusal(bare, other)


def test_other_filters_differ() -> None:
    told = refusal([generated(0, "4", 1.0, "strict")], [generated(0, "4", 1.0, "flexible")])
    assert "the same filters in both runs" in told
    assert "1 of 1 only in the reference (strict)" in told


def test_a_document_that_occurs_twice_is_refused() -> None:
    assert "document 0 occurs twice" in refusal(questions(1) * 2, questions(1))


def test_no_samples_are_refused() -> None:
    assert "there are none" in refusal([], questions())
