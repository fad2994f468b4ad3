"""`quantdrift compare` as a user types it, on small runs and without a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from quantdrift.engine.measure import assemble
from quantdrift.engine.scoring.streamed import score_matrix
from quantdrift.runs import write_run
from support.command_line import cli

N = 200


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A flips inputs 0 to 9, B 5 to 44; C is of other data."""
    reference = np.tile([1.0, 0.6, 0.2], (N, 1))
    paths = []
    for name, flips, data in (("A", (0, 10), "x"), ("B", (5, 45), "x"), ("C", (0, 0), "y")):
        candidate = reference + np.random.default_rng(2).normal(0, 1e-3, reference.shape)
        candidate[slice(*flips), :2] = [0.6, 1.0]
        evidence = assemble(
            score_matrix(reference, candidate, k=3),
            input_ids=[str(row) for row in range(N)],
            item_ids=["first", "second", "third"],
            qrels={str(row): {"first": 1} for row in range(N)},
        )
        record = {
            "spec": f"minilm@W4-{name}",
            "model": {"name": "minilm", "fingerprint": "r"},
            "data": {"name": "corpus", "split": "test", "fingerprint": data},
            "settings": {"k": 3, "similarity": "cosine"},
        }
        paths.append(write_run(tmp_path / name, evidence=evidence, record=record).path)
    a, b, c = paths
    return a, b, c


def test_a_table_and_sentences(runs: tuple[Path, Path, Path]) -> None:
    a, b, _ = runs
    code, out, err = cli("compare", a, b)
    assert (code, err) == (0, "")
    assert "A  minilm@W4-A" in out
    assert "B flips 35 inputs that A does not, A flips 5 that B does not" in out
    assert "5.0 %" in out
    assert "22.5 %" in out or "20.0 %" in out
    assert "+15.0 pp" in out
    assert "Worse: flip@1" in out
    assert "inputs\nneeded" not in out


def test_with_a_margin_the_question_is_another(runs: tuple[Path, Path, Path]) -> None:
    a, b, _ = runs
    code, out, _ = cli("compare", b, a, "--margin", "0.1", "-m", "flip@1", "-m", "separation")
    assert code == 0
    assert "No worse by 0.1 or more: flip@1." in out
    assert "no worse" in out
    assert "separation: a median or quantile has an interval here, no test." in out
    _, out, _ = cli("compare", a, a, "--margin", "0.01", "-m", "flip@1")
    assert "Undecided, too few inputs: flip@1." in out


def test_json_and_markdown(runs: tuple[Path, Path, Path]) -> None:
    a, b, _ = runs
    code, out, _ = cli("compare", a, b, "--json", "--margin", "0.1", "--alpha", "0.01")
    read = json.loads(out)
    assert code == 0
    assert (read["margin"], read["alpha"]) == (0.1, 0.01)
    assert read["metrics"][0]["verdict"] == "worse"
    _, out, _ = cli("compare", a, b, "--markdown", "--margin", "0.1")
    lines = out.splitlines()
    assert lines[2].startswith("| `flip@1` | 5.0 % | 20.0 % | +15.0 pp (+")
    assert lines[2].endswith("| worse |")
    assert any(line.startswith("- B flips 35 inputs") for line in lines)


def test_runs_that_do_not_belong_together(runs: tuple[Path, Path, Path]) -> None:
    a, _, c = runs
    for words, said in (
        ((a, c), "data: corpus (test) (digest x in A, y in B)"),
        ((a, a.parent / "none"), "does not exist"),
        ((a, a, "-m", "flip@one"), "did you mean flip@1"),
    ):
        code, out, err = cli("compare", *words)
        assert (code, out) == (2, "")
        assert said in err
