"""`quantdrift route` as a user types it, on small runs and without a model."""

from __future__ import annotations

import json
import subprocess
import sys
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


def logits(noise: float, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    labels = rng.integers(len(CLASSES), size=N)
    reference = rng.normal(0, 1, (N, len(CLASSES)))
    reference[np.arange(N), labels] += 2
    candidate = reference + rng.normal(0, noise, reference.shape)
    return reference.astype(np.float32), candidate.astype(np.float32), labels


def written(path: Path, evidence: Evidence, spec: str, *, similarity: str | None = None) -> Path:
    record = {
        "spec": spec,
        "model": {"name": spec.partition("@")[0], "fingerprint": "weights"},
        "data": {"name": path.name, "split": "test", "fingerprint": path.name},
        "settings": {"k": evidence.depth, **({"similarity": similarity} if similarity else {})},
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


def search(path: Path, noise: float = 0.1, similarity: str | None = None) -> Path:
    rng = np.random.default_rng(0)
    reference = rng.uniform(0, 1, (80, 40)).astype(np.float32)
    candidate = (reference + rng.normal(0, noise, reference.shape)).astype(np.float32)
    evidence = assemble(
        score_matrix(reference, candidate, k=20),
        input_ids=[f"q{row}" for row in range(80)],
        item_ids=[f"d{item}" for item in range(40)],
        qrels={f"q{row}": {f"d{item}": 1} for row, item in enumerate(reference.argmax(1))},
    )
    return written(path, evidence, "minilm@W3-g128-rtn", similarity=similarity)


def test_a_classifier_gets_a_sweep_a_curve_and_a_recommendation(tmp_path: Path) -> None:
    code, out, err = cli("route", classifier(tmp_path / "pets"))
    words = " ".join(out.split())
    assert (code, err) == (0, "")
    assert "vit@W4-channel-rtn on pets" in out
    assert all(f"│ {score:7} │         25 │" in out for score in ("gap", "msp", "entropy"))
    assert "│ 100.0 % │ 122.2 % │           100.0 % │                 100.0 % │" in out
    assert "at risk (95 % interval" in words
    assert "The speed-up" not in words
    assert "the speed-up of 4.5 is stated, not measured" in words
    assert "breaks even at 77.8 % routed" in words
    assert "Recommended: " in out


def test_a_classifier_that_changes_much_is_told_the_run_that_allocates(tmp_path: Path) -> None:
    words = " ".join(cli("route", classifier(tmp_path / "pets", noise=3))[1].split())
    assert "Recommended: allocate." in words
    assert "quantdrift run vit@W4.5-channel-rtn+gap --data FOLDER" in words
    assert "quantdrift allocate" not in words


def test_the_two_tables_say_what_they_are_measured_on(tmp_path: Path) -> None:
    run = classifier(tmp_path / "pets")
    out = cli("route", run, "--markdown", "--speed-up", "1.5")[1]
    assert "`vit@W4-channel-rtn` on pets: thresholds set on 50 %, measured on the rest" in out
    assert "Cost of routing by gap on these very inputs" in out
    # it breaks even at a third; beyond that only the end is shown
    curve = [line.split(" | ")[1] for line in out.splitlines() if line.count(" | ") == 3]
    assert "96.7 %" in curve
    assert not {"106.7 %", "116.7 %"} & set(curve)
    assert "166.7 %" in curve
    out = cli("route", run, "--markdown", "--share", "0.3")[1]
    assert "thresholds set on 30 %, measured on the rest" in out


def test_with_two_classes_it_is_said_that_confidences_order_alike(tmp_path: Path) -> None:
    reference, candidate, labels = logits(0.5, 0)
    evidence = evidence_of_logits(
        reference[:, :2],
        candidate[:, :2],
        input_ids=[str(row) for row in range(N)],
        classes=CLASSES[:2],
        labels=[CLASSES[label % 2] for label in labels],
    )
    two = written(tmp_path / "two", evidence, "vit@W4-channel-rtn")
    said = "With two classes gap, msp and entropy order the inputs alike: their rows are the same."
    assert said in " ".join(cli("route", two)[1].split())
    assert "two classes" not in cli("route", two, "--score", "gap")[1]
    assert "two classes" not in cli("route", classifier(tmp_path / "three"))[1]


def test_a_faster_candidate_costs_less(tmp_path: Path) -> None:
    run = classifier(tmp_path / "pets")
    _, out, _ = cli("route", run, "--speed-up", "10", "--json")
    read = json.loads(out)
    assert read["break_even"] == pytest.approx(0.9)
    curve = read["runs"][0]["cost_curves"]["gap"]
    assert curve[0] == {"routed": 0, "cost": 0.1, "changes": 0, "accuracy": 0}
    assert curve[-1] == {"routed": 1, "cost": 1.1, "changes": 1, "accuracy": pytest.approx(1)}
    code, _, err = cli("route", run, "--speed-up", "0.9")
    assert code == 2
    assert "expected a speed-up of 1 or more" in err


def test_json_has_everything_and_one_seed_gives_one_result(tmp_path: Path) -> None:
    run = classifier(tmp_path / "pets")
    told = ("--score", "msp", "--percentile", "5,30", "--splits", "3", "--share", "0.3", "--json")
    _, out, _ = cli("route", run, *told)
    read = json.loads(out)
    assert [(p["score"], p["percentile"]) for p in read["runs"][0]["sweep"]] == [("msp", 5), ("msp", 30)]
    assert read["means"][0]["sweep"] == read["runs"][0]["sweep"]
    assert read["runs"][0]["sweep"][1]["changes"]["n"] == 3
    assert cli("route", run, *told)[1] == out
    assert json.loads(cli("route", run, *told, "--seed", "1")[1])["runs"] != read["runs"]


def test_several_runs_are_averaged_and_told_one_by_one(tmp_path: Path) -> None:
    for seed, noise in enumerate((0.0, 0.5, 1.5)):
        classifier(tmp_path / f"task{seed}", noise, seed)
    _, out, _ = cli("route", tmp_path, "--score", "gap")
    words = " ".join(out.split())
    assert "vit@W4-channel-rtn, 3 runs" in out
    assert "standard deviation over the runs" in words
    assert all(f"│ task{number} │    300 │" in out for number in range(3))
    assert "Recommended, of 3 runs: " in words
    assert "nothing for 1." in words
    point = json.loads(cli("route", tmp_path, "--json")[1])["means"][0]["sweep"][0]
    assert (point["routed"]["n"], point["changes"]["n"]) == (3, 2)


def test_a_search_gets_the_rescoring_table(tmp_path: Path) -> None:
    code, out, _ = cli("route", search(tmp_path / "nq"))
    words = " ".join(out.split())
    assert code == 0
    assert "msp and entropy do not apply" in words
    assert "first k results rescored" in words
    assert "Recommended: allocate." in words
    assert "quantdrift allocate minilm@W3.5-g128-rtn+gap --data FOLDER" in words
    _, out, _ = cli("route", tmp_path / "nq", "--score", "gap", "--percentile", "20", "--json")
    (run,) = json.loads(out)["runs"]
    assert [(e["percentile"], e["k"]) for e in run["rescoring"]] == [(20, 5), (20, 10), (100, 5), (100, 10)]
    assert run["rescoring"][-1]["restored"] == run["rescoring"][-1]["ceiling"]
    assert run["sweep"] == []
    code, _, err = cli("route", tmp_path / "nq", "--score", "msp")
    assert code == 2
    assert "expected --score gap" in err


def test_a_search_that_hardly_changes_is_told_to_rescore(tmp_path: Path) -> None:
    words = " ".join(cli("route", search(tmp_path / "nq", noise=0.003))[1].split())
    assert "Recommended: route." in words
    assert "In retrieval that is rescoring" in words


def test_a_search_is_told_what_rescoring_restores_not_what_it_catches(tmp_path: Path) -> None:
    run, path = search(tmp_path / "nq", 0.03, "euclidean"), tmp_path / "router.json"
    words = " ".join(cli("route", run, "--save", path)[1].split())
    point = json.loads(cli("route", run, "--json")[1])["runs"][0]["operating_point"]
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
    assert (
        f"Rescoring the first 10 for the {100 * len(below) / 80:.1f} % of the queries with the "
        f"least gap restores {100 * len(back) / len(changed):.1f} % of the changed first answers; "
        "for all queries 100.0 %."
    ) in words
    assert "Cost of encoding queries: " in words
    assert "catches" not in words
    assert "Embeddings were compared by euclidean" in words
    assert "Instead of allocating, the first results can be rescored" in words
    assert "with k = 10 for all queries, 100.0 % of the changed first answers" in words


def test_a_share_that_cannot_be_restored_is_counted_in_caught_answers(tmp_path: Path) -> None:
    run, path = search(tmp_path / "nq", noise=3), tmp_path / "router.json"
    words = " ".join(cli("route", run, "--save", path)[1].split())
    assert "To restore 90.0 % is out of reach" in words
    assert ", more than full precision alone" in words
    assert json.loads(cli("route", run, "--json")[1])["runs"][0]["operating_point"]["caught"] >= 0.9


def test_several_searches_are_averaged_and_told_one_by_one(tmp_path: Path) -> None:
    for name, noise in (("nq", 0.03), ("hotpot", 3)):
        search(tmp_path / name, noise)
    words = " ".join(cli("route", tmp_path, "--score", "gap", "--markdown")[1].split())
    assert "rescored to restore 90 % | cost of encoding queries" in words
    assert "| hotpot | 80 |" in words
    assert "Instead of allocating, the first results can be rescored" in words
    assert "Cost of encoding queries is 1 / 4.5 + rescored share" in words


def test_what_costs_more_than_full_precision_and_a_single_split_are_said(tmp_path: Path) -> None:
    run = classifier(tmp_path / "pets", noise=3)
    _, out, _ = cli("route", run, "--splits", "1", "--speed-up", "1.1")
    words = " ".join(out.split())
    assert "of the cost of full precision, more than full precision alone." in words
    assert "±" not in words
    fast = " ".join(cli("route", classifier(tmp_path / "cars", 0.1), "--speed-up", "10")[1].split())
    assert "more than full precision alone." not in fast
    assert "±: standard deviation over 20 random splits." in fast


def test_a_saved_entropy_is_told_in_nats(tmp_path: Path) -> None:
    run, path = classifier(tmp_path / "pets"), tmp_path / "router.json"
    _, out, _ = cli("route", run, "--score", "entropy", "--save", path, "--json")
    router = json.loads(out)["router"]
    assert router["threshold"] < 0
    assert router["rule"] == f"entropy above {-router['threshold']:.4g} nats"


def test_the_saved_router_does_in_a_server_what_the_command_said(tmp_path: Path) -> None:
    run, path = classifier(tmp_path / "pets"), tmp_path / "router.json"
    reference, candidate, _ = logits(0.5, 0)
    changed = reference.argmax(1) != candidate.argmax(1)
    _, out, _ = cli("route", run, "--save", path)
    assert f"router: {path} sends " in out
    assert "to full precision (gap below " in out
    said = cli("route", run, "--save", path, "--percentile", "30,60")[1].splitlines()[-2:]
    line = next(each for each in said if each.startswith("router: "))
    # 300 distinct gaps: the 30th percentile is the 91st smallest, below which lie 90
    gaps = np.sort(np.sort(candidate, axis=1)[:, -2:] @ [-1.0, 1.0])
    below = np.sort(candidate, axis=1)[:, -2:] @ [-1.0, 1.0] < gaps[90]
    caught = 100 * below[changed].mean()
    assert f"sends 30.0 % of these inputs and {caught:.1f} % of those whose answer changed" in line
    served = {}
    for name, options in {
        "default": (),
        "recover": ("--recover", "0.5"),
        "percentile": ("--percentile", "30,60"),
        "both": ("--percentile", "30,60", "--recover", "0.5"),
    }.items():
        code, out, _ = cli("route", run, "--save", path, "--json", *options)
        assert code == 0
        router = quantdrift.GapRouter.load(path, spec="vit@W4-channel")
        assert json.loads(out)["router"]["threshold"] == router.threshold
        model = quantdrift.RoutedModel(
            lambda rows: candidate[rows], lambda rows: reference[rows], router, classes=CLASSES
        )
        answers = model(np.arange(N))
        served[name] = (answers.routed.mean(), answers.routed[changed].mean())
    assert served["default"][1] >= 0.9
    assert 0.5 <= served["recover"][1] < 0.6
    assert served["percentile"][0] == pytest.approx(0.3, abs=1 / N)
    assert served["both"] == served["recover"]


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    one, two = classifier(tmp_path / "pets"), classifier(tmp_path / "cars", seed=1)
    for arguments, message in (
        ((one, "--score", "gaps"), "did you mean gap"),
        ((one, "--percentile", "ten"), "with commas between, e.g. 10,25,50"),
        ((one, "--percentile", "101"), "percentile from 0 to 100"),
        ((one, "--recover", "0"), "above 0 and at most 1"),
        ((one, "--share", "1"), "a share above 0 and below 1"),
        ((one, two, "--save", tmp_path / "r.json"), "--save sets a threshold on one run; got 2 runs"),
        ((one, "--json", "--markdown"), "--json or --markdown"),
        ((one, "--figure", tmp_path / "cost.txt"), "a figure's name ends in"),
        ((tmp_path / "none",), "does not exist"),
    ):
        code, out, err = cli("route", *arguments)
        assert (code, out) == (2, ""), arguments
        assert message in err
    assert not (tmp_path / "r.json").exists()


def test_markdown_tables(tmp_path: Path) -> None:
    _, out, _ = cli("route", classifier(tmp_path / "pets"), "--markdown")
    assert "| score | percentile | routed | lost accuracy recovered | changes recovered |" in out
    assert "\n- Recommended: " in out


def test_a_figure_is_drawn_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'figures' is not installed")
    run, path = classifier(tmp_path / "pets"), tmp_path / "cost.svg"
    code, out, _ = cli("route", run, "--figure", path)
    drawn = path.read_text()
    assert code == 0
    assert f"figure: {path}" in out
    assert all(f'id="changes-{score}"' in drawn for score in ("gap", "msp", "entropy"))
    assert 'id="accuracy-gap"' in drawn
    cli("route", run, "--figure", path)
    assert path.read_text() == drawn


def test_the_help_teaches() -> None:
    code, out, _ = cli("route", "--help")
    words = " ".join(out.split())
    assert code == 0
    assert "1 / speed-up + routed share" in words
    assert "quantdrift.GapRouter.load" in words


def test_it_needs_no_torch(tmp_path: Path) -> None:
    code = f"""
import sys
from quantdrift.cli import main
sys.argv = ["quantdrift", "route", {str(classifier(tmp_path / "pets"))!r}, "--json"]
try:
    main()
finally:
    assert not {{"torch", "transformers"}} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"][0]["n_inputs"] == N
