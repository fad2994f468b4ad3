"""`quantdrift route` as a user types it, on small runs and without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantdrift
from quantdrift.engine.measure import assemble
from quantdrift.engine.readings import evidence_of_logits
from quantdrift.engine.scoring.streamed import score_matrix
from quantdrift.evidence import Evidence
from quantdrift.evidence_file import read_evidence
from quantdrift.runs import write_run
from support.command_line import cli

N, CLASSES = 300, ("cat", "dog", "owl")


def route(*words: object) -> tuple[int, str, str]:
    code, out, err = cli("route", *words)
    return code, " ".join(out.split()), err


def logits(noise: float, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    labels = rng.integers(len(CLASSES), size=N)
    reference = rng.normal(0, 1, (N, len(CLASSES)))
    reference[np.arange(N), labels] += 2
    candidate = reference + rng.normal(0, noise, reference.shape)
    return reference.astype(np.float32), candidate.astype(np.float32), labels


def written(path: Path, evidence: Evidence, spec: str, **settings: str) -> Path:
    record = {
        "spec": spec,
        "model": {"name": spec.partition("@")[0], "fingerprint": "weights"},
        "data": {"name": path.name, "split": "test", "fingerprint": path.name},
        "settings": {"k": evidence.depth, **settings},
    }
    return write_run(path, evidence=evidence, record=record).path


def classifier(path: Path, noise: float = 0.5, seed: int = 0) -> Path:
    reference, candidate, labels = logits(noise, seed)
    evidence = evidence_of_logits(
        reference,
        candidate,
        input_ids=[str(row) for row in range(N)],
        classes=CLASSES,
        labels=[CLASSES[label] for label in labels],
    )
    return written(path, evidence, "vit@W4-channel-rtn")


def search(path: Path, noise: float = 0.1, **settings: str) -> Path:
    rng = np.random.default_rng(0)
    reference = rng.uniform(0, 1, (80, 40)).astype(np.float32)
    candidate = (reference + rng.normal(0, noise, reference.shape)).astype(np.float32)
    evidence = assemble(
        score_matrix(reference, candidate, k=20),
        input_ids=[f"q{row}" for row in range(80)],
        item_ids=[f"d{item}" for item in range(40)],
        qrels={f"q{row}": {f"d{item}": 1} for row, item in enumerate(reference.argmax(1))},
    )
    return written(path, evidence, "minilm@W3-g128-rtn", **settings)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return classifier(tmp_path / "pets")


def test_a_classifier_gets_a_sweep_a_curve_and_a_recommendation(pets: Path, tmp_path: Path) -> None:
    code, told, err = route(pets)
    assert (code, err) == (0, "")
    assert "vit@W4-channel-rtn on pets" in told
    assert all(f"│ {score} │ 25 │" in told for score in ("gap", "msp", "entropy"))
    assert "│ 100.0 % │ 122.2 % │ 100.0 % │ 100.0 % │" in told
    assert "breaks even at 77.8 % routed" in told
    assert "Recommended: " in told
    out = cli("route", pets, "--markdown")[1]
    assert "| score | percentile | routed | lost accuracy recovered | changes recovered |" in out
    rough = route(classifier(tmp_path / "rough", noise=3))[1]
    assert "Recommended: allocate." in rough
    assert "quantdrift run vit@W4.5-channel-rtn+gap --data FOLDER" in rough


def test_a_faster_candidate_costs_less(pets: Path) -> None:
    read = json.loads(route(pets, "--speed-up", "10", "--json")[1])
    curve = read["runs"][0]["cost_curves"]["gap"]
    assert read["break_even"] == pytest.approx(0.9)
    assert curve[0] == {"routed": 0, "cost": 0.1, "changes": 0, "accuracy": 0}
    assert curve[-1] == {"routed": 1, "cost": 1.1, "changes": 1, "accuracy": pytest.approx(1)}


def test_one_seed_gives_one_result(pets: Path) -> None:
    told = ("--score", "msp", "--percentile", "5,30", "--splits", "3", "--share", "0.3", "--json")
    out = route(pets, *told)[1]
    read = json.loads(out)
    assert [(p["score"], p["percentile"]) for p in read["runs"][0]["sweep"]] == [("msp", 5), ("msp", 30)]
    assert read["means"][0]["sweep"] == read["runs"][0]["sweep"]
    assert route(pets, *told)[1] == out
    assert json.loads(route(pets, *told, "--seed", "1")[1])["runs"] != read["runs"]


def test_several_runs_are_averaged_and_told_one_by_one(tmp_path: Path) -> None:
    for seed, noise in enumerate((0.0, 0.5, 1.5)):
        classifier(tmp_path / f"task{seed}", noise, seed)
    told = route(tmp_path, "--score", "gap")[1]
    assert all(f"│ task{number} │ 300 │" in told for number in range(3))
    assert "Recommended, of 3 runs: " in told
    point = json.loads(route(tmp_path, "--json")[1])["means"][0]["sweep"][0]
    assert (point["routed"]["n"], point["changes"]["n"]) == (3, 2)


def test_a_search_gets_the_rescoring_table(tmp_path: Path) -> None:
    code, told, _ = route(search(tmp_path / "nq"))
    assert code == 0
    assert "msp and entropy do not apply" in told
    assert "quantdrift allocate minilm@W3.5-g128-rtn+gap --data FOLDER" in told
    (run,) = json.loads(route(tmp_path / "nq", "--score", "gap", "--percentile", "20", "--json")[1])["runs"]
    assert [(e["percentile"], e["k"]) for e in run["rescoring"]] == [(20, 5), (20, 10), (100, 5), (100, 10)]
    assert run["rescoring"][-1]["restored"] == run["rescoring"][-1]["ceiling"]
    assert run["sweep"] == []
    assert "Recommended: route." in route(search(tmp_path / "calm", noise=0.003))[1]


def test_a_search_is_told_what_rescoring_restores_not_what_it_catches(tmp_path: Path) -> None:
    run, path = search(tmp_path / "nq", 0.03, similarity="euclidean"), tmp_path / "router.json"
    told = route(run, "--save", path)[1]
    point = json.loads(route(run, "--json")[1])["runs"][0]["operating_point"]
    evidence = read_evidence(run / "evidence.parquet")
    # one by one: routed below the threshold, and the reference's first among the first ten
    threshold = quantdrift.GapRouter.load(path).threshold
    tops = evidence.reference_top.items, evidence.candidate_top.items
    changed = [row for row in range(80) if tops[0][row, 0] != tops[1][row, 0]]
    scores = evidence.candidate_top.candidate_scores.astype(float)
    below = {row for row in range(80) if scores[row, 0] - scores[row, 1] < threshold}
    back = [row for row in changed if row in below and tops[0][row, 0] in tops[1][row, :10]]
    assert 0.9 <= len(back) / len(changed) < 0.9 + 1 / len(changed)
    assert (point["counts"], point["restored"]) == ("restored", len(back) / len(changed))
    assert f"Rescoring the first 10 for the {100 * len(below) / 80:.1f} % of the queries" in told
    assert f"restores {100 * len(back) / len(changed):.1f} % of the changed first answers" in told
    assert "Embeddings were compared by euclidean" in told


def test_the_saved_router_does_in_a_server_what_the_command_said(pets: Path, tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    reference, candidate, _ = logits(0.5, 0)
    changed = reference.argmax(1) != candidate.argmax(1)
    told = route(pets, "--save", path, "--percentile", "30,60")[1]
    # 300 distinct gaps: the 30th percentile is the 91st smallest, below which lie 90
    gaps = np.sort(candidate, axis=1)[:, -2:] @ [-1.0, 1.0]
    caught = 100 * (gaps < np.sort(gaps)[90])[changed].mean()
    assert f"sends 30.0 % of these inputs and {caught:.1f} % of those whose answer changed" in told
    served = {}
    for name, options in {
        "default": (),
        "recover": ("--recover", "0.5"),
        "percentile": ("--percentile", "30,60"),
        "both": ("--percentile", "30,60", "--recover", "0.5"),
    }.items():
        code, out, _ = route(pets, "--save", path, "--json", *options)
        router = quantdrift.GapRouter.load(path, spec="vit@W4-channel")
        assert (code, json.loads(out)["router"]["threshold"]) == (0, router.threshold)
        model = quantdrift.RoutedModel(
            lambda rows: candidate[rows], lambda rows: reference[rows], router, classes=CLASSES
        )
        answers = model(np.arange(N))
        served[name] = (answers.routed.mean(), answers.routed[changed].mean())
    assert served["default"][1] >= 0.9
    assert 0.5 <= served["recover"][1] < 0.6
    assert served["percentile"][0] == pytest.approx(0.3, abs=1 / N)
    assert served["both"] == served["recover"]


def test_what_cannot_be_done_is_said(pets: Path, tmp_path: Path) -> None:
    two, nq = classifier(tmp_path / "cars", seed=1), search(tmp_path / "nq")
    for arguments, message in (
        ((pets, "--score", "gaps"), "did you mean gap"),
        ((nq, "--score", "msp"), "expected --score gap"),
        ((pets, "--percentile", "ten"), "with commas between, e.g. 10,25,50"),
        ((pets, "--percentile", "101"), "percentile from 0 to 100"),
        ((pets, "--recover", "0"), "above 0 and at most 1"),
        ((pets, "--share", "1"), "a share above 0 and below 1"),
        ((pets, "--speed-up", "0.9"), "expected a speed-up of 1 or more"),
        ((pets, two, "--save", tmp_path / "r.json"), "--save sets a threshold on one run; got 2 runs"),
        ((pets, "--figure", tmp_path / "cost.txt"), "a figure's name ends in"),
    ):
        code, out, err = route(*arguments)
        assert (code, out) == (2, ""), arguments
        assert message in err
    assert not (tmp_path / "r.json").exists()


def test_a_figure_is_drawn_the_same_each_time(pets: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'figures' is not installed")
    path = tmp_path / "cost.svg"
    assert route(pets, "--figure", path)[0] == 0
    drawn = path.read_text()
    assert all(f'id="{line}"' in drawn for line in ("changes-gap", "changes-msp", "changes-entropy", "accuracy-gap"))
    route(pets, "--figure", path)
    assert path.read_text() == drawn
