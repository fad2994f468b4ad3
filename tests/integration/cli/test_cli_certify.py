"""`quantdrift certify` as a user types it, on small runs and without a model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.conformal import StabilityError, softmax_confidence
from quantdrift.engine.measure import assemble
from quantdrift.engine.scoring.streamed import score_matrix
from quantdrift.runs import write_run
from quantdrift.trust.check import StabilityCheck
from support.command_line import cli

N = 200


def certify(*words: object) -> tuple[int, str, str]:
    code, out, err = cli(*words)
    return code, " ".join(out.split()), err


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a run of logits whose candidate differs by noise of a given size."""

    def made(
        name: str,
        *,
        noise: float = 0.3,
        n: int = N,
        n_items: int = 6,
        scale: float = 1.0,
        spec: str = "net@W4-g128-rtn",
        data: str | None = "x",
        logits: bool = True,
        named: str | None = None,
        model: dict[str, Any] | None = None,
        more: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
    ) -> Path:
        rng = np.random.default_rng(len(name))
        reference = scale * rng.normal(size=(n, n_items))
        candidate = reference + scale * noise * rng.normal(size=reference.shape)
        evidence = assemble(
            score_matrix(reference, candidate),
            input_ids=[f"{name}{row}" for row in range(n)],
            item_ids=[f"class {item}" for item in range(n_items)],
        )
        if logits:
            evidence = replace(evidence, confidence=softmax_confidence(candidate))
        record = {
            "spec": spec,
            "model": {"name": "net", "fingerprint": "weights", **(model or {})},
            "data": {"name": named or name, "split": "test", "fingerprint": data, **(more or {})},
            "settings": settings or {},
        }
        return write_run(tmp_path / name, evidence=evidence, record=record).path

    return made


def test_a_table_and_sentences(write: Callable[..., Path]) -> None:
    code, out, err = certify("certify", write("logits"))
    assert (code, err) == (0, "")
    assert "net@W4-g128-rtn on logits" in out
    for label in ("S", "2epsilon", "gap alone", "msp alone", "entropy alone", "0.10", "0.05"):
        assert f"│ {label} │" in out
    assert "200 inputs, of which 100 calibrate and 100 are tested, over 20 random splits" in out
    assert "At level 0.1, " in out
    assert re.search(r"At level 0\.1, [\d.]+ % of the answers .*; of those, [\d.]+ % changed", out)
    assert "left out" not in out


def test_similarities_have_no_msp_and_one_line_says_so(write: Callable[..., Path]) -> None:
    run = write("similar", logits=False)
    _, out, _ = certify("certify", run)
    assert "msp alone" not in out
    assert "msp and entropy are left out: they are of class probabilities" in out
    code, _, err = certify("certify", run, "--statistic", "msp")
    assert code == 2
    assert "Use gap" in err


def test_what_says_nothing_is_said(write: Callable[..., Path]) -> None:
    _, out, _ = certify("certify", write("calm", noise=0.01), "--alpha", 0.1, "--alpha", 0.001)
    assert re.search(r"[\d.]+ % changed, but .*\. Ask for a smaller --alpha\.", out)
    assert "Nothing can be accepted at level 0.001 from so few inputs: that takes 999" in out
    _, out, _ = certify("certify", write("rough", noise=3), "--alpha", 0.1)
    assert "says nothing" not in out


def test_json_has_what_the_table_has(write: Callable[..., Path]) -> None:
    run, other = write("first"), write("second", n=60)
    _, out, _ = certify("certify", run, other, "--json", "--splits", 7, "--seed", 3)
    first, second = json.loads(out)["runs"]
    assert (first["n_inputs"], first["n_calibration"], first["n_splits"]) == (200, 100, 7)
    assert first["seed"] == 3
    assert len(first["certificates"]) == 15
    strict = second["certificates"][2]
    assert (strict["statistic"], strict["alpha"]) == ("S", 0.01)
    assert strict["coverage"]["value"] is None
    assert "99 calibration inputs, and there are 30" in strict["coverage"]["reason"]
    assert strict["threshold"] == {"value": None, "reason": "+infinity: nothing is accepted"}
    _, again, _ = certify("certify", run, other, "--json", "--splits", 7, "--seed", 3)
    assert again == out
    _, moved, _ = certify("certify", run, other, "--json", "--splits", 7, "--seed", 4)
    assert moved != out


def test_markdown(write: Callable[..., Path]) -> None:
    _, out, _ = certify("certify", write("logits"), "--markdown", "--statistic", "S", "--alpha", 0.2)
    assert "| level | statistic | accepted | accepted and changed |" in out
    assert "| 0.20 | S |" in out
    assert "- At level 0.2, " in out


