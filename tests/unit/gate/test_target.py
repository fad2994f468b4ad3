"""What can be judged: run folders, two finished runs, several parts; and default rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.errors import RunError
from quantdrift.finished.diff import Diff, diff_runs, write_diff
from quantdrift.finished.readers import read_finished
from quantdrift.gate.baseline import answer_of
from quantdrift.gate.judge import gate, snapshot_for
from quantdrift.gate.rules import CLASSES, NO_LABELS, SEARCH, default_rules, stored_metrics
from quantdrift.gate.target import target_of_diff, target_of_run
from quantdrift.metrics import MetricError, parse_metric
from quantdrift.records import sealed
from quantdrift.runs import Run, read_run
from support.comparison_samples import RECORD, evidence_of, run_of
from support.finished_samples import A, B, question, write_samples, write_trec
from support.gate_samples import evidence, reference, rules, target

QRELS = {"q1": {"d1": 1}, "q2": {"d2": 1}}


def run(path: Path, flips: range = range(5), **changes: Any) -> Run:
    return run_of(path, evidence(flips), **changes)


def test_who_was_measured_on_what(tmp_path: Path) -> None:
    model = {"fingerprint": "weights", "candidate_fingerprint": "rounded"}
    identity = target_of_run(run(tmp_path / "a", model=model)).identity
    assert identity.spec == "minilm@W4-g64-rtn"
    assert (identity.model, identity.data_name) == ("minilm", "corpus (test)")
    assert (identity.model_fingerprint, identity.candidate_fingerprint) == ("weights", "rounded")
    assert identity.data_fingerprint == "texts"
    # neither how many ranks are stored, nor the batch size, nor how noise was measured
    assert identity.meaning == {"dtype": "torch.float32", "similarity": "cosine"}
    assert identity.software == {"device": "cpu", "torch": "2.6"}


def test_a_run_without_inputs(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "a", evidence([]).part(np.zeros(0, dtype=np.int64)))
    with pytest.raises(RunError, match=r"there is nothing to judge: .* holds no inputs"):
        target_of_run(folder)


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
    assert part.notes == ("3 inputs are left out, as layers were measured on them",)
    for here, there in ((part, whole), (whole, part)):
        result = gate(here, asked, snapshot_for(there, asked))
        assert (result.verdict, result.differs) == ("pass", ())
        assert result.judgements[0].n == 57


def test_warnings_of_the_data_are_notes(tmp_path: Path) -> None:
    """Each is a sentence of run.json; a note has no full stop, as it is put there when told."""
    warned = {"warnings": ["3 texts are empty.", "2 labels are unknown"], "inputs_left_out": 1}
    assert target_of_run(run(tmp_path / "a", data=warned)).notes == (
        "3 texts are empty",
        "2 labels are unknown",
        "1 inputs are left out, as layers were measured on them",
    )
    assert target_of_run(run(tmp_path / "b", data={"warnings": []})).notes == ()


def diff(tmp_path: Path, a: Any = A, b: Any = B, *, qrels: Any = None, complete: bool = False) -> Diff:
    paths = [write_trec(tmp_path / f"{name}.trec", held) for name, held in (("a", a), ("b", b))]
    one, other = (read_finished(path) for path in paths)
    return diff_runs(one, other, qrels=qrels, complete=complete)


def test_two_finished_runs_have_no_weights(tmp_path: Path) -> None:
    found = target_of_diff(diff(tmp_path, qrels=QRELS))
    identity = found.identity
    assert (identity.spec, identity.model) == ("a.trec vs b.trec", "a.trec")
    assert (identity.model_fingerprint, identity.candidate_fingerprint) == (None, None)
    assert identity.data == "2 inputs"
    snapshot = found.snapshot([parse_metric("flip@1"), parse_metric("gold_lost@1")])
    assert snapshot.input_ids == ("q1", "q2")
    assert snapshot.answers == (answer_of("d1", "d2"), answer_of("d2", "d2"))
    assert snapshot.values["flip@1"].tolist() == [1, 0]
    assert snapshot.values["gold_lost@1"].tolist() == [1, 0]


def test_a_comparison_and_what_it_wrote_can_be_each_others_baseline(tmp_path: Path) -> None:
    asked = rules("flip@1 no worse", "gold_lost@1 no worse")
    found = diff(tmp_path, qrels=QRELS)
    direct = target_of_diff(found)
    (folder,) = write_diff(found, tmp_path / "written")
    written = target_of_run(read_run(folder.path))
    assert (written.identity.model_fingerprint, written.identity.candidate_fingerprint) == (None, None)
    for here, there in ((direct, written), (written, direct)):
        result = gate(here, asked, snapshot_for(there, asked))
        assert (result.verdict, result.differs) == ("pass", ())


def test_lists_of_another_depth_are_another_setting(tmp_path: Path) -> None:
    """Bounds of lists that end elsewhere are not the same thing."""
    deeper = {query: {**held, "d9": 0.1} for query, held in A.items()}
    asked = rules("flip@1 no worse")
    there = snapshot_for(target_of_diff(diff(tmp_path, qrels=QRELS)), asked)
    here = target_of_diff(diff(tmp_path, deeper, deeper, qrels=QRELS))
    assert gate(here, asked, there).differs == ("setting ranks_compared: 3 in the baseline, 4 now",)


def test_other_labels_of_two_finished_runs_are_other_data(tmp_path: Path) -> None:
    asked = rules("flip@1 no worse")
    there = snapshot_for(target_of_diff(diff(tmp_path, qrels=QRELS)), asked)
    other = {"q1": {"d2": 1}, "q2": {"d2": 1}}
    result = gate(target_of_diff(diff(tmp_path, qrels=other)), asked, there)
    assert result.verdict == "incomparable"
    assert result.differs[0].startswith("data: 2 inputs (digest ")
    assert result.differs[0].endswith(" now): ids, texts or labels are others, or their order")


def lm_eval(tmp_path: Path, name: str, wrong: set[int], tasks: tuple[str, ...]) -> Path:
    """Twenty questions per task with two choices; the first is right."""
    for task in tasks:
        samples = [question(n, (-2.0, -1.0) if n in wrong else (-1.0, -2.0)) for n in range(20)]
        config = {"task": task, "output_type": "multiple_choice"}
        write_samples(tmp_path / name, task, samples, config=config)
    return tmp_path / name


@pytest.mark.parametrize(
    ("made", "wanted"), [(evidence(range(3)), SEARCH), (evidence(range(3), labels=False), NO_LABELS)]
)
def test_default_rules(made: Any, wanted: tuple[str, ...]) -> None:
    assert [str(rule) for rule in default_rules(target(made))] == list(wanted)


def test_default_rules_of_classes(tmp_path: Path) -> None:
    data = {"kind": "classification"}
    found = target_of_run(run(tmp_path / "a", data=data))
    assert found.classes
    assert [str(rule) for rule in default_rules(found)] == list(CLASSES)
    assert [str(metric) for metric in stored_metrics(found)] == ["flip@1", "gold_lost@1", "accuracy", "noise_floor"]
    no_labels = run_of(tmp_path / "b", evidence(range(3), labels=False), data=data)
    assert [str(rule) for rule in default_rules(target_of_run(no_labels))] == list(NO_LABELS)


def test_choices_have_one_right_answer_in_a_run_folder_too(tmp_path: Path) -> None:
    """Of lm-eval, whose run folders say how scores were read, and of a diff that was written."""
    reading = {"reading": "log-likelihoods of the choices"}
    own = target_of_run(run(tmp_path / "own", settings=reading))
    assert [str(rule) for rule in default_rules(own)] == list(CLASSES)
    for searched in ({"reading": "reranking"}, {}):
        found = target_of_run(run(tmp_path / "search", settings=searched))
        assert [str(rule) for rule in default_rules(found)] == list(SEARCH)
    full = lm_eval(tmp_path, "full", set(), ("arc",))
    new = lm_eval(tmp_path, "new", {0, 1}, ("arc",))
    (folder,) = write_diff(diff_runs(read_finished(full), read_finished(new)), tmp_path / "diff")
    written = target_of_run(read_run(folder.path))
    assert [str(rule) for rule in default_rules(written)] == list(CLASSES)


def test_data_without_a_digest_are_known_by_what_a_harness_tells_of_them(tmp_path: Path) -> None:
    """lm-eval numbers the documents of every task from 0, so ids tell nothing."""
    told = {"fingerprint": None, "name": "arc", "n_fewshot": 0, "revision": "1.0"}
    asked = rules("flip@1 no worse")
    there = snapshot_for(target_of_run(run(tmp_path / "a", data=told)), asked)
    others = [({}, None), ({"n_fewshot": 5}, "setting data n_fewshot: 0 in the baseline, 5 now")]
    others += [
        ({"name": "piqa"}, "data: arc (test) in the baseline, piqa (test) now"),
        ({"split": "validation"}, "data: arc (test) in the baseline, arc (validation) now"),
        ({"revision": "2.0"}, "setting data revision: 1.0 in the baseline, 2.0 now"),
        ({"subset": "none"}, "setting data subset: nothing in the baseline, none now"),
    ]
    for number, (change, wanted) in enumerate(others):
        here = target_of_run(run(tmp_path / f"b{number}", data={**told, **change}))
        assert gate(here, asked, there).differs == (() if wanted is None else (wanted,))


def test_lists_that_end_early_are_asked_what_they_can_answer(tmp_path: Path) -> None:
    """nDCG@10 of three ranks is not known, and writing the baseline anew would not change it."""
    short = target_of_diff(diff(tmp_path, qrels=QRELS))
    assert [str(rule) for rule in default_rules(short)] == ["flip@1 no worse by 0.03"]
    assert [str(metric) for metric in stored_metrics(short)] == ["flip@1", "gold_lost@1", "noise_floor"]
    (found,) = gate(short, rules("ndcg@10 no worse"), snapshot_for(short, [])).judgements
    assert found.outcome == "error"
    assert "these lists are 3 deep" in found.reason


def test_a_run_that_stored_too_few_ranks_says_so() -> None:
    """It can be made again, so it is not asked less quietly."""
    shallow = target(evidence(range(3), k=5))
    assert [str(rule) for rule in default_rules(shallow)] == list(SEARCH)
    baseline = snapshot_for(shallow, rules("flip@1 no worse"))
    assert "ndcg@10" not in baseline.values
    assert "gold_lost@5" in baseline.values
    with pytest.raises(MetricError, match=r"run again with --k 1\d or more"):
        gate(shallow, default_rules(shallow), baseline)


def test_an_input_without_any_item() -> None:
    made = evidence_of(reference(), reference())
    empty = made.reference_top.items.copy()
    empty[3] = -1
    for top in (made.reference_top, made.candidate_top):
        top.items[3] = -1
    made.n_items[3] = 0
    snapshot = target(made).snapshot([parse_metric("flip@1")])
    assert snapshot.answers[3] == "-"
    assert np.isnan(snapshot.values["flip@1"][3])
    assert np.isnan(snapshot.values["flip@1"]).sum() == 1


def test_a_record_of_another_make(tmp_path: Path) -> None:
    """What a run.json does not say is not guessed."""
    folder = run(tmp_path / "a")
    record = json.loads((folder.path / "run.json").read_text(encoding="utf-8"))
    record = {**record, "spec": "named", "data": {"name": "named"}}
    for part in ("model", "settings"):
        record.pop(part)
    (folder.path / "run.json").write_text(json.dumps(sealed(record)), encoding="utf-8")
    identity = target_of_run(read_run(folder.path)).identity
    assert (identity.spec, identity.model, identity.data_name) == ("named", None, "named")
    assert (identity.model_fingerprint, identity.data_fingerprint) == (None, None)
    assert RECORD["settings"]["k"] == 12  # the samples are as they were
