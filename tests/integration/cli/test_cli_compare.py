"""`quantdrift compare` as a user types it, on small runs and without a model."""

import json
from pathlib import Path

import pytest

from support.command_line import cli
from support.comparison_samples import evidence_of, flipped, run_of, scores


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Of 60 inputs A flips the first 5, B 4 to 39; C is of other data."""
    paths = []
    for name, rows, data in (("A", range(5), "x"), ("B", range(4, 40), "x"), ("C", range(0), "y")):
        evidence = evidence_of(scores(), flipped(scores(), rows))
        paths.append(run_of(tmp_path / name, evidence, spec=f"m@{name}", data={"fingerprint": data}).path)
    a, b, c = paths
    return a, b, c


def test_a_table_and_sentences(runs: tuple[Path, Path, Path]) -> None:
    a, b, _ = runs
    code, out, err = cli("compare", a, b)
    assert (code, err) == (0, "")
    assert all(part in out for part in ("A  m@A", "B flips 35 inputs", "A flips 4 ", "+51.7 pp", "Worse: flip@1"))
    assert "needed" not in out


def test_with_a_margin_the_question_is_another(runs: tuple[Path, Path, Path]) -> None:
    a, b, _ = runs
    _, out, _ = cli("compare", b, a, "--margin", "0.1", "-m", "flip@1", "-m", "candidate_gap")
    assert "No worse by 0.1 or more: flip@1." in out
    assert "candidate_gap: a median or quantile has an interval here, no test." in out
    _, out, _ = cli("compare", a, a, "--margin", "0.01", "-m", "flip@1")
    assert "Undecided, too few inputs: flip@1." in out


def test_json_and_markdown(runs: tuple[Path, Path, Path]) -> None:
    a, b, _ = runs
    code, out, _ = cli("compare", a, b, "--json", "--margin", "0.1", "--alpha", "0.01")
    read = json.loads(out)
    assert (code, read["margin"], read["alpha"], read["metrics"][0]["verdict"]) == (0, 0.1, 0.01, "worse")
    lines = cli("compare", a, b, "--markdown", "--margin", "0.1")[1].splitlines()
    assert lines[2].startswith("| `flip@1` | 8.3 % | 60.0 % | +51.7 pp (+")
    assert lines[2].endswith("| worse |")
    assert any(line.startswith("- B flips 35 inputs") for line in lines)
