"""Run folders of quantdrift as one side of a diff: either arm, whole or cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from comparison_samples import ITEMS, N, evidence_of, flipped, run_of, scores

from quantdrift import perturbation
from quantdrift.errors import RunError
from quantdrift.finished.diff import Diff, PartDiff, diff_runs
from quantdrift.finished.pooled import estimate_of
from quantdrift.finished.rankings import evidence_of_rankings
from quantdrift.finished.readers.contents import Ranked
from quantdrift.finished.readers.formats import read_finished
from quantdrift.finished.record import write_diff
from quantdrift.metrics import parse_metric
from quantdrift.runs import write_run


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
    assert isinstance(ranked, Ranked)
    assert ranked.depth == 4
    assert max(len(own) for own in ranked.rankings.values()) > 4
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
        write_run(tmp_path / name, evidence=evidence, record={"spec": "m@W4"}).path
        for name in ("a", "b")
    ]
    found = diff_runs(*(read_finished(path) for path in runs))
    before = (runs[1] / "run.json").read_bytes()
    with pytest.raises(RunError, match="one of the two runs"):
        write_diff(found, runs[1])
    assert (runs[1] / "run.json").read_bytes() == before
    assert write_diff(found, tmp_path / "c")
