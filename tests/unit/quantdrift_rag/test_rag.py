"""Answers behind a search: scores and changes that can be computed by hand, what is asked, and what is kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.base.errors import DataError, QuantDriftError, RunError
from quantdrift.base.progress import Silent
from quantdrift.runs.folder import read_run, write_run
from quantdrift_rag.answers import Condition, Rag, RagRecord, exact_match, holds_answer, token_f1
from quantdrift_rag.questions import Prompt, Questions, answer, read_answers, read_questions
from support.rag_samples import PASSAGES, QUESTIONS, REFERENCE, Echo, write_search, write_world

ASKED = {"q1": "Who swam?", "q2": "Who flew?"}


# --- scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "golds", "match", "f1"),
    [
        ("The U.S.  Army!", ["us army"], True, 1.0),
        ("the big us army", ["us navy", "us army"], False, 0.8),  # 2 of 3 words, 2 of 2: the better gold answer
        ("big big", ["big dog"], False, 0.5),  # the second big finds no partner
        ("", ["Ann"], False, 0.0),
        ("the", ["a"], True, 1.0),  # neither has a word left
    ],
)
def test_an_answer_is_scored_by_its_words(said: str, golds: list[str], match: bool, f1: float) -> None:
    assert exact_match(said, golds) == match
    assert token_f1(said, golds) == pytest.approx(f1)


def test_a_passage_holds_an_answer_as_whole_words() -> None:
    assert holds_answer(["In 1901, the Ann-Marie sank."], ["AnnMarie"])  # hyphens go, as in SQuAD
    assert not holds_answer(["Annika sank."], ["Ann"])
    assert not holds_answer(["Ann"], ["the"])  # an answer without words is nowhere


def record_of(**answers: list[str]) -> RagRecord:
    conditions = [Condition(name=name, answers=said) for name, said in answers.items()]
    whole: dict[str, Any] = {"generator": "g", "kind": "generator", "data": "d", "n_passages": 5, "gold_by": "labels"}
    asked: dict[str, Any] = {"ids": [*"abcd"], "questions": [*"abcd"], "golds": [["x"]] * 4, "control": None}
    return RagRecord(**whole, **asked, reference=conditions[0], candidates=conditions[1:])


def test_what_changed_is_counted_and_tested_by_hand() -> None:
    record = record_of(full=["x", "x", "y", "y"], one=["the X.", "z", "x", "w"], two=["x", "z", "z", "y"])
    effects = Rag(record=record).effects
    first = effects["one"]
    assert (len(first.changes), first.changed.value) == (3, 0.75)
    assert (first.right_to_wrong, first.wrong_to_right, first.p_value) == (1, 1, 1.0)
    assert [(change.id, change.kind) for change in first.changes] == [
        ("b", "right to wrong"),
        ("c", "wrong to right"),
        ("d", "still wrong"),
    ]
    assert first.differences["exact_match"].value == 0.0
    two = effects["two"]
    assert (two.right_to_wrong, two.wrong_to_right, two.differences["exact_match"].value) == (1, 0, -0.25)
    assert (two.p_value, two.p_holm) == (1.0, 1.0)  # one discordant input: a fair coin thrown once
    assert first.other_passages is None


def test_a_record_has_as_many_of_everything() -> None:
    with pytest.raises(ValueError, match="one a question"):
        record_of(full=["x"], one=["x"])


# --- gold answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '{"_id": "q1", "answers": ["Bob", "Bobby"]}\n\n{"_id": "other", "answers": ["x"]}',
        '{"question": "who  swam", "answer": ["Bob", "Bobby"]}',  # as NQ-open has it
        '{"question": "WHO SWAM ?", "answers": ["Bob"]}\n{"_id": "q1", "answers": ["Bobby"]}',
        # the id is that of another question, and what it asks decides
        '{"_id": "q2", "question": "who swam?", "answers": ["Bob", "Bobby"]}',
    ],
)
def test_gold_answers_are_found_by_id_or_by_what_is_asked(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    assert read_answers(tmp_path / "a.jsonl", ASKED) == {"q1": ("Bob", "Bobby")}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"_id": "q1"}', "line 1: answers is missing"),
        ("a.jsonl", '{"_id": "q1", "answers": []}', "line 1: answers"),
        ("a.jsonl", '{"_id": "q1", "answers": [["x"]]}', "line 1: answers.0"),
        ("a.jsonl", '{"_id": "q1", "answers": ["\\ud800"]}', "line 1: answers.0"),
        ("a.jsonl", '{"id": "q1", "golden_answers": ["x"]}', 'line 1: answers is missing; expected {"_id": "q1", "ans'),
        ("a.jsonl", "[1]", "line 1: .*dictionary"),
        ("a.jsonl", "[" * 500, "line 1: Expecting value"),
        ("a.jsonl", '{"_id": "q9", "answers": ["x"]}', "none of the run's"),
        ("a.json", '[{"_id": "q1", "answers": ["x"]}]', "line 1: .*dictionary"),
        ("gone.jsonl", None, "no file"),
    ],
)
def test_an_answers_file_that_is_none_is_told_in_one_line(
    name: str, text: str | None, message: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message) as error:
        read_answers(tmp_path / name, ASKED)
    assert "\n" not in str(error.value)


# --- what is asked --------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_world(tmp_path)


def questions_of(*runs: Path, **options: Any) -> Questions:
    given = {"answers": None, "data": None, "n_passages": 2, **options}
    return read_questions([read_run(run) for run in runs], **given)


def test_each_condition_reads_what_its_arm_found_and_each_prompt_is_asked_once(data: Path, tmp_path: Path) -> None:
    swapped = [[9, 5, 4, 3, 2, 1], [9, 5, 4, 3, 2, 1], [9, 4, 5, 3, 2, 1]]  # q1 now finds d0, then d1
    scores = {"W4": swapped, "W8": REFERENCE}
    questions = questions_of(*(write_search(tmp_path / name, data, rows) for name, rows in scores.items()))
    generator = Echo()
    record = questions.answered_by(generator, None, Silent())
    assert record.control is not None
    assert record.control.answers == ["nobody"] * 3
    assert record.reference.passages == [["d0", "d1"], ["d1", "d0"], ["d0", "d2"]]
    assert record.reference.answers == ["ann", "bob", "ann"]
    assert record.reference.gold_in_context == [True, True, True]
    w4, w8 = record.candidates
    assert (w4.name, w4.spec, w4.answers) == ("W4", "minilm@W4", ["ann", "ann", "ann"])
    assert w8.answers == record.reference.answers
    assert len(generator.asked) == 3 + 3 + 1  # no passages, the reference's, and one that W4 finds otherwise
    assert questions.answered_by(Echo(), None, Silent(), control=False).control is None
    effects = Rag(record=record).effects
    assert (effects["W4"].other_passages, effects["W4"].right_to_wrong, len(effects["W8"].changes)) == (1, 1, 0)


def test_gold_in_context_is_by_labels_or_else_by_the_text_of_an_answer(data: Path, tmp_path: Path) -> None:
    run = write_search(tmp_path / "W4", data, REFERENCE)
    record = questions_of(run, n_passages=1).answered_by(Echo(), None, Silent())
    assert (record.gold_by, record.reference.gold_in_context) == ("labels", [True, True, False])
    bare = write_search(tmp_path / "W3", data, REFERENCE, qrels=None)
    record = questions_of(bare, n_passages=1).answered_by(Echo(), None, Silent())
    assert (record.gold_by, record.reference.gold_in_context) == ("answer text", [True, True, False])


def test_what_cannot_be_asked_is_left_out_and_said(data: Path, tmp_path: Path) -> None:
    (data / "answers.jsonl").write_text('{"_id": "q0", "answers": ["Ann"]}\n{"_id": "q1", "answers": ["Bob"]}')
    run = write_search(tmp_path / "W4", data, REFERENCE)
    record = questions_of(run).answered_by(Echo(), None, Silent())
    assert record.ids == ["q0", "q1"]
    assert record.notes == ["1 of 3 questions have no gold answer and are not asked"]


def test_questions_are_those_of_all_runs(data: Path, tmp_path: Path) -> None:
    runs = [write_search(tmp_path / name, data, REFERENCE) for name in ("W4", "W8")]
    whole = read_run(runs[1])
    write_run(runs[1], evidence=whole.evidence().part(np.array([2, 1])), record=whole.record)
    questions = questions_of(*runs)
    assert questions.about["ids"] == ["q1", "q2"]
    reference, *candidates = [condition.passages for condition in questions.conditions]
    assert candidates == [reference, reference] == [[["d1", "d0"], ["d0", "d2"]]] * 2
    assert "1 of 3 questions are not in all runs" in questions.about["notes"][0]


def test_runs_that_cannot_be_asked_about_are_refused(data: Path, tmp_path: Path) -> None:
    run = write_search(tmp_path / "W4", data, REFERENCE)
    other = [row[::-1] for row in REFERENCE]
    with pytest.raises(RunError, match="one reference"):
        questions_of(run, write_search(tmp_path / "W8", data, other, reference=other))
    with pytest.raises(RunError, match="same data"):
        questions_of(run, write_search(tmp_path / "W6", data, REFERENCE, fingerprint="others"))
    with pytest.raises(RunError, match="two runs are called W4"):
        questions_of(run, run)
    with pytest.raises(RunError, match="3 ranks, not 4"):
        questions_of(write_search(tmp_path / "W5", data, REFERENCE, k=3), n_passages=4)
    with pytest.raises(RunError, match="no search"):
        questions_of(write_search(tmp_path / "W2", data, REFERENCE, kind="classification"))
    (data / "answers.jsonl").unlink()
    with pytest.raises(DataError, match=r"has no answers\.jsonl; give a file"):
        questions_of(run)
    (data / "corpus.jsonl").write_text('{"_id": "d0", "text": "other"}')
    with pytest.raises(DataError, match=r"missing or changed .* --data"):
        questions_of(run)


# --- kept answers ---------------------------------------------------------------------------------

PROMPTS = [Prompt(question, (passage,)) for question in QUESTIONS.values() for passage in PASSAGES.values()]


def test_after_a_kill_only_what_was_not_answered_is_asked_again(tmp_path: Path) -> None:
    kept, killed, second = tmp_path / "deep" / "answers.jsonl", Echo(dies_after=7), Echo()
    with pytest.raises(KeyboardInterrupt):
        answer(PROMPTS, killed, kept, Silent())
    with kept.open("ab") as file:  # as a kill within a write leaves it
        file.write(b'{"key": "0123')
    said = answer(PROMPTS, second, kept, Silent())
    assert set(killed.asked) | set(second.asked) == set(PROMPTS)
    assert len(second.asked) == len(PROMPTS) - 7
    assert said == answer(PROMPTS, Echo(), None, Silent())
    assert answer(PROMPTS, third := Echo(), kept, Silent()) == said
    assert not third.asked
    other = Echo()
    other.identity = "echo 2"
    answer(PROMPTS, other, kept, Silent())
    assert len(other.asked) == len(PROMPTS)  # another generator is not given the answers of one


@pytest.mark.parametrize(
    "content",
    [b"nonsense\n", b'{"_id": "q1"}', b'{"key": "x", "answer": "y"}\n', b"\xff\n", b'{"key": "' + b"[" * 200 + b"\n"],
)
def test_kept_answers_that_are_none_are_refused_in_one_line_and_left_alone(content: bytes, tmp_path: Path) -> None:
    kept = tmp_path / "answers.jsonl"
    kept.write_bytes(content)
    with pytest.raises(RunError, match="move it away") as error:
        answer(PROMPTS, Echo(), kept, Silent())
    assert "\n" not in str(error.value)
    assert kept.read_bytes() == content


class Says(Echo):
    def __init__(self, *answers: str) -> None:
        super().__init__()
        self.said = answers

    def answers(self, prompts: Any) -> Any:
        yield list(zip(prompts, self.said, strict=False))


def test_an_answer_is_one_line_of_bounded_length_and_silence_is_an_error() -> None:
    said = answer(PROMPTS[:1], Says(" Ann\ud800 \x1b[31m" + "x" * 10_000 + "\nQuestion: more"), None, Silent())
    assert said[PROMPTS[0]].startswith("Ann? ")
    assert len(said[PROMPTS[0]]) == 2_000
    assert "\n" not in said[PROMPTS[0]]
    with pytest.raises(QuantDriftError, match="no answer to 18 of 18 prompts"):
        answer(PROMPTS, Says(), None, Silent())