def test_a_check_is_saved_and_applied(write: Callable[..., Path], tmp_path: Path) -> None:
    run, file = write("older"), tmp_path / "check.json"
    code, out, _ = certify("certify", run, "--alpha", 0.1, "--save", file)
    assert code == 0
    assert "calibrated on all 200 inputs: an answer is accepted where its gap is at or above" in out
    check = StabilityCheck.load(file, spec="net@W4", model_fingerprint="weights")
    assert (check.n_calibration, check.statistic, check.origin.data) == (200, "S", "older")

    newer = write("newer one", data="y", n=300)
    code, out, err = certify("certify", newer, "--check", file)
    assert (code, err) == (0, "")
    title = "check.json: S at level 0.1 for net@W4-g128-rtn, calibrated on older, applied to newer"
    assert title in out
    assert "show no difference from those of the calibration inputs" in out
    assert "not held out" not in out
    _, out, _ = certify("certify", newer, "--check", file, "--json")
    (found,) = json.loads(out)["runs"]
    assert found["n_inputs"] == 300
    assert found["resemblance"]["alike"]
    (note,) = found["notes"]
    assert note.startswith("calibrated on older test; this is newer one test")
    assert 0 < found["coverage"]["value"] < 1
    assert found["joint_violation"]["value"] <= found["flip_rate"]
    assert found["violation"]["n"] == round(300 * found["coverage"]["value"])


