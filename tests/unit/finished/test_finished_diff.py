"""What changed between two finished runs, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift import perturbation
from quantdrift.compare.two_runs import compare_runs
from quantdrift.errors import DataError, RunError
from quantdrift.finished.diff import (
    Diff,
    PartDiff,
    change_of,
    changed_inputs,
    diff_runs,
    estimate_of,
    pooled_estimate,
    write_diff,
)
from quantdrift.finished.readers import read_finished
from quantdrift.metrics import parse_metric
from quantdrift.runs import read_run
from support.finished_samples import A, B, question, write_json, write_mteb, write_samples, write_trec

QRELS = {"q1": {"d1": 1}, "q2": {"d2": 1}}


def diff(a: Path, b: Path, **options: Any) -> Diff:
    return diff_runs(read_finished(a), read_finished(b), **options)


def only(found: Diff) -> PartDiff:
    (part,) = found.parts
    return part


def value(part: PartDiff, name: str) -> float | None:
    return estimate_of(parse_metric(name), part).value


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return write_trec(tmp_path / "a.trec", A), write_json(tmp_path / "b.json", B)


def test_a_trec_file_against_json_by_hand(pair: tuple[Path, Path]) -> None:
    part = only(diff(*pair, qrels=QRELS))
    assert value(part, "flip@1") == 0.5
    assert value(part, "harm") == 0.5
    # d1 falls by 0.1, d2 rises by 0.05; of q2 only d2 and d3 are in both lists, d2 rises by 0.05
    assert part.evidence is not None
    np.testing.assert_allclose(perturbation.epsilon(part.evidence), [0.1, 0.05], rtol=1e-6)
    epsilon = estimate_of(parse_metric("epsilon"), part)
    assert epsilon.value == pytest.approx(0.075)
    assert epsilon.bound == "lower"
    separation = estimate_of(parse_metric("separation"), part)
    assert separation.bound == "upper"
    assert separation.value == pytest.approx((0.1 / 0.2 + 0.3 / 0.1) / 2, rel=1e-5)
    reason = estimate_of(parse_metric("coverage@0.10"), part).reason
    assert reason is not None
    assert "cut short" in reason
    assert "3 deep" in part.notes[0]


def test_the_worst_changed_input_says_what_replaced_what(pair: tuple[Path, Path]) -> None:
    part = only(diff(*pair, qrels=QRELS))
    assert part.evidence is not None
    (changed,) = changed_inputs(part.evidence)
    assert (changed.input_id, changed.before, changed.after) == ("q1", "d1", "d2")
    assert (changed.rank_before, changed.rank_after) == (2, 2)
    assert (changed.was_right, changed.is_right) == (True, False)
    assert changed.lead == pytest.approx(0.1)


def test_right_to_wrong_comes_first_and_then_the_largest_lead(tmp_path: Path) -> None:
    a = {f"q{n}": {"x": 1.0, "y": 1.0 - lead} for n, lead in enumerate((0.1, 0.4, 0.2, 0.3))}
    b = {query: {"x": 0.0, "y": 1.0} for query in a}
    qrels = {"q0": {"x": 1}, "q1": {"y": 1}, "q2": {"x": 1}, "q3": {"z": 1}}
    part = only(diff(write_json(tmp_path / "a", a), write_json(tmp_path / "b", b), qrels=qrels))
    assert part.evidence is not None
    assert [one.input_id for one in changed_inputs(part.evidence)] == ["q2", "q0", "q3", "q1"]


def test_a_shortlist_that_is_complete_is_exact(tmp_path: Path) -> None:
    same = {"q1": {"d1": 0.8, "d2": 0.85, "d3": 0.5}, "q2": {"d2": 0.7, "d3": 0.4, "d4": 0.5}}
    a, b = write_trec(tmp_path / "a", A), write_trec(tmp_path / "b", same)
    hinted = only(diff(a, b))
    assert any("--complete says so" in note for note in hinted.notes)
    exact = only(diff(a, b, complete=True))
    assert exact.notes == ()
    assert exact.evidence is not None
    assert exact.evidence.exact
    with pytest.raises(RunError, match="score the same items"):
        diff(a, write_trec(tmp_path / "c", B), complete=True)


def test_queries_that_find_themselves_can_be_left_out(tmp_path: Path) -> None:
    lists = [{q: {q: 9.0, **own} for q, own in run.items()} for run in (A, B)]
    a, b = (write_json(tmp_path / name, run) for name, run in zip("ab", lists, strict=True))
    part = only(diff(a, b))
    assert value(part, "flip@1") == 0
    assert any("2 inputs find an item of their own name first" in note for note in part.notes)
    assert value(only(diff(a, b, ignore_identical=True)), "flip@1") == 0.5


def test_scores_that_were_made_from_ranks_are_told(tmp_path: Path) -> None:
    made = {f"q{n}": {f"d{n}": 1.0, "x": 0.5, "y": 1 / 3} for n in range(6)}
    other = {query: {item: s + n for n, (item, s) in enumerate(own.items())} for query, own in made.items()}
    other["q1"]["x"] += 0.01
    part = only(diff(write_json(tmp_path / "a", made), write_json(tmp_path / "b", other)))
    assert any(note.startswith("the scores of A are the same") for note in part.notes)


def test_a_run_against_itself_has_no_flips_and_says_so(pair: tuple[Path, Path]) -> None:
    found = diff(pair[0], pair[0])
    assert found.notes[0] == "A and B are one and the same"
    assert value(only(found), "flip@1") == 0


def test_labels_of_a_classifier_flip_and_are_right_only_with_labels(tmp_path: Path) -> None:
    a = write_mteb(tmp_path / "a", [["x", "y", "x", "z"], ["x", "y", "x", "x"]])
    b = write_mteb(tmp_path / "b", [["x", "x", "x", "y"], ["x", "y", "x", "x"]])
    found = diff(a, b)
    assert [value(part, "flip@1") for part in found.parts] == [0.5, 0.0]
    # two experiments of the same four inputs are four inputs: 0, 1/2, 0, 1/2
    pooled = pooled_estimate(parse_metric("flip@1"), found.parts)
    assert (pooled.value, pooled.n) == (0.25, 4)
    assert value(found.parts[0], "harm") is None
    right = {"0": {"x": 1}, "1": {"y": 1}, "2": {"y": 1}, "3": {"y": 1}}
    labelled = diff(a, b, qrels=right).parts[0]
    assert (value(labelled, "harm"), value(labelled, "benefit")) == (0.25, 0.25)
    # right 2 of 4 before, 2 of 4 after; the third is wrong in both
    assert value(labelled, "reference.accuracy") == value(labelled, "accuracy") == 0.5
    with pytest.raises(DataError, match="1 of 4 inputs have no label, '3'"):
        diff(a, b, qrels={name: right[name] for name in "012"})


def test_questions_of_lm_eval_by_hand(tmp_path: Path) -> None:
    before = [question(0, [-1.0, -2.0]), question(1, [-1.0, -3.0]), question(2, [-2.0, -1.0])]
    after = [question(0, [-1.5, -1.2]), question(1, [-1.0, -2.5]), question(2, [-1.0, -1.5])]
    a, b = (write_samples(tmp_path / name, "t", samples) for name, samples in (("a", before), ("b", after)))
    part = only(diff(a, b))
    assert value(part, "flip@1") == pytest.approx(2 / 3)
    assert (value(part, "harm"), value(part, "benefit")) == (pytest.approx(1 / 3),) * 2
    assert part.evidence is not None
    assert part.evidence.exact
    # gaps 1, 2, 1; epsilons 0.8, 0.5, 1
    assert value(part, "separation") == pytest.approx(0.625, rel=1e-6)
    assert change_of(part.values["acc"])[:2] == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    with pytest.raises(DataError, match="hold their labels"):
        diff(a, b, qrels={"0": {"0": 1}})


def test_samples_whose_document_has_no_number_are_refused(tmp_path: Path) -> None:
    folders = [
        write_samples(tmp_path / name, "t", [{**question(0, [-1.0, -2.0]), "doc_id": {"n": 1}}]) for name in "ab"
    ]
    with pytest.raises(DataError, match="line 1: expected a sample"):
        diff(*folders, common=True)


@pytest.mark.parametrize("grade", [10**10, -(2**70)])
def test_grades_that_no_sum_can_hold_are_refused(pair: tuple[Path, Path], grade: int) -> None:
    with pytest.raises(DataError, match="expected grades from"):
        diff(*pair, qrels={"q1": {"d1": grade}})


def test_several_tasks_are_pooled_input_by_input(tmp_path: Path) -> None:
    for name, flips in (("a", 0), ("b", 1)):
        for task, n in (("t", 1), ("u", 3)):
            samples = [question(k, [-1.0, -2.0 + 1.5 * flips * (k == 0)]) for k in range(n)]
            write_samples(tmp_path / name, task, samples)
    found = diff(tmp_path / "a", tmp_path / "b")
    assert [value(part, "flip@1") for part in found.parts] == [1.0, pytest.approx(1 / 3)]
    pooled = pooled_estimate(parse_metric("flip@1"), found.parts)
    assert (pooled.value, pooled.n) == (0.5, 4)


def test_what_is_written_reads_back_and_says_what_made_it(pair: tuple[Path, Path], tmp_path: Path) -> None:
    found = diff(*pair, qrels=QRELS)
    (run,) = write_diff(found, tmp_path / "out")
    again = read_run(run.path)
    assert again.record["spec"] == "a.trec vs b.json"
    assert again.record["diff"]["reference"]["format"] == "trec"
    assert again.record["diff"]["deltas"] == again.evidence().deltas == "listed"
    assert again.record["metrics"]["epsilon"]["bound"] == "lower"
    json.dumps(again.record, allow_nan=False)
    with pytest.raises(RunError, match=r"made by quantdrift diff, of .*a\.trec and .*b\.json"):
        read_finished(run.path)


def test_two_diffs_of_one_reference_can_be_compared(tmp_path: Path) -> None:
    reference = {f"q{n}": {"x": 1.0, "y": 0.5, f"d{n}": 0.2} for n in range(20)}
    paths = [write_json(tmp_path / "reference", reference)]
    for name, flips in (("b", 2), ("c", 9)):
        changed = {query: {**own, "y": 2.0 if n < flips else 0.5} for n, (query, own) in enumerate(reference.items())}
        paths.append(write_json(tmp_path / name, changed))
    runs = [write_diff(diff(paths[0], b), tmp_path / f"out{n}")[0] for n, b in enumerate(paths[1:])]
    compared = {each.metric: each for each in compare_runs(*runs).metrics}
    assert (compared["flip@1"].higher_a, compared["flip@1"].higher_b) == (0, 7)
    # of a bound there is no difference
    assert compared.get("separation") is None or compared["separation"].difference.value is None
    other = write_diff(diff(paths[1], paths[2]), tmp_path / "other")[0]
    with pytest.raises(RunError, match="reference model"):
        compare_runs(runs[0], other)


def test_parts_get_folders_of_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for task in ("t", "u"):
            write_samples(tmp_path / name, task, [question(0, [-1.0, -2.0])])
    runs = write_diff(diff(tmp_path / "a", tmp_path / "b"), tmp_path / "out")
    assert [run.path.name for run in runs] == ["t", "u"]
    assert runs[0].record["data"]["name"] == "t"
