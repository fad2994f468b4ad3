"""`quantdrift certify` as a user types it, on small runs and without a model."""

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.trust.check import StabilityCheck
from support.command_line import cli
from support.routing_samples import classified, run_of, searched

Write = Callable[..., Path]


def certify(*words: object) -> tuple[int, str, str]:
    code, out, err = cli("certify", *words)
    return code, " ".join(out.split()), " ".join(err.split())


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a run of logits whose candidate differs by noise of a given size."""

    def made(
        name: str, *, noise: float = 0.3, n: int = 200, scale: float = 1.0, logits: bool = True, **run: Any
    ) -> Path:
        rng = np.random.default_rng(len(name))
        reference = rng.normal(size=(n, 6))
        candidate = reference + noise * rng.normal(size=reference.shape)
        evidence = (classified if logits else searched)(scale * reference, scale * candidate)
        ids = np.array([f"{name}{row}" for row in range(n)], dtype=object)
        return run_of(tmp_path / name, replace(evidence, input_ids=ids), **{"spec": "net@W4-g128-rtn", **run}).path

    return made


def test_a_table_and_sentences(write: Write) -> None:
    run = write("mild", noise=0.1)
    code, out, err = certify(run)
    assert (code, err) == (0, "")
    assert re.search(r"│ 0\.10 +│ [\d.]+ % │ (gap above [\d.]+|everything) +│ │ 0\.05", out)
    assert re.search(
        r"tested on the other 100, 20 times over, [\d.]+ %, [\d.]+ %, ([\d.]+ %|-) of the accepted answers", out
    )
    assert "joint" not in out
    (again,) = re.findall(r"quantdrift certify \S+ (--alpha [\d.]+ --save) check.json", out)
    assert certify(run, *again.split(), run / "check.json")[0] == 0
    out = certify(write("logits"), "--all")[1]
    for label in ("conditional", "joint", "S", "2epsilon", "gap", "msp", "entropy", "0.10", "0.05"):
        assert re.search(f"│ {label} +│", out)
    out = certify(write("calm", noise=0.01), "--alpha", 0.1, "--alpha", 0.001)[1]
    assert "level 0.001 from so few inputs: it needs 2,302" in out
    assert "msp" not in certify(write("similar", logits=False), "--all")[1]


def test_nothing_is_accepted_where_all_inputs_together_accept_nothing(write: Write) -> None:
    run = write("rough", noise=1.5)
    first = json.loads(certify(run, "--alpha", 0.1, "--json")[1])["runs"][0]["certificates"][0]
    assert first["coverage_of_all"] == 0
    out = certify(run)[1]
    assert "No answer can be accepted at level 0.1 by these inputs" in out
    assert re.search(r"│ 0\.10 │ 0\.0 % │ nothing │", out)
    assert "--alpha" not in out


def test_all_inputs_may_do_where_half_of_them_are_too_few(write: Write) -> None:
    run = write("calm", noise=0.001, n=300)
    told = certify(run, "--alpha", 0.01)[1]
    assert "it needs 230" not in told
    assert re.search(r"│ 0\.01 +│ 100\.0 % │ everything", told)
    assert "every answer is accepted, as only 0.0 % of all changed" in told
    assert "it needs 230 calibration inputs, and there are 150" in certify(run, "--alpha", 0.01, "--all")[1]


def test_what_is_accepted_is_what_the_saved_check_accepts(write: Write, tmp_path: Path) -> None:
    """A table of halves had one threshold, and the check that is saved another."""
    run = write("mild", noise=0.1)
    for entry in json.loads(certify(run, "--json")[1])["runs"][0]["certificates"]:
        words = ["--alpha", entry["alpha"], "--statistic", entry["statistic"], "--save", tmp_path / "check.json"]
        assert certify(run, *words, *(["--joint"] if entry["guarantee"] == "joint" else []))[0] == 0
        check = StabilityCheck.load(tmp_path / "check.json")
        assert check.expected_coverage == entry["coverage_of_all"]
        assert check.threshold == (entry["threshold_of_all"] or check.threshold)


def test_what_a_check_accepts_is_listed_input_by_input(write: Write, tmp_path: Path) -> None:
    run, check, out = write("logits", n=400), tmp_path / "check.json", tmp_path / "accepted.csv"
    code, told, _ = certify(run, "--alpha", 0.1, "--save", check)
    assert (code, f"--check {check} -o certified.csv" in told) == (0, True)
    accepted = json.loads(certify(run, "--check", check, "-o", out, "--json")[1])["runs"][0]
    with out.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    sure = [row for row in rows if row["accepted"] == "true"]
    assert len(rows) == accepted["n_inputs"] == 400
    assert len(sure) / 400 == pytest.approx(accepted["coverage"]["value"])
    assert 0 < len(sure) < 400
    assert f"of which it accepts {100 * len(sure) / 400:.1f} %" in told
    wrong = sum(row["changed"] == "true" for row in sure) / 400
    assert wrong == pytest.approx(accepted["joint_violation"]["value"])
    assert min(float(row["gap"]) for row in sure) > StabilityCheck.load(check).threshold
    told, again = certify(run, "--alpha", 0.1, "-o", tmp_path / "again.csv")[1], tmp_path / "again.csv"
    assert again.read_text() == out.read_text()
    assert f"400 inputs, of which {len(sure)} are accepted" in told
    assert "got 1 run, 0 levels" in certify(run, "-o", out)[2]
    assert "got 2 runs" in certify(run, write("newer"), "--check", check, "-o", out)[2]


def test_checks_that_accepted_nothing_are_counted(write: Write) -> None:
    runs = [write(f"of{n}-0.05", noise=0.05, n=n) for n in (520, 600)]
    told = [certify(run, "--alpha", 0.01, "--all")[1] for run in runs]
    spreads = [json.loads(certify(run, "--alpha", 0.01, "--json")[1])["runs"][0] for run in runs]
    nothing = [20 - spread["certificates"][0]["violation"]["n"] for spread in spreads]
    assert [f"{none} of the 20 checks" in text for none, text in zip(nothing, told, strict=True)] == [True, False]
    assert nothing[1] == 0


def test_json_has_what_the_table_has(write: Write) -> None:
    runs = write("first"), write("second", n=60)
    out = certify(*runs, "--json", "--splits", 7, "--seed", 3)[1]
    first, second = json.loads(out)["runs"]
    assert (first["n_inputs"], first["n_calibration"], first["n_splits"], first["seed"]) == (200, 100, 7, 3)
    assert len(first["certificates"]) == 18
    for strict, least in ((second["certificates"][2], 230), (second["certificates"][5], 99)):
        assert (strict["alpha"], strict["coverage"]["value"]) == (0.01, None)
        assert f"{least} calibration inputs, and there are 30" in strict["coverage"]["reason"]
    kinds = [(each["guarantee"], each["statistic"]) for each in first["certificates"][::3]]
    assert kinds[:2] == [("conditional", "gap"), ("joint", "S")]
    assert strict["threshold"] is None
    assert certify(*runs, "--json", "--splits", 7, "--seed", 3)[1] == out
    assert certify(*runs, "--json", "--splits", 7, "--seed", 4)[1] != out


def test_a_check_is_saved_and_applied(write: Write, tmp_path: Path) -> None:
    run, file = write("older", candidate="a"), tmp_path / "check.json"
    code, out, _ = certify(run, "--alpha", 0.1, "--joint", "--save", file)
    assert code == 0
    assert "calibrated on all 200 inputs, of which it accepts" in out
    check = StabilityCheck.load(file, spec="net@W4", model_fingerprint="weights")
    assert (check.n_calibration, check.guarantee, check.statistic) == (200, "joint", "S")
    assert certify(run, "--alpha", 0.1, "--save", file)[0] == 0
    check = StabilityCheck.load(file, spec="net@W4", model_fingerprint="weights")
    assert (check.guarantee, check.statistic, check.confidence_level, check.origin.data) == (
        "conditional",
        "gap",
        0.9,
        "older",
    )
    assert "the check was calibrated on these very inputs" in certify(run, "--check", file)[1]
    scaled = certify(write("tiny scores", scale=0.2), "--check", file)[1]
    assert "the confidences of these 200 inputs differ" in scaled
    other = certify(write("other", candidate="b"), "--check", file)[1]
    assert "quantized weights: net@W4-g128-rtn (digest a when it was calibrated, b here)" in other

    newer = write("newer one", n=300)
    code, out, err = certify(newer, "--check", file)
    assert (code, err) == (0, "")
    assert "check.json: conditional, gap at level 0.1 for net@W4-g128-rtn, calibrated on older" in out
    (result,) = json.loads(certify(newer, "--check", file, "--json")[1])["runs"]
    (note,) = result["notes"]
    assert note.startswith("data: older (test), here newer one (test)")
    assert (result["n_inputs"], result["resemblance"]["alike"]) == (300, True)
    assert 0 < result["coverage"]["value"] < 1
    assert result["joint_violation"]["value"] <= result["flip_rate"]
    assert result["violation"]["n"] == round(300 * result["coverage"]["value"])

    code, _, err = certify(write("others", spec="net@W3-g128-rtn"), "--check", file)
    assert code == 2
    assert "pair: net@W4-g128-rtn when it was made, net@W3-g128-rtn now" in err


def test_a_check_is_applied_to_scores_of_the_candidate_alone(write: Write, tmp_path: Path) -> None:
    check, scores, small, run = (tmp_path / name for name in ("check.json", "new.jsonl", "small.jsonl", "older"))
    assert certify(write("older"), "--alpha", 0.1, "--save", check)[0] == 0
    stored = StabilityCheck.load(check)
    new = np.random.default_rng(8).normal(size=(300, 6)) * np.sqrt(1 + 0.3**2)
    scores.write_text("\n".join(json.dumps(row) for row in new.tolist()))
    small.write_text("".join(f"{value / 5}\n" for value in stored.confidence(new)))
    code, out, err = certify(scores, run, small, "--check", check, "--json")
    same, fewer, full = json.loads(out)["runs"]
    assert (code, err, full["data"], full["flip_rate"] > 0) == (0, "", "older", True)
    assert (same["n_inputs"], same["coverage"]["value"]) == (300, stored.accepts(new).mean())
    assert (same["flip_rate"], same["violation"]["value"], same["resemblance"]["alike"]) == (None, None, True)
    assert (fewer["data"], fewer["resemblance"]["alike"]) == ("small.jsonl", False)
    assert "small.jsonl: the confidences of these 300 inputs differ" in certify(small, "--check", check)[1]
    for wrong in (
        "0.5\n[0.1]",
        '0.5\n[1, "2"]',
        "0.5\n[1, true]",
        '0.5\n{"score": 1}',
        "0.5\nNaN",
        "0.5\n" + "[" * 500,
        "",
    ):
        scores.write_text(wrong)
        code, out, err = certify(scores, "--check", check)
        assert (code, out) == (2, ""), wrong
        assert (scores.name in err, "line 2" in err) == (True, bool(wrong)), wrong


def test_what_cannot_be_is_refused(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, similar = write("logits"), write("similar", logits=False)
    monkeypatch.chdir(tmp_path)
    for options, message in (
        ((run, "--statistic", "eps"), "unknown statistic 'eps'"),
        ((similar, "--statistic", "msp"), "Use gap"),
        ((run, "--save", "x.json"), "one level (--alpha 0.05)"),
        ((run, "--save", "x.json", "--alpha", 0.1, "--statistic", "S", "--statistic", "gap"), "and 2 statistics"),
        ((run, "--check", "x.json", "--alpha", 0.1), "expected no --alpha"),
        ((run, "--check", "x.json"), "expected a stability check in x.json, which cannot be read"),
    ):
        code, out, err = certify(*options)
        assert (code, out) == (2, ""), options
        assert message in err