def test_other_inputs_are_noted(write: Callable[..., Path], tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    run = write("older")
    certify("certify", run, "--alpha", 0.1, "--save", file)
    code, out, err = certify("certify", write("tiny scores", scale=0.2, data="y"), "--check", file)
    assert (code, err) == (0, "")  # a note, no Python warning
    assert "Note, tiny scores: the confidences of these 200 inputs differ" in out
    _, out, _ = certify("certify", run, "--check", file)
    assert "Note, older: the check was calibrated on these very inputs" in out
    _, out, _ = certify("certify", run, "--check", file, "--markdown")
    assert "| older | 200 |" in out


def test_a_check_of_another_pair_is_refused(write: Callable[..., Path], tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    certify("certify", write("older"), "--alpha", 0.1, "--save", file)
    other = write("other", spec="net@W3-g128-rtn")
    code, _, err = certify("certify", other.parent, "--check", file)
    assert code == 2
    assert f"{other}: the stability check is for" in err
    assert "pair: net@W4-g128-rtn when it was made, net@W3-g128-rtn now" in " ".join(err.split())


CONTRAST: tuple[dict[str, Any], ...] = (
    {"reading": "linear probe", "probe": {"C": 1.0, "digest": "a"}},
    {"reading": "linear probe", "probe": {"C": 1.0, "digest": "b"}},
    {"reading": "self-retrieval", "similarity": "cosine"},
    {"similarity": "cosine"},
    {"similarity": "dot"},
)


@pytest.mark.parametrize(
    ("made", "applied", "message"),
    [
        (2, 0, "scores: self-retrieval by cosine when it was made, linear probe now"),
        (0, 2, "scores: linear probe when it was made, self-retrieval by cosine now"),
        (2, 3, "retrieval by cosine now"),
        (3, 4, "scores: retrieval by cosine when it was made, retrieval by dot now"),
        (0, 1, "(digest a when it was made, b now)"),
    ],
)
def test_other_scores_of_the_same_spec_and_weights_are_refused(
    write: Callable[..., Path], made: int, applied: int, message: str
) -> None:
    run = write("one", settings=CONTRAST[made])
    file = run.parent / "check.json"
    certify("certify", run, "--alpha", 0.1, "--save", file)
    same = write("same", settings=CONTRAST[made])
    assert certify("certify", same, "--check", file)[0] == 0
    code, out, err = certify("certify", write("two", settings=CONTRAST[applied]), "--check", file)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


@pytest.mark.parametrize("key", ["candidate_fingerprint", "candidate"])
def test_other_quantized_weights_are_noted(write: Callable[..., Path], tmp_path: Path, key: str) -> None:
    def model(digest: str) -> dict[str, Any]:
        return {key: {"fingerprint": digest} if key == "candidate" else digest}

    file, note = tmp_path / "check.json", "other quantized weights than the check was calibrated on"
    certify("certify", write("older", model=model("a")), "--alpha", 0.1, "--save", file)
    code, out, _ = certify("certify", write("other", model=model("b")), "--check", file)
    assert code == 0
    assert note in out
    for run in (write("same", model=model("a")), write("unknown")):
        assert note not in certify("certify", run, "--check", file)[1]
    with pytest.raises(StabilityError, match="digest a when it was made, b now"):
        StabilityCheck.load(file, candidate_fingerprint="b")


def test_the_same_inputs_are_told_by_their_ids_where_data_have_no_digest(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    file, note = tmp_path / "check.json", "was calibrated on these very inputs"
    task: dict[str, Any] = {"data": None, "more": {"subset": "de"}}
    run = write("Task", **task)
    certify("certify", run, "--alpha", 0.1, "--save", file)
    assert note in certify("certify", run, "--check", file)[1]
    # other ids of the task; the same ids of another task, or of another subset
    for other in (
        write("Other", named="Task", **task),
        write("Task", named="Elsewhere", **task),
        write("Task", data=None, more={"subset": "fr"}),
    ):
        assert "not held out" not in certify("certify", other, "--check", file)[1]
    _, out, _ = certify("certify", write("Task", data=None, more={"subset": "fr"}), "--check", file)
    assert "calibrated on Task test de; this is Task test fr: the bound is for inputs" in out


def test_two_names_of_one_model_are_one_pair(write: Callable[..., Path], tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    certify("certify", write("older", spec="minilm@W4"), "--alpha", 0.1, "--save", file)
    long = "sentence-transformers/all-MiniLM-L6-v2@W4"
    assert certify("certify", write("newer", spec=long), "--check", file)[0] == 0
    code, _, err = certify("certify", write("else", spec=long, model={"fingerprint": "others"}), "--check", file)
    assert (code, "pair: " in err) == (2, True)


@pytest.mark.parametrize("n_items", [5, 7])
def test_another_number_of_items_is_said(write: Callable[..., Path], tmp_path: Path, n_items: int) -> None:
    file = tmp_path / "check.json"
    certify("certify", write("older"), "--alpha", 0.1, "--save", file)
    out = certify("certify", write("newer", n_items=n_items), "--check", file)[1]
    assert f"have {n_items} items, those calibrated on had 6" in out


def test_entropy_thresholds_are_told_in_nats(write: Callable[..., Path], tmp_path: Path) -> None:
    run, told = write("logits"), ("--alpha", 0.1, "--statistic", "entropy")
    out = certify("certify", run, *told, "--json")[1]
    threshold = json.loads(out)["runs"][0]["certificates"][0]["threshold"]["value"]
    assert threshold < 0
    out = certify("certify", run, *told, "--save", tmp_path / "check.json")[1]
    assert f"│ {-threshold:.4g} nats │" in out
    stored = StabilityCheck.load(tmp_path / "check.json").threshold
    assert f"accepted where its entropy is below {-stored:.6g} nats" in out


def test_one_split_has_no_spread(write: Callable[..., Path]) -> None:
    _, out, _ = certify("certify", write("logits"), "--splits", 1, "--statistic", "S")
    assert "over one random split;" in out
    assert "±" not in out
    _, out, _ = certify("certify", write("logits"), "--splits", 2, "--statistic", "S")
    assert "±" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--alpha", 1.5), "expected a level above 0 and below 1"),
        (("--alpha", 0), "expected a level above 0 and below 1"),
        (("--statistic", "eps"), "unknown statistic 'eps'"),
        (("--splits", 0), "expected at least one split"),
        (("--share", 1), "expected at least one split"),
        (("--save", "x.json"), "one level (--alpha 0.05)"),
        (("--save", "x.json", "--alpha", 0.1, "--alpha", 0.2), "1 runs, 2 levels"),
        (("--save", "x.json", "--alpha", 0.1, "--statistic", "S", "--statistic", "gap"), "and 2 statistics"),
        (("--check", "x.json", "--alpha", 0.1), "expected no --alpha"),
        (("--check", "x.json"), "expected a stability check in x.json, which cannot be read"),
        (("--json", "--markdown"), "expected --json or --markdown"),
    ],
)
def test_what_cannot_be_is_refused(
    write: Callable[..., Path], options: tuple[object, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write("logits")
    monkeypatch.chdir(run.parent)
    code, out, err = certify("certify", run, *options)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_metrics_and_compare_know_the_levels(write: Callable[..., Path]) -> None:
    run = write("logits")
    code, out, _ = certify("metrics", run, "-m", "coverage@0.1", "-m", "violation@0.05", "--json")
    assert code == 0
    assert list(json.loads(out)["metrics"]) == ["coverage@0.10", "violation@0.05"]
    _, out, _ = certify("compare", run, run, "-m", "coverage@0.1")
    assert "coverage@0.10" in out
    _, out, _ = certify("breakdown", run, "-m", "coverage@0.1", "--json")
    assert "coverage@0.10" in json.loads(out)["buckets"][0]["metrics"]
    _, out, _ = certify("list", "metrics", "--json")
    assert '"coverage@0.10, coverage@0.05, coverage@0.01"' in out


def test_neither_the_command_nor_a_server_loads_torch(write: Callable[..., Path]) -> None:
    run = write("logits")
    code = (
        "import sys; sys.argv = ['quantdrift', 'certify', sys.argv[1]]\n"
        "from quantdrift import StabilityCheck\n"
        "assert not {'torch', 'scipy.stats', 'pyarrow'} & set(sys.modules)\n"
        "from quantdrift.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
