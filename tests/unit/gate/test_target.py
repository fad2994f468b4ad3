"""What can be judged: run folders, two finished runs, several parts; and default rules."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.finished.diff import Diff, diff_runs
from quantdrift.finished.formats import read_finished
from quantdrift.gate.baseline import answer_of
from quantdrift.gate.judge import gate, snapshot_for
from quantdrift.gate.result import EXIT_CODES
from quantdrift.gate.rules import CLASSES, NO_LABELS, SEARCH, default_rules, stored_metrics
from quantdrift.gate.target import target_of_diff, target_of_run
from quantdrift.metrics import parse_metric
from quantdrift.runs.folder import Run
from support.comparison_samples import run_of
from support.finished_samples import A, B, write_trec
from support.gate_samples import evidence, rules, target

QRELS = {"q1": {"d1": 1}, "q2": {"d2": 1}}


def run(path: Path, flips: range = range(5), **changes: Any) -> Run:
    return run_of(path, evidence(flips), **changes)


def test_inputs_that_layers_were_measured_on_are_left_out_of_the_comparison(tmp_path: Path) -> None:
    asked = rules("flip@1 no worse")
    whole = target_of_run(run(tmp_path / "whole"))
    less = run_of(
        tmp_path / "less",
        evidence(range(5)).part(np.arange(3, 60)),
        spec="minilm@W3.5-rtn+gap",
        data={"inputs_left_out": 3},
    )
    part = target_of_run(less)
    assert part.notes == ("3 inputs are left out, as this deployment was chosen by them",)
    for here, there in ((part, whole), (whole, part)):
        result = gate(here, asked, snapshot_for(there, asked))
        assert (result.verdict, result.differs) == ("pass", ())
        assert result.rules[0].n == 57


def diff(tmp_path: Path, a: Any = A, b: Any = B, *, qrels: Any = None, complete: bool = False) -> Diff:
    paths = [write_trec(tmp_path / f"{name}.trec", held) for name, held in (("a", a), ("b", b))]
    a_run, other = (read_finished(path) for path in paths)
    return diff_runs(a_run, other, qrels=qrels, complete=complete)


def test_two_finished_runs_have_no_weights(tmp_path: Path) -> None:
    judged = target_of_diff(diff(tmp_path, qrels=QRELS))
    identity = judged.identity
    assert (identity.spec, identity.model) == ("a.trec vs b.trec", "a.trec")
    assert identity.model_fingerprint is None
    assert identity.candidate_fingerprint == read_finished(tmp_path / "b.trec").digest
    assert identity.data == "2 inputs"
    snapshot = judged.snapshot([parse_metric("flip@1"), parse_metric("gold_lost@1")])
    assert snapshot.input_ids == ("q1", "q2")
    assert snapshot.answers == (answer_of("d1", "d2"), answer_of("d2", "d2"))
    assert (snapshot.values["flip@1"].tolist(), snapshot.values["gold_lost@1"].tolist()) == ([1, 0], [1, 0])


@pytest.mark.parametrize(
    ("made", "wanted"), [(evidence(range(3)), SEARCH), (evidence(range(3), labels=False), NO_LABELS)]
)
def test_default_rules(made: Any, wanted: tuple[str, ...]) -> None:
    assert [str(rule) for rule in default_rules(target(made))] == list(wanted)


def test_default_rules_of_classes(tmp_path: Path) -> None:
    data = {"kind": "classification"}
    judged = target_of_run(run(tmp_path / "a", data=data))
    assert judged.classes
    assert [str(rule) for rule in default_rules(judged)] == list(CLASSES)
    assert [str(metric) for metric in stored_metrics(judged)] == ["flip@1", "gold_lost@1", "accuracy", "noise_floor"]
    no_labels = run_of(tmp_path / "b", evidence(range(3), labels=False), data=data)
    assert [str(rule) for rule in default_rules(target_of_run(no_labels))] == list(NO_LABELS)


def test_data_without_a_digest_are_known_by_what_a_harness_tells_of_them(tmp_path: Path) -> None:
    """lm-eval numbers the documents of every task from 0, so ids tell nothing."""
    data = {"fingerprint": None, "name": "arc", "n_fewshot": 0, "revision": "1.0"}
    asked = rules("flip@1 no worse")
    there = snapshot_for(target_of_run(run(tmp_path / "a", data=data)), asked)
    others = [({}, None), ({"n_fewshot": 5}, "setting data n_fewshot: 0 in the baseline, 5 now")]
    others += [({"name": "piqa"}, "data: arc (test) in the baseline, piqa (test) now")]
    for number, (change, wanted) in enumerate(others):
        here = target_of_run(run(tmp_path / f"b{number}", data={**data, **change}))
        assert gate(here, asked, there).differs == (() if wanted is None else (wanted,))


def test_a_run_without_a_verdict_is_judged_by_no_rule(tmp_path: Path) -> None:
    """A reference that changes a fifth of its own answers explained any candidate; the gate ended in success."""
    noise = {"noise_floor": {"value": 0.2, "low": 0.1, "high": 0.3, "n": 60}}
    target = target_of_run(run(tmp_path / "noisy", metrics=noise))
    result = gate(target, rules("flip@1 <= 0.9"))
    assert (result.verdict, result.exit_code) == ("error", EXIT_CODES["error"])
    assert target.forbidden[0].removesuffix(".") in result.rules[0].reason
    assert gate(target_of_run(run(tmp_path / "quiet")), rules("flip@1 <= 0.9")).verdict == "pass"
