"""Run folders of quantdrift as one side of a diff: either arm, whole or cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quantdrift import perturbation
from quantdrift.engine.measure import with_qrels
from quantdrift.errors import RunError
from quantdrift.finished.diff import Diff, PartDiff, diff_runs, estimate_of, write_diff
from quantdrift.finished.rankings import evidence_of_answers, evidence_of_rankings
from quantdrift.finished.readers import read_finished
from quantdrift.metrics import parse_metric
from quantdrift.runs import write_run
from support.comparison_samples import ITEMS, N, evidence_of, flipped, run_of, scores


def diff(a: Path, b: Path) -> Diff:
    return diff_runs(read_finished(a), read_finished(b))


def only(found: Diff) -> PartDiff:
    (part,) = found.parts
    return part


def value(part: PartDiff, name: str) -> float | None:
    return estimate_of(parse_metric(name), part).value


def test_both_arms_of_a_whole_run_folder_give_its_own_evidence(tmp_path: Path) -> None:
    evidence = evidence_of(scores(), flipped(scores(), range(7)))
    path = run_of(tmp_path / "run", evidence).path
    arms = read_finished(path, arm="reference"), read_finished(path)
    part = only(diff_runs(*arms))
    assert part.evidence is not None
    assert part.evidence.exact
    for quantity in (perturbation.epsilon, perturbation.gap, perturbation.perturbation_s):
        np.testing.assert_array_equal(quantity(part.evidence), quantity(evidence))
    for name in ("flip@1", "harm", "change.ndcg@10"):
        assert value(part, name) == parse_metric(name)(evidence).value


def test_two_candidates_of_one_reference_are_compared(tmp_path: Path) -> None:
    a, b = (
        run_of(tmp_path / name, evidence_of(scores(), flipped(scores(), rows), k=4)).path
        for name, rows in (("a", range(10)), ("b", range(5, 20)))
    )
    part = only(diff(a, b))
    # the inputs that one of the two flips
    assert value(part, "flip@1") == pytest.approx(15 / 60)
    assert part.lists is not None
    assert part.lists.a == (4, 4)
    assert part.evidence is not None
    assert not part.evidence.exact
    assert part.evidence.depth == 4 < ITEMS


def test_more_scores_than_ranks_are_known_of_a_cut_run(tmp_path: Path) -> None:
    reference = scores()
    candidate = reference + np.random.default_rng(1).normal(0, 0.3, reference.shape)
    path = run_of(tmp_path / "run", evidence_of(reference, candidate, k=4)).path
    read = read_finished(path, arm="reference"), read_finished(path)
    (ranked,) = read[0].parts.values()
    assert ranked.kind == "rankings"
    assert ranked.depth == 4
    assert max(len(own) for own in ranked.content.values()) > 4
    part = only(diff_runs(*read))
    assert part.lists is not None
    assert (part.lists.a, part.lists.b) == ((4, 4), (4, 4))
    assert not any("--complete" in note for note in part.notes)  # there were more items
    with pytest.raises(RunError, match="holds the first 4 of more"):
        diff_runs(*read, complete=True)
    # every first answer of either arm has a known score in the other
    assert part.evidence is not None
    assert part.evidence.depth == 4
    assert not np.isnan(part.evidence.candidate_top.reference_scores).any()
    whole = evidence_of(reference, candidate)
    np.testing.assert_array_equal(perturbation.flips(part.evidence), perturbation.flips(whole))
    assert (perturbation.epsilon(part.evidence) <= perturbation.epsilon(whole)).all()


def test_the_labels_of_a_run_come_along(tmp_path: Path) -> None:
    evidence = evidence_of(scores(), flipped(scores(), range(6)))
    path = run_of(tmp_path / "run", evidence).path
    part = only(diff_runs(read_finished(path, arm="reference"), read_finished(path)))
    assert value(part, "harm") == pytest.approx(6 / N)


def test_a_comparison_does_not_replace_the_run_it_is_made_of(tmp_path: Path) -> None:
    rankings = [{"q": {"x": 1.0, "y": second}} for second in (0.5, 0.75)]
    evidence = evidence_of_rankings(*rankings, complete=True)
    runs = [
        write_run(tmp_path / name, evidence=evidence, record={"spec": "m@W4", "data": {"name": "d"}}).path
        for name in ("a", "b")
    ]
    found = diff_runs(*(read_finished(path) for path in runs))
    before = (runs[1] / "run.json").read_bytes()
    with pytest.raises(RunError, match="one of the two runs"):
        write_diff(found, runs[1])
    assert (runs[1] / "run.json").read_bytes() == before
    assert write_diff(found, tmp_path / "c")


# --- what says that the data are the same ----------------------------------------------------


def two_runs(tmp_path: Path, *data: dict[str, object], labels: bool = True) -> list[Path]:
    evidence = evidence_of(scores(), flipped(scores(), range(7)), labels=labels)
    return [run_of(tmp_path / f"run{n}", evidence, data=own).path for n, own in enumerate(data)]


def test_the_same_digest_is_the_same_data_whatever_it_is_called(tmp_path: Path) -> None:
    found = diff(*two_runs(tmp_path, {"name": "corpus"}, {"name": "a copy of it"}))
    assert found.notes == ("A and B hold the same, to the letter",)


def test_another_digest_of_one_program_is_other_data(tmp_path: Path) -> None:
    paths = two_runs(tmp_path, {}, {"name": "other", "fingerprint": "other texts"})
    said = "data: digest texts and digest other texts"
    with pytest.raises(RunError, match=said):
        diff(*paths)


def test_digests_of_two_programs_say_nothing_and_a_note_tells_so(tmp_path: Path) -> None:
    beir = {"name": "beir", "harness": "beir", "fingerprint": "in a way of its own"}
    found = diff(*two_runs(tmp_path, {}, beir))
    (note,) = (note for note in found.notes if "digests cannot be compared" in note)
    assert "those of quantdrift run and the data of B those of beir" in note
    assert value(only(found), "flip@1") == 0.0


def test_two_programs_corpora_of_another_size_are_refused(tmp_path: Path) -> None:
    sizes = {"n_documents": 12}, {"n_documents": 13, "harness": "mteb", "fingerprint": None}
    with pytest.raises(RunError, match="number of documents: 12 and 13"):
        diff(*two_runs(tmp_path, *sizes))


def test_two_programs_labels_have_to_be_the_same(tmp_path: Path) -> None:
    """The best item of the reference is the relevant one: here those of two references."""
    other = flipped(scores(), range(3))
    one = run_of(tmp_path / "a", evidence_of(scores(), scores())).path
    two = run_of(tmp_path / "b", evidence_of(other, other), data={"harness": "beir"}).path
    told = rf"those of 3 of {N} inputs differ \(q0, q1, q2\).*--qrels"
    with pytest.raises(RunError, match=told):
        diff(one, two)
    qrels = {"q0": {"d0": 1}}
    found = diff_runs(read_finished(one), read_finished(two), qrels=qrels)
    assert value(only(found), "flip@1") == pytest.approx(3 / N)


def test_labels_of_one_side_are_enough(tmp_path: Path) -> None:
    evidence = evidence_of(scores(), flipped(scores(), range(7)))
    bare = evidence_of(scores(), scores(), labels=False)
    one = run_of(tmp_path / "a", bare, data={"harness": "beir"}).path
    two = run_of(tmp_path / "b", evidence).path
    assert value(only(diff(one, two)), "harm") == pytest.approx(7 / N)


def test_a_harness_without_a_digest_is_known_by_task_split_and_examples(tmp_path: Path) -> None:
    task = {"name": "arc", "harness": "lm-eval", "fingerprint": None, "split": "test"}
    shots = [{**task, "n_fewshot": n} for n in (0, 0, 5)]
    paths = two_runs(tmp_path, *shots)
    assert value(only(diff(*paths[:2])), "flip@1") == 0.0
    with pytest.raises(RunError, match="data of lm-eval: arc, test, 0 and arc, test, 5"):
        diff(paths[0], paths[2])


# --- answers without scores ------------------------------------------------------------------


def answered(place: Path, candidate: str, right: tuple[bool, bool] | None) -> Path:
    """A run on one input, of which the reference says "four"."""
    marks = None if right is None else tuple({"q": mark} for mark in right)
    evidence = evidence_of_answers({"q": "four"}, {"q": candidate}, right=marks)
    return run_of(place, evidence).path


def test_an_answer_that_only_one_run_gave_is_right_as_that_run_says(tmp_path: Path) -> None:
    """Neither run knows the other candidate's answer: 4 is right though A never heard of it."""
    a = answered(tmp_path / "a", "five", (True, False))
    b = answered(tmp_path / "b", "4", (True, True))
    assert (value(only(diff(a, b)), "harm"), value(only(diff(b, a)), "harm")) == (0.0, 1.0)
    assert value(only(diff(a, b)), "flip@1") == 1.0


def test_an_answer_that_nobody_marked_is_not_taken_for_a_wrong_one(tmp_path: Path) -> None:
    a = answered(tmp_path / "a", "four", (True, True))
    b = answered(tmp_path / "b", "4", None)
    part = only(diff(a, b))
    assert value(part, "flip@1") == 1.0
    assert value(part, "harm") is None


def test_runs_that_do_not_agree_on_one_answer_have_no_labels_in_common(tmp_path: Path) -> None:
    a = answered(tmp_path / "a", "four", (True, True))
    b = answered(tmp_path / "b", "four", (False, False))
    part = only(diff(a, b))
    assert value(part, "flip@1") == 0.0
    assert part.evidence is not None
    assert part.evidence.judgements is None


def test_labels_of_other_inputs_are_none(tmp_path: Path) -> None:
    """A run that was saved with the labels of other data can still be compared."""
    evidence = with_qrels(evidence_of(scores(), flipped(scores(), range(7))), {"elsewhere": {"d": 1}})
    path = run_of(tmp_path / "run", evidence).path
    part = only(diff_runs(read_finished(path, arm="reference"), read_finished(path)))
    assert value(part, "flip@1") == pytest.approx(7 / N)
    assert value(part, "harm") is None
