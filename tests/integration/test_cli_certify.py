"""`quantdrift certify` as a user types it, on small runs and without a model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quantdrift.cli import main
from quantdrift.confidence import softmax_confidence
from quantdrift.measurement.assembly import assemble
from quantdrift.runs import write_run
from quantdrift.scoring import score_matrix
from quantdrift.stability import StabilityCheck

Cli = Callable[..., tuple[int, str, str]]
N = 200


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command line; gives exit code, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["quantdrift", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return int(stopped.value.code or 0), " ".join(out.split()), err

    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a run of logits whose candidate differs by noise of a given size."""

    def made(
        name: str,
        *,
        noise: float = 0.3,
        n: int = N,
        scale: float = 1.0,
        spec: str = "net@W4-g128-rtn",
        data: str = "x",
        logits: bool = True,
    ) -> Path:
        rng = np.random.default_rng(len(name))
        reference = scale * rng.normal(size=(n, 6))
        candidate = reference + scale * noise * rng.normal(size=reference.shape)
        evidence = assemble(
            score_matrix(reference, candidate),
            input_ids=[f"{name}{row}" for row in range(n)],
            item_ids=[f"class {item}" for item in range(6)],
        )
        if logits:
            evidence = replace(evidence, confidence=softmax_confidence(candidate))
        record = {
            "spec": spec,
            "model": {"name": "net", "fingerprint": "weights"},
            "data": {"name": name, "split": "test", "fingerprint": data},
            "settings": {},
        }
        return write_run(tmp_path / name, evidence=evidence, record=record).path

    return made


def test_a_table_and_sentences(cli: Cli, write: Callable[..., Path]) -> None:
    code, out, err = cli("certify", write("logits"))
    assert (code, err) == (0, "")
    assert "net@W4-g128-rtn on logits" in out
    for label in ("S", "2epsilon", "gap alone", "msp alone", "entropy alone", "0.10", "0.05"):
        assert f"│ {label} │" in out
    assert "200 inputs, of which 100 calibrate and 100 are tested, over 20 random splits" in out
    assert "At level 0.1, " in out
    assert "can be served without a second look; of those, " in out
    assert "left out" not in out


def test_similarities_have_no_msp_and_one_line_says_so(
    cli: Cli, write: Callable[..., Path]
) -> None:
    run = write("similar", logits=False)
    _, out, _ = cli("certify", run)
    assert "msp alone" not in out
    assert "msp and entropy are left out: they are of class probabilities" in out
    code, _, err = cli("certify", run, "--statistic", "msp")
    assert code == 2
    assert "Use gap" in err


def test_what_says_nothing_is_said(cli: Cli, write: Callable[..., Path]) -> None:
    _, out, _ = cli("certify", write("calm", noise=0.01), "--alpha", 0.1, "--alpha", 0.001)
    assert "At level 0.1 the bound alone says nothing: were every answer accepted, only" in out
    assert "Nothing can be accepted at level 0.001 from so few inputs: that takes 999" in out
    _, out, _ = cli("certify", write("rough", noise=3), "--alpha", 0.1)
    assert "says nothing" not in out


def test_json_has_what_the_table_has(cli: Cli, write: Callable[..., Path]) -> None:
    run, other = write("first"), write("second", n=60)
    _, out, _ = cli("certify", run, other, "--json", "--splits", 7, "--seed", 3)
    first, second = json.loads(out)["runs"]
    assert (first["n_inputs"], first["n_calibration"], first["n_splits"]) == (200, 100, 7)
    assert first["seed"] == 3
    assert len(first["certificates"]) == 15
    strict = second["certificates"][2]
    assert (strict["statistic"], strict["alpha"]) == ("S", 0.01)
    assert strict["coverage"]["value"] is None
    assert "99 calibration inputs, and there are 30" in strict["coverage"]["reason"]
    assert strict["threshold"] == {"value": None, "reason": "+infinity: nothing is accepted"}
    _, again, _ = cli("certify", run, other, "--json", "--splits", 7, "--seed", 3)
    assert again == out
    _, moved, _ = cli("certify", run, other, "--json", "--splits", 7, "--seed", 4)
    assert moved != out


def test_markdown(cli: Cli, write: Callable[..., Path]) -> None:
    _, out, _ = cli("certify", write("logits"), "--markdown", "--statistic", "S", "--alpha", 0.2)
    assert "| level | calibrated | accepted | accepted and changed |" in out
    assert "| 0.20 | S |" in out
    assert "- At level 0.2, " in out


