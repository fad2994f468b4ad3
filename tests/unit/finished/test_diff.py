"""What changed between two finished runs, by hand; and which runs cannot be compared."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.base.errors import DataError, RunError, UnknownNameError
from quantdrift.evidence import perturbation
from quantdrift.finished.diff import Diff, PartDiff, change_of, diff_runs, estimate_of, pooled_estimate, write_diff
from quantdrift.finished.formats import read_finished
from quantdrift.finished.rankings import evidence_of_answers
from quantdrift.measuring.flow import with_qrels
from quantdrift.metrics import parse_metric
from quantdrift.runs.changes import changed_inputs
from quantdrift.runs.folder import read_run
from support.comparison_samples import N, evidence_of, flipped, run_of, scores
from support.finished_samples import A, B, question, write_json, write_samples, write_trec

QRELS = {"q1": {"d1": 1}, "q2": {"d2": 1}}
FLIP = parse_metric("flip@1")


def diff(a: Path, b: Path, **options: Any) -> Diff:
    return diff_runs(read_finished(a), read_finished(b), **options)


def arms(path: Path, **options: Any) -> Diff:
    return diff_runs(read_finished(path, arm="reference"), read_finished(path), **options)


def only(compared: Diff) -> Any:
    (part,) = compared.parts
    assert part.evidence is not None
    return part


def values(part: PartDiff, *names: str) -> list[float | None]:
    return [estimate_of(parse_metric(name), part).value for name in names]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return write_trec(tmp_path / "a.trec", A), write_json(tmp_path / "b.json", B)


def questions(n: int, **changes: Any) -> list[Any]:
    return [question(number, [-1.0, -2.0], **changes) for number in range(n)]


def test_a_trec_file_against_json_by_hand(pair: tuple[Path, Path]) -> None:
    part = only(diff(*pair, qrels=QRELS))
    assert values(part, "flip@1", "harm") == [0.5, 0.5]
    # d1 falls by 0.1, d2 rises by 0.05; of q2 only d2 and d3 are in both lists, d2 rises by 0.05
    np.testing.assert_allclose(perturbation.epsilon(part.evidence), [0.1, 0.05], rtol=1e-6)
    epsilon, separation = (estimate_of(parse_metric(name), part) for name in ("epsilon", "separation"))
    assert (epsilon.value, epsilon.bound) == (pytest.approx(0.075), "lower")
    assert (separation.value, separation.bound) == (pytest.approx((0.1 / 0.2 + 0.3 / 0.1) / 2, rel=1e-5), "upper")
    assert "truncated" in (estimate_of(parse_metric("coverage@0.10"), part).reason or "")
    assert "compared to rank 3" in part.notes[0]
    assert part.lists == ((3, 3), (3, 3))
    (changed,) = changed_inputs(part.evidence)
    assert (changed.input_id, changed.before, changed.after, changed.kind) == ("q1", "d1", "d2", "harmful")
    assert (changed.rank_before, changed.rank_after, changed.was_right, changed.is_right) == (2, 2, True, False)
    assert changed.gap == pytest.approx(0.1)


def test_a_query_that_finds_itself_can_be_left_out(pair: tuple[Path, Path], tmp_path: Path) -> None:
    lists = [{q: {q: 9.0, **ranking} for q, ranking in run.items()} for run in (A, B)]
    a, b = (write_json(tmp_path / name, run) for name, run in zip("ab", lists, strict=True))
    assert values(only(diff(a, b)), "flip@1") == [0]
    assert values(only(diff(a, b, ignore_identical=True)), "flip@1") == [0.5]
    assert diff(pair[0], pair[0]).notes == ("A and B hold the same, to the letter",)


def test_parts_of_the_same_inputs_are_averaged_input_by_input() -> None:
    before = dict(zip("1234", "xyxz", strict=True))
    found = [evidence_of_answers(before, dict(zip("1234", after, strict=True))) for after in ("xxxy", "xyxz")]
    pooled = pooled_estimate(FLIP, [PartDiff(name=str(n), inputs="t", evidence=of) for n, of in enumerate(found)])
    assert (pooled.value, pooled.n) == (0.25, 4)  # 0, 1/2, 0, 1/2


def test_questions_of_lm_eval_by_hand(tmp_path: Path) -> None:
    before = [question(0, [-1.0, -2.0]), question(1, [-1.0, -3.0]), question(2, [-2.0, -1.0])]
    after = [question(0, [-1.5, -1.2]), question(1, [-1.0, -2.5]), question(2, [-1.0, -1.5])]
    a, b = (write_samples(tmp_path / name, "t", samples) for name, samples in (("a", before), ("b", after)))
    part = only(diff(a, b))
    # gaps 1, 2, 1; epsilons 0.8, 0.5, 1
    assert values(part, "flip@1", "harm", "separation") == pytest.approx([2 / 3, 1 / 3, 0.625])
    assert change_of(part.values["acc"])[:2] == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    with pytest.raises(DataError, match="hold their labels"):
        diff(a, b, qrels={"0": {"0": 1}})


def answered(place: Path, candidate: str, right: tuple[bool, bool] | None) -> Path:
    """A run on one input, of which the reference says "four"."""
    marks = None if right is None else tuple({"q": mark} for mark in right)
    return run_of(place, evidence_of_answers({"q": "four"}, {"q": candidate}, right=marks)).path


@pytest.mark.parametrize(
    ("a", "b", "flip", "harm"),
    [
        # neither run knows the other candidate's answer: 4 is right though A never heard of it
        (("five", (True, False)), ("4", (True, True)), 1.0, 0.0),
        (("4", (True, True)), ("five", (True, False)), 1.0, 1.0),
        # what nobody marked is not taken for wrong
        (("four", (True, True)), ("4", None), 1.0, None),
    ],
)
def test_answers_of_two_runs_are_right_as_either_says(a: Any, b: Any, flip: float, harm: Any, tmp_path: Path) -> None:
    compared = diff(answered(tmp_path / "a", *a), answered(tmp_path / "b", *b))
    assert values(only(compared), "flip@1", "harm") == [flip, harm]


def test_both_arms_of_a_whole_run_folder_give_its_own_evidence(tmp_path: Path) -> None:
    evidence = evidence_of(scores(), flipped(scores(), range(7)))
    part = only(arms(run_of(tmp_path / "run", evidence).path))
    assert part.evidence.exact
    for quantity in (perturbation.epsilon, perturbation.gap, perturbation.perturbation_s):
        np.testing.assert_array_equal(quantity(part.evidence), quantity(evidence))
    names = ("flip@1", "harm", "change.ndcg@10")
    assert values(part, *names) == [parse_metric(name)(evidence).value for name in names]


def two_runs(tmp_path: Path, *data: dict[str, object]) -> list[Path]:
    evidence = evidence_of(scores(), flipped(scores(), range(7)))
    return [run_of(tmp_path / f"run{n}", evidence, data=part).path for n, part in enumerate(data)]


TASK = {"name": "arc", "harness": "lm-eval", "fingerprint": None, "split": "test", "n_fewshot": 0}


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        # the same digest is the same data, whatever it is called
        ({"name": "corpus"}, {"name": "a copy of it"}, None),
        ({}, {"fingerprint": "other texts"}, "data: corpus.*digest texts in A, other texts"),
        # digests of two programs say nothing
        ({}, {"harness": "beir", "fingerprint": "in a way of its own"}, None),
        # a harness without a digest is known by task, split and examples
        (TASK, TASK, None),
        (TASK, {**TASK, "n_fewshot": 5}, "setting data n_fewshot: 0 in A, 5 in B"),
        (TASK, {**TASK, "name": "boolq"}, r"data: arc \(test\) in A, boolq \(test\) in B"),
    ],
)
def test_what_says_that_the_data_are_the_same(a: Any, b: Any, message: str | None, tmp_path: Path) -> None:
    paths = two_runs(tmp_path, a, b)
    if message is None:
        assert values(only(diff(*paths)), "flip@1") == [0.0]
    else:
        with pytest.raises(RunError, match=message):
            diff(*paths)


def test_labels_come_from_either_run(tmp_path: Path) -> None:
    evidence = evidence_of(scores(), flipped(scores(), range(7)))
    bare = run_of(tmp_path / "a", evidence_of(scores(), scores(), labels=False), data={"harness": "beir"}).path
    assert values(only(diff(bare, run_of(tmp_path / "b", evidence).path)), "harm") == [pytest.approx(7 / N)]
    # labels of other inputs are none
    elsewhere = run_of(tmp_path / "c", with_qrels(evidence, {"elsewhere": {"d": 1}})).path
    assert values(only(arms(elsewhere)), "flip@1", "harm") == [pytest.approx(7 / N), None]


def test_what_is_written_reads_back_and_says_what_made_it(pair: tuple[Path, Path], tmp_path: Path) -> None:
    (run,) = write_diff(diff(*pair, qrels=QRELS), tmp_path / "out")
    again = read_run(run.path)
    assert again.record["spec"] == "a.trec vs b.json"
    assert again.record["diff"]["reference"]["format"] == "trec"
    assert again.record["diff"]["deltas"] == again.evidence().deltas == "listed"
    assert again.record["metrics"]["epsilon"]["bound"] == "lower"
    json.dumps(again.record, allow_nan=False)
    with pytest.raises(RunError, match=r"quantdrift diff, .*a\.trec .*b\.json"):
        read_finished(run.path)


def test_a_comparison_does_not_replace_the_run_it_is_made_of(tmp_path: Path) -> None:
    paths = two_runs(tmp_path, {}, {})
    compared, before = diff(*paths), (paths[1] / "run.json").read_bytes()
    with pytest.raises(RunError, match="the two runs"):
        write_diff(compared, paths[1])
    assert (paths[1] / "run.json").read_bytes() == before


OTHER_PROMPT = [question(3, [-1.0, -2.0], prompt_hash="x"), *questions(3)]
FILTERS = [[question(k, [-1.0, -2.0], filter=name) for k in range(n) for name in ("x", "y")] for n in (5, 3)]
ONE, MORE = {"d1": 1.0}, {"q4": {"d1": 1.0}, "q5": {"d1": 1.0}}


def write_log(path: Path, samples: list[Any]) -> Path:
    return write_samples(path, "t", samples)


@pytest.mark.parametrize(
    ("write", "runs", "message", "left_out"),
    [
        (write_trec, ({**A, "q3": ONE}, {**B, **MORE}), r"1 of 3 .*\(q3\); 2 of 4 .*\(q4, q5\)", (1, 2)),
        (write_trec, (A, {q: {f"{d}x": s for d, s in run.items()} for q, run in A.items()}), "all items", None),
        (write_log, (questions(4), OTHER_PROMPT), "differ in prompt of 1 documents", None),
        # a document is left out once, however many filters it went through
        (write_log, FILTERS, "2 of 5 only in A.*\n--common", (2, 0)),
    ],
)
def test_other_inputs(write: Any, runs: Any, message: str, left_out: Any, tmp_path: Path) -> None:
    a, b = (write(tmp_path / f"{n}", run) for n, run in enumerate(runs))
    with pytest.raises(RunError, match=message):
        diff(a, b)
    if left_out is None:
        with pytest.raises(RunError):
            diff(a, b, common=True)
    else:
        assert {part.left_out for part in diff(a, b, common=True).parts} == {left_out}


def test_parts_are_chosen_by_name(tmp_path: Path) -> None:
    for name, prompt in (("a", "x"), ("b", "y")):
        write_samples(tmp_path / name, "t", questions(4))
        write_samples(tmp_path / name, "u", questions(4, prompt_hash=prompt))
    with pytest.raises(RunError, match=r"u: .*prompt of 4"):
        diff(tmp_path / "a", tmp_path / "b")
    assert [part.name for part in diff(tmp_path / "a", tmp_path / "b", only=["t"]).parts] == ["t"]
    with pytest.raises(UnknownNameError, match="unknown part 'v'"):
        diff(tmp_path / "a", tmp_path / "b", only=["v"])
    a = write_trec(tmp_path / "a.trec", A)
    with pytest.raises(RunError, match=r"2: t, u\..*--part"):
        diff(a, tmp_path / "a")
    with pytest.raises(RunError, match="rankings and samples"):
        diff(a, tmp_path / "a", only=["t"])
