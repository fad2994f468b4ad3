"""Two finished runs are compared only if they are of the same inputs, items and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quantdrift.errors import DataError, RunError, UnknownNameError
from quantdrift.finished.diff import Diff, diff_runs
from quantdrift.finished.readers import read_finished
from support.comparison_samples import evidence_of, flipped, run_of, scores
from support.finished_samples import A, B, question, write_json, write_mteb, write_samples, write_trec


def diff(a: Path, b: Path, **options: Any) -> Diff:
    return diff_runs(read_finished(a), read_finished(b), **options)


def test_other_inputs_are_refused_with_counts_and_examples(tmp_path: Path) -> None:
    a = write_trec(tmp_path / "a", {**A, "q3": {"d1": 1.0}})
    b = write_json(tmp_path / "b", {**B, "q4": {"d1": 1.0}, "q5": {"d1": 1.0}})
    with pytest.raises(RunError, match=r"1 of 3 only in A \(q3\); 2 of 4 only in B \(q4, q5\)"):
        diff(a, b)
    (part,) = diff(a, b, common=True).parts
    assert part.left_out == (1, 2)
    assert part.evidence is not None
    assert part.evidence.input_ids.tolist() == ["q1", "q2"]


def test_lists_without_a_shared_item_are_of_other_corpora(tmp_path: Path) -> None:
    other = {query: {f"x{item}": s for item, s in own.items()} for query, own in B.items()}
    a, b = write_trec(tmp_path / "a", A), write_trec(tmp_path / "b", other)
    with pytest.raises(RunError, match=r"that of 'q1' holds d1, d2, d3 in A and xd2, xd1, xd3"):
        diff(a, b)
    with pytest.raises(RunError, match="all items"):
        diff(a, b, common=True)


def test_a_ranking_is_not_compared_with_samples(tmp_path: Path) -> None:
    a = write_trec(tmp_path / "a", A)
    b = write_samples(tmp_path / "b", "t", [question(0, [-1.0, -2.0])])
    with pytest.raises(RunError, match=r"\(A\) holds rankings, .*\(B\) samples of lm-eval"):
        diff(a, b)


def test_everything_that_differs_between_sample_logs_is_listed(tmp_path: Path) -> None:
    questions = [question(n, [-1.0, -2.0]) for n in range(4)]
    config = {"num_fewshot": 0, "output_type": "multiple_choice"}
    a = write_samples(tmp_path / "a", "t", questions, config=config)
    write_samples(a, "u", questions, config=config)
    changed = [*questions[:3], question(3, [-1.0, -2.0], prompt_hash="other")]
    b = write_samples(tmp_path / "b", "t", changed, config={**config, "num_fewshot": 5})
    with pytest.raises(RunError) as told:
        diff(a, b)
    message = str(told.value)
    assert "only in A: u (1 of 2)" in message
    assert "t: setting num_fewshot: 0 and 5" in message
    assert "prompt of 1 of 4 documents (3)" in message
    assert "--common" not in message  # it would not help: the settings differ


def test_common_leaves_out_documents_with_another_prompt(tmp_path: Path) -> None:
    questions = [question(n, [-1.0, -2.0]) for n in range(4)]
    a = write_samples(tmp_path / "a", "t", questions)
    b = write_samples(tmp_path / "b", "t", [question(3, [-1.0, -2.0], prompt_hash="x"), *questions[1:3]])
    with pytest.raises(RunError, match="--common compares what both hold"):
        diff(a, b)
    (part,) = diff(a, b, common=True).parts
    assert part.left_out == (2, 1)
    assert part.evidence is not None
    assert part.evidence.input_ids.tolist() == ["1", "2"]


def test_common_leaves_out_documents_with_other_choices(tmp_path: Path) -> None:
    other = question(1, [-1.0, -2.0])
    other["arguments"]["gen_args_1"]["arg_1"] = " another choice"  # no hash tells
    questions = [question(n, [-1.0, -2.0]) for n in range(2)]
    a = write_samples(tmp_path / "a", "t", questions)
    b = write_samples(tmp_path / "b", "t", [questions[0], other])
    with pytest.raises(RunError, match="choices or settings of generation of 1 of 2"):
        diff(a, b)
    assert diff(a, b, common=True).parts[0].left_out == (1, 1)


def test_the_settings_of_tasks_that_are_left_out_do_not_count(tmp_path: Path) -> None:
    questions = [question(n, [-1.0, -2.0]) for n in range(4)]
    a = write_samples(tmp_path / "a", "t", questions, config={"num_fewshot": 0})
    b = write_samples(tmp_path / "b", "t", questions, config={"num_fewshot": 0})
    write_samples(a, "u", questions, config={"num_fewshot": 0})
    write_samples(b, "u", questions, config={"num_fewshot": 3})
    with pytest.raises(RunError, match="u: setting num_fewshot: 0 and 3"):
        diff(a, b)
    assert [part.name for part in diff(a, b, only=["t"]).parts] == ["t"]
    with pytest.raises(UnknownNameError, match="unknown part 'v'"):
        diff(a, b, only=["v"])


def test_inputs_without_names_are_not_paired_by_chance(tmp_path: Path) -> None:
    a = write_mteb(tmp_path / "a", [["x", "y", "x"]])
    b = write_mteb(tmp_path / "b", [["x", "y"]])
    for common in (False, True):
        with pytest.raises(RunError, match="they have no names"):
            diff(a, b, common=common)


def test_one_ranking_needs_one_part_of_the_other(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name, lists in (("One", A), ("Two", B)):
        write_mteb(tmp_path / "folder" / f"{name}_predictions.json", lists)
    a = write_trec(tmp_path / "a", A)
    with pytest.raises(RunError, match=r"has 2: One/default/test, Two/default/test\. Choose with"):
        diff(a, tmp_path / "folder")
    (part,) = diff(a, tmp_path / "folder", only=["Two/default/test"]).parts
    assert part.evidence is not None


def test_run_folders_of_other_data_are_refused(tmp_path: Path) -> None:
    evidence = evidence_of(scores(), flipped(scores(), range(5)))
    a = run_of(tmp_path / "a", evidence).path
    b = run_of(tmp_path / "b", evidence, data={"fingerprint": "other"}).path
    with pytest.raises(RunError, match="setting data: digest texts and digest other"):
        diff(a, b)


def test_run_folders_of_two_references_are_compared_with_a_note(tmp_path: Path) -> None:
    evidence = evidence_of(scores(), flipped(scores(), range(5)))
    a = run_of(tmp_path / "a", evidence).path
    b = run_of(tmp_path / "b", evidence, model={"fingerprint": "other"}).path
    assert any("runs of two models" in note for note in diff(a, b).notes)
    assert not any("two models" in note for note in diff(a, a).notes)


def test_labels_of_other_inputs_are_refused(tmp_path: Path) -> None:
    a, b = write_trec(tmp_path / "a", A), write_trec(tmp_path / "b", B)
    with pytest.raises(DataError, match="labels are of other inputs"):
        diff(a, b, qrels={"other": {"d1": 1}})
    (part,) = diff(a, b, qrels={"q1": {"d1": 1}}).parts
    assert "1 of 2 inputs have no relevance label" in part.notes


def test_documents_are_left_out_once_however_many_filters_they_went_through(tmp_path: Path) -> None:
    def samples(n: int) -> list[dict[str, object]]:
        return [question(k, [-1.0, -2.0], filter=name) for k in range(n) for name in ("x", "y")]

    a = write_samples(tmp_path / "a", "t", samples(5))
    b = write_samples(tmp_path / "b", "t", samples(3))
    assert [part.left_out for part in diff(a, b, common=True).parts] == [(2, 0), (2, 0)]