def test_a_check_is_saved_and_applied(cli: Cli, write: Callable[..., Path], tmp_path: Path) -> None:
    run, file = write("older"), tmp_path / "check.json"
    code, out, _ = cli("certify", run, "--alpha", 0.1, "--save", file)
    assert code == 0
    assert "calibrated on all 200 inputs: an answer is accepted where its gap is at or above" in out
    check = StabilityCheck.load(file, spec="net@W4", model_fingerprint="weights")
    assert (check.n_calibration, check.statistic, check.origin.data) == (200, "S", "older")

    newer = write("newer one", data="y", n=300)
    code, out, err = cli("certify", newer, "--check", file)
    assert (code, err) == (0, "")
    assert "check.json: S at level 0.1 for net@W4-g128-rtn" in out
    assert "show no difference from those of the calibration inputs" in out
    assert "not held out" not in out
    _, out, _ = cli("certify", newer, "--check", file, "--json")
    (found,) = json.loads(out)["runs"]
    assert found["n_inputs"] == 300
    assert found["resemblance"]["alike"]
    assert found["notes"] == []
    assert 0 < found["coverage"]["value"] < 1
    assert found["joint_violation"]["value"] <= found["flip_rate"]
    assert found["violation"]["n"] == round(300 * found["coverage"]["value"])


def test_other_inputs_are_noted(cli: Cli, write: Callable[..., Path], tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    run = write("older")
    cli("certify", run, "--alpha", 0.1, "--save", file)
    code, out, err = cli("certify", write("tiny scores", scale=0.2, data="y"), "--check", file)
    assert (code, err) == (0, "")  # a note, no Python warning
    assert "Note, tiny scores: the confidences of these 200 inputs differ" in out
    _, out, _ = cli("certify", run, "--check", file)
    assert "Note, older: the check was calibrated on this very data" in out
    _, out, _ = cli("certify", run, "--check", file, "--markdown")
    assert "| older | 200 |" in out


def test_a_check_of_another_pair_is_refused(
    cli: Cli, write: Callable[..., Path], tmp_path: Path
) -> None:
    file = tmp_path / "check.json"
    cli("certify", write("older"), "--alpha", 0.1, "--save", file)
    code, _, err = cli("certify", write("other", spec="net@W3-g128-rtn"), "--check", file)
    assert code == 2
    assert "the stability check is for net@W4-g128-rtn, and is asked about net@W3-g128-rtn" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--alpha", 1.5), "expected a level above 0 and below 1"),
        (("--alpha", 0), "expected a level above 0 and below 1"),
        (("--statistic", "eps"), "unknown statistic 'eps'"),
        (("--splits", 0), "expected at least one split"),
        (("--share", 1), "expected at least one split"),
        (("--save", "x.json"), "expected one run, one --alpha"),
        (("--save", "x.json", "--alpha", 0.1, "--alpha", 0.2), "expected one run, one --alpha"),
        (("--check", "x.json", "--alpha", 0.1), "expected no --alpha"),
        (("--check", "x.json"), "cannot be read as a stability check"),
        (("--json", "--markdown"), "expected --json or --markdown"),
    ],
)
def test_what_cannot_be_is_refused(
    cli: Cli,
    write: Callable[..., Path],
    options: tuple[object, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = write("logits")
    monkeypatch.chdir(run.parent)
    code, out, err = cli("certify", run, *options)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_metrics_and_compare_know_the_levels(cli: Cli, write: Callable[..., Path]) -> None:
    run = write("logits")
    code, out, _ = cli("metrics", run, "-m", "coverage@0.1", "-m", "violation@0.05", "--json")
    assert code == 0
    assert list(json.loads(out)["metrics"]) == ["coverage@0.10", "violation@0.05"]
    _, out, _ = cli("compare", run, run, "-m", "coverage@0.1")
    assert "coverage@0.10" in out
    _, out, _ = cli("breakdown", run, "-m", "coverage@0.1", "--json")
    assert "coverage@0.10" in json.loads(out)["buckets"][0]["metrics"]
    _, out, _ = cli("list", "metrics", "--json")
    assert '"coverage@0.10, coverage@0.05, coverage@0.01"' in out


def test_neither_the_command_nor_a_server_loads_torch(write: Callable[..., Path]) -> None:
    run = write("logits")
    code = (
        "import sys; sys.argv = ['quantdrift', 'certify', sys.argv[1]]\n"
        "from quantdrift import StabilityCheck, StabilityMonitor\n"
        "assert not {'torch', 'scipy.stats', 'pyarrow'} & set(sys.modules)\n"
        "from quantdrift.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
