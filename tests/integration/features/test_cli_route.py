"""`quantdrift route` as a user types it, on small runs and without a model."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

import quantdrift
from support.command_line import cli
from support.routing_samples import classified, logits, run_of, searched, similarities

N = 300


def route(*words: object) -> tuple[int, str, str]:
    code, out, err = cli("route", *words)
    return code, " ".join(out.split()), err


def classifier(path: Path, noise: float = 0.5, seed: int = 0) -> Path:
    return run_of(path, classified(*logits(n=N, n_classes=3, noise=noise, seed=seed))).path


def search(path: Path, noise: float = 0.1, **settings: str) -> Path:
    made = searched(*similarities(n=80, n_items=40, noise=noise), depth=20)
    return run_of(path, made, spec="minilm@W3-g128-rtn", **settings).path


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return classifier(tmp_path / "pets")


def test_a_classifier_gets_a_sweep_and_a_recommendation(pets: Path, tmp_path: Path) -> None:
    code, shown, err = route(pets)
    assert (code, err) == (0, "")
    assert "vit@W4-channel-rtn on pets" in shown
    assert "percentile" not in shown
    assert "the router, for a server" in shown
    shown = route(pets, "--all")[1]
    assert all(f"│ {score} │ 25 │" in shown for score in ("gap", "msp", "entropy"))
    out = cli("route", pets, "--all", "--markdown")[1]
    assert "| score | percentile | inputs routed | cost | lost accuracy recovered | changes recovered |" in out
    rough = route(classifier(tmp_path / "rough", noise=3), "--score", "gap", "--speed-up", "1.1", "--recover", "0.9")[1]
    assert "Nothing cheaper than full precision is shown to correct 90 %" in rough
    assert "│ full precision alone │ 100.0 % │ 100.0 % │" in rough
    read = json.loads(route(pets, "--speed-up", "10", "--json")[1])
    point = read["runs"][0]["operating_point"]
    assert (read["break_even"], point["cost"]) == (pytest.approx(0.9), pytest.approx(0.1 + point["routed"]))


def test_one_seed_gives_one_result(pets: Path) -> None:
    shown = ("--score", "msp", "--percentile", "5,30", "--splits", "3", "--share", "0.3", "--json")
    out = route(pets, *shown)[1]
    read = json.loads(out)
    assert [(p["score"], p["percentile"]) for p in read["runs"][0]["sweep"]] == [("msp", 5), ("msp", 30)]
    assert route(pets, *shown)[1] == out
    assert json.loads(route(pets, *shown, "--seed", "1")[1])["runs"] != read["runs"]


def test_several_runs_are_told_one_by_one(tmp_path: Path) -> None:
    for seed, noise in enumerate((0.0, 0.5, 1.5)):
        classifier(tmp_path / f"task{seed}", noise, seed)
    shown = route(tmp_path, "--score", "gap", "--all", "--markdown")[1]
    assert all(f"on task{number}: thresholds" in shown for number in range(3))


def test_a_search_is_told_what_rescoring_restores(tmp_path: Path) -> None:
    run = search(tmp_path / "nq", 0.03, similarity="euclidean")
    code, shown, _ = route(run)
    (result,) = json.loads(route(run, "--score", "gap", "--percentile", "20", "--json")[1])["runs"]
    assert (code, result["sweep"]) == (0, [])
    assert "Embeddings were compared by euclidean" in shown
    point = result["operating_point"]
    assert point["low"] < point["changes"] < point["high"]
    said = f"rescore the first 10 of the {100 * point['routed']:.1f} % of inputs with the least gap"
    assert any(said in choice["what"] for choice in result["advice"]["choices"])


def test_the_saved_router_does_in_a_server_what_the_command_said(pets: Path, tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    reference, candidate, _ = logits(n=N, n_classes=3)
    changed = reference.argmax(1) != candidate.argmax(1)
    assert "set on all inputs" in route(pets, "--save", path)[1]
    served: dict[str, Any] = {}
    for name, options in {"default": (), "recover": ("--recover", "0.5")}.items():
        code, out, _ = route(pets, "--save", path, "--json", *options)
        router = quantdrift.GapRouter.load(path, spec="vit@W4-channel")
        assert (code, json.loads(out)["router"]["threshold"]) == (0, router.threshold)
        routed = router.routes(candidate)
        served[name] = (routed.mean(), routed[changed].mean())
    assert served["default"][1] >= 0.9
    assert 0.5 <= served["recover"][1] < 0.6


def test_the_inputs_that_a_router_defers_are_listed(pets: Path, tmp_path: Path) -> None:
    shown = route(pets, "--alpha", 0.05, "-o", tmp_path / "deferred.csv")[1]
    with (tmp_path / "deferred.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    (result,) = json.loads(route(pets, "--alpha", 0.05, "--json")[1])["runs"]
    level = result["system"]["certificates"][0]
    deferred = [row for row in rows if row["deferred"] == "true"]
    assert (len(rows), len(deferred) / N) == (N, pytest.approx(1 - level["coverage_of_all"]))
    assert max(float(row["gap"]) for row in deferred) < level["threshold_of_all"]
    assert sum(row["changed"] == "true" for row in rows if row not in deferred) / N <= 0.05
    assert f"sends {100 * len(deferred) / N:.1f} % of them" in shown
    assert "not saved (--save FILE)" in shown
    assert "│ 0.0 % │ nowhere │" in route(pets, "--alpha", 0.5)[1]
    assert "there are 150" not in route(pets, "--alpha", 0.01)[1]  # half of the inputs, which --save takes all of
    assert "of one level" in route(pets, "--alpha", 0.1, "--alpha", 0.2, "-o", tmp_path / "no.csv")[2]


def test_a_level_of_the_whole_system_comes_first_and_is_saved(pets: Path, tmp_path: Path) -> None:
    reference, candidate, _ = logits(n=N, n_classes=3)
    path, changed = tmp_path / "router.json", reference.argmax(1) != candidate.argmax(1)
    arguments = ("--score", "gap", "--alpha", 0.1, "--alpha", 0.05, "--alpha", 0.01, "--json")
    (result,) = json.loads(route(pets, *arguments)[1])["runs"]
    levels = result["system"]["certificates"]
    assert [(level["guarantee"], level["alpha"]) for level in levels] == [("system", a) for a in (0.1, 0.05, 0.01)]
    assert levels[0]["coverage"]["value"] > levels[1]["coverage"]["value"] > 0.5
    assert all(level["joint_violation"]["value"] <= level["alpha"] for level in levels[:2])
    assert levels[2]["coverage"]["value"] is None
    assert "needs 230 calibration inputs, and there are 150" in levels[2]["coverage"]["reason"]
    assert "│ 0.05 │" in route(pets, "--speed-up", 2)[1].partition("thresholds set on")[0]

    code, out, _ = route(pets, "--alpha", "5 %", "--save", path, "--json")
    router = quantdrift.GapRouter.load(path, spec="vit@W4-channel")
    assert (code, router.guarantee, router.alpha, router.confidence_level, router.k) == (0, "system", 0.05, 0.9, None)
    assert json.loads(out)["router"]["guarantee"] == "system"
    differs = int((changed & ~router.routes(candidate)).sum())
    assert binom.cdf(differs, N, 0.05) <= 0.1 < binom.cdf(differs + 1, N, 0.05)
    assert router.threshold == quantdrift.GapRouter.calibrate((reference, candidate), alpha=0.05).threshold


def test_a_system_of_a_search_counts_what_rescoring_does_not_restore(tmp_path: Path) -> None:
    run, path = search(tmp_path / "nq", 0.2), tmp_path / "router.json"
    (result,) = json.loads(route(run, "--alpha", 0.5, "--alpha", 0.05, "--share", 0.6, "--json")[1])["runs"]
    shown, none = result["system"]["certificates"]
    assert (result["k"], none["coverage"]["value"]) == (10, None)
    reference, candidate, _ = similarities(n=80, n_items=40, noise=0.2)
    best, order = reference.argmax(1)[:, None], np.argsort(-candidate, axis=1)
    lost = int((~(order[:, :10] == best).any(1)).sum())
    assert f"{lost} of 80 answers do not come back" in none["coverage"]["reason"]
    assert route(run, "--alpha", 0.05, "--save", path)[0] == 2
    assert lost / 80 < shown["joint_violation"]["value"] <= 0.5
    assert route(run, "--alpha", 0.5, "--save", path)[0] == 0
    router = quantdrift.GapRouter.load(path)
    differs = lost + int(
        ((order[:, :1] != best).ravel() & (order[:, :10] == best).any(1) & ~router.routes(candidate)).sum()
    )
    assert router.k == 10
    assert binom.cdf(differs, 80, 0.5) <= 0.1 < binom.cdf(differs + 1, 80, 0.5)


def test_what_cannot_be_done_is_said(pets: Path, tmp_path: Path) -> None:
    two, nq = classifier(tmp_path / "cars", seed=1), search(tmp_path / "nq")
    for arguments, message in (
        ((pets, "--score", "gaps"), "did you mean gap"),
        ((nq, "--score", "msp"), "expected --score gap"),
        ((pets, "--percentile", "ten"), "with commas between, e.g. 10,25,50"),
        ((pets, "--recover", "0"), "above 0 and at most 1"),
        ((pets, "--alpha", "1.5"), "expected a level above 0 and below 1"),
        ((pets, "--confidence", "1"), "expected a confidence above 0 and below 1"),
        ((pets, "--alpha", "0.1", "--alpha", "0.2", "--save", tmp_path / "r.json"), "a router of one level"),
        ((pets, two, "--save", tmp_path / "r.json"), "--save sets a threshold on one run; got 2 runs"),
    ):
        code, out, err = route(*arguments)
        assert (code, out) == (2, ""), arguments
        assert message in err
    assert not (tmp_path / "r.json").exists()
