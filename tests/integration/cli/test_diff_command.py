"""`quantdrift diff` and `compare` as a user types them, on lists that end early and on refusals."""

import json
from pathlib import Path

import numpy as np
import pytest

from quantdrift.runs.folder import read_run
from support.command_line import cli
from support.comparison_samples import evidence_of, flipped, run_of, scores
from support.finished_samples import write_trec

N, K = 60, 10


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Two TREC runs that are 10 deep, and labels; the reference's first documents are relevant."""
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(N, 40))
    a, b = (
        write_trec(
            tmp_path / f"{name}.trec",
            {f"q{row}": {f"d{n}": float(scores[n]) for n in np.argsort(-scores)[:K]} for row, scores in enumerate(arm)},
        )
        for name, arm in (("a", reference), ("b", reference + 0.1 * rng.normal(size=(N, 40))))
    )
    (tmp_path / "qrels").write_text("".join(f"q{row} 0 d{scores.argmax()} 1\n" for row, scores in enumerate(reference)))
    return a, b, tmp_path / "qrels"


def test_it_prints_bounds_changes_and_sentences(files: tuple[Path, Path, Path]) -> None:
    a, b, qrels = files
    code, out, err = cli("diff", a, b, "--qrels", qrels, "--changed", "2")
    assert (code, err) == (0, "")
    for metric, sign in (("separation", "≤ "), ("at_risk", "≥ ")):
        assert sign in next(line for line in out.splitlines() if f"│ {metric} " in line)
    words = " ".join(out.replace("│", " ").split())
    assert all(part in words for part in ("2 of ", "rank 10", "separation ≤ "))
    cli("diff", a, b, "--qrels", qrels, "-o", a.parent / "pair")
    assert f"Verdict: {read_run(a.parent / 'pair').verdict.word}. " in words


def test_json_and_a_run_folder_hold_the_same_numbers(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    a, b, qrels = files
    asked = ["-m", "flip@1", "-m", "epsilon", "--json"]
    result = json.loads(cli("diff", a, b, "--qrels", qrels, "-o", tmp_path / "out", *asked)[1])
    (part,) = result["parts"]
    assert result["folders"] == [str(tmp_path / "out")]
    assert part["ranks"] == {"a": [K, K], "b": [K, K], "compared": K}
    assert part["n_changed"] == round(N * part["metrics"]["flip@1"]["value"])
    assert part["metrics"]["epsilon"]["bound"] == "lower"
    assert json.loads(cli("metrics", tmp_path / "out", *asked)[1])["metrics"] == part["metrics"]
    assert cli("report", tmp_path / "out", "-o", tmp_path / "page.html")[0] == 0
    assert "The lists were cut short, so the separation is not known" in (tmp_path / "page.html").read_text()
    for words in (["law"], ["contenders"], ["route"], ["metrics", "--by", "separation"]):
        code, _, err = cli(*words, tmp_path / "out")
        assert (code, "truncated" in err or "cut short" in err) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--arms", "reference,candidate"], "is for run folders of quantdrift"),
        (["--arms", "both"], "--arms both: expected one of candidate, reference"),
        (["--json", "--markdown"], "expected --json or --markdown"),
        (["--part", "test"], "unknown part 'test'"),
        (["--qrels", "nothing"], "nothing cannot be read"),
    ],
)
def test_a_wrong_option_is_refused(options: list[str], message: str, files: tuple[Path, Path, Path]) -> None:
    code, out, err = cli("diff", *files[:2], *options)
    assert (code, out) == (2, "")
    assert message in err


def test_arms_of_run_folders_are_named_in_the_order_of_the_runs(tmp_path: Path) -> None:
    reference = np.tile(np.linspace(1, 0, 12), (30, 1))
    run = run_of(tmp_path / "run", evidence_of(reference, flipped(reference, range(6)))).path
    _, out, _ = cli("diff", run, run, "--arms", "reference,candidate", "--json", "--changed", "1")
    result = json.loads(out)
    (part,) = result["parts"]
    assert (result["a"]["name"], result["b"]["name"]) == ("minilm", "minilm@W4-g64-rtn")
    assert (part["metrics"]["flip@1"]["value"], part["deltas"]) == (0.2, "all")
    assert (part["changed"][0]["before"], part["changed"][0]["after"]) == ("d0", "d1")


def test_the_margin_and_the_level_of_a_comparison_are_those_that_were_asked_for(tmp_path: Path) -> None:
    """Of 60 inputs A flips the first 5, B 4 to 39."""
    rows = {"A": range(5), "B": range(4, 40)}
    runs = [
        run_of(tmp_path / n, evidence_of(scores(), flipped(scores(), of)), spec=f"m@{n}").path for n, of in rows.items()
    ]
    code, out, _ = cli("compare", *runs, "--json", "--margin", "0.1", "--alpha", "0.01")
    read = json.loads(out)
    assert (code, read["margin"], read["alpha"], read["metrics"][0]["verdict"]) == (0, 0.1, 0.01, "worse")
    line = cli("compare", *runs, "--markdown", "--margin", "0.1")[1].splitlines()[2]
    assert (line.startswith("| `flip@1` | 8.3 % | 60.0 % | +51.7 pp (+"), line.endswith("| worse |")) == (True, True)
