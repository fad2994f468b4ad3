"""`quantdrift diff` as a user types it, on files of a thousand queries and on refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from quantdrift.engine.measure import assemble
from quantdrift.engine.scoring.streamed import score_matrix
from quantdrift.runs import write_run
from support.command_line import cli

N, K = 120, 10


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Two TREC runs that are 10 deep, and labels; the reference's first documents are relevant."""
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(N, 60))
    arms = {"reference": reference, "candidate": reference + 0.1 * rng.normal(size=(N, 60))}
    for name, scores in arms.items():
        lines = [
            f"q{row} Q0 d{item} {rank} {own[item]:.6f} {name}\n"
            for row, own in enumerate(scores)
            for rank, item in enumerate(np.argsort(-own)[:K], start=1)
        ]
        (tmp_path / f"{name}.trec").write_text("".join(lines))
    labels = [f"q{row} 0 d{own.argmax()} 1\n" for row, own in enumerate(reference)]
    (tmp_path / "qrels").write_text("".join(labels))
    return tmp_path / "reference.trec", tmp_path / "candidate.trec", tmp_path / "qrels"


def test_it_prints_bounds_changes_and_sentences(files: tuple[Path, Path, Path]) -> None:
    a, b, qrels = files
    code, out, err = cli("diff", a, b, "--qrels", qrels, "--changed", "2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    for metric, sign in (("separation", "≤ "), ("at_risk", "≥ ")):
        assert sign in next(line for line in lines if f"│ {metric} " in line)
    told = " ".join(out.replace("│", " ").split())
    for part in ("these are lists that were cut short", "2 of ", "from right to wrong", "compared to rank 10"):
        assert part in told


def test_json_and_a_run_folder_hold_the_same_numbers(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    a, b, qrels = files
    options = ["--qrels", qrels, "--json", "-o", tmp_path / "out", "-m", "flip@1", "-m", "epsilon"]
    code, out, _ = cli("diff", a, b, *options)
    found = json.loads(out)
    (part,) = found["parts"]
    assert code == 0
    assert found["folders"] == [str(tmp_path / "out")]
    assert part["ranks"] == {"a": [K, K], "b": [K, K], "compared": K}
    assert part["n_changed"] == round(N * part["metrics"]["flip@1"]["value"])
    assert part["metrics"]["epsilon"]["bound"] == "lower"
    asked = ["-m", "flip@1", "-m", "epsilon", "--json"]
    _, again, _ = cli("metrics", tmp_path / "out", *asked)
    assert json.loads(again)["metrics"] == part["metrics"]


@pytest.mark.parametrize("command", ["law", "contenders", "route", "breakdown"])
def test_what_needs_all_scores_says_that_it_does(command: str, files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    a, b, _ = files
    cli("diff", a, b, "-o", tmp_path / "out")
    code, _, err = cli(command, tmp_path / "out")
    assert code == 2
    assert "cut short" in err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--arms", "both"], "--arms both: expected one of candidate, reference"),
        (["--json", "--markdown"], "expected --json or --markdown"),
        (["-m", "flop@1"], "did you mean flip"),
        (["--part", "test"], "unknown part 'test'"),
        (["--qrels", "nothing"], "nothing cannot be read"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(options: list[str], told: str, files: tuple[Path, Path, Path]) -> None:
    code, out, err = cli("diff", *files[:2], *options)
    assert (code, out) == (2, "")
    assert told in err


def test_arms_of_run_folders_are_named_in_the_order_of_the_runs(tmp_path: Path) -> None:
    reference = np.tile([1.0, 0.6, 0.2], (30, 1))
    candidate = reference.copy()
    candidate[:6, :2] = [0.6, 1.0]
    evidence = assemble(
        score_matrix(reference, candidate, k=3),
        input_ids=[f"q{row}" for row in range(30)],
        item_ids=["first", "second", "third"],
    )
    record = {"spec": "minilm@W4", "model": {"name": "minilm"}, "data": {"name": "x"}}
    run = write_run(tmp_path / "run", evidence=evidence, record=record).path
    options = ["--arms", "reference,candidate", "--json", "--changed", "1"]
    _, out, _ = cli("diff", run, run, *options)
    found = json.loads(out)
    (part,) = found["parts"]
    assert (found["a"]["name"], found["b"]["name"]) == ("minilm", "minilm@W4")
    assert (part["metrics"]["flip@1"]["value"], part["deltas"]) == (0.2, "all")
    assert (part["changed"][0]["before"], part["changed"][0]["after"]) == ("first", "second")
