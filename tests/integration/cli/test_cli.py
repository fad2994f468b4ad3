"""`quantdrift run` and `demo` as typed, on a tiny model: what is shown, refused, and measured once more."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from quantdrift.asking import run as engine
from support.beir_folder import numbered, write_beir_folder
from support.candidate_samples import tiny
from support.command_line import cli
from support.tiny_command_line import N_DOCS, Run, corpora, one_thread, place, quantdrift, text

__all__ = ["corpora", "one_thread", "place", "quantdrift"]


@pytest.fixture(scope="module", autouse=True)
def _judged(place: Path) -> None:
    documents = [text(number, 9) for number in range(20)]
    queries = [" ".join(document.split()[:5]) for document in documents[:4]]
    write_beir_folder(place / "judged", numbered("q", queries), numbered("d", documents), {"q0": ["d0"], "q1": ["d5"]})


def test_a_run_prints_a_table_or_json_and_leaves_a_folder_with_all_metrics(quantdrift: Run) -> None:
    command = ("run", "TINY@W3", "--data", "ROOT/judged", "--out", "run")
    shown = quantdrift(*command)
    assert all(part in shown for part in ("Verdict: open.", "nDCG@10, reference", "quantdrift metrics run "))
    everything = quantdrift(*command, "--all")
    assert all((part in everything, part in shown) == (True, False) for part in ("flip@1", "unused layer"))
    assert sorted(path.name for path in Path("run").iterdir()) == ["evidence.parquet", "run.json"]
    record = json.loads(quantdrift(*command, "--json"))
    assert record["spec"].endswith("tiny@W3-g128-rtn")
    for name in ("flip@1", "gold_lost@10", "separation", "at_risk", "epsilon", "ndcg@10"):
        assert set(record["metrics"][name]) == {"value", "low", "high", "n"}, name
    assert (record["metrics"]["noise_floor"]["value"], record["bits_per_weight"]["linear"]) == (0.0, 3)
    written = json.loads(Path("run/run.json").read_text())
    assert {**written, "path": record["path"], "verdict": record["verdict"]} == record
    assert record["verdict"]["word"] == "open"  # there are two
    assert json.loads(quantdrift("metrics", "run", "--json", quiet=False))["metrics"] == written["metrics"]
    out = quantdrift("metrics", "run", "-m", "gold_lost@3", "--per-input", quiet=False)
    assert [line.split("\t")[0] for line in out.splitlines()] == ["input_id", "q0", "q1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["minilm@W4-adaround+calib=/nowhere.txt"], "/nowhere.txt: expected a file of texts"),
        (["/no/such/model@W4"], "no folder /no/such/model"),
        (["minilm@W4", "--device", "gpu"], "expected cpu"),
        (["minilm@W4", "--split", "dev"], "test"),
    ],
)
def test_what_cannot_be_run_ends_in_one_line(
    place: Path, tmp_path: Path, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    code, out, err = cli("run", *arguments, "--data", place / "judged", "--out", tmp_path / "run", "-q")
    assert (code, out) == (2, "")
    assert said in err.splitlines()[-1]
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


# --- the same once more: what is finished is shown, and measured again where anything differs --------


COMMAND = ("run", "TINY@W3", "--data", "ROOT/data", "--out", "out")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where runs were measured, one entry a time."""
    places: list[Path] = []
    measured_run = engine.measured_run
    monkeypatch.setattr(
        engine, "measured_run", lambda opened, **more: (places.append(more["out"]), measured_run(opened, **more))[1]
    )
    return places


def test_a_finished_run_is_shown_and_not_measured(quantdrift: Run, measured: list[Path]) -> None:
    first, second = quantdrift(*COMMAND, "--json"), quantdrift(*COMMAND, "--json")
    assert (first, len(measured)) == (second, 1)


@pytest.mark.parametrize("more", [("--no-cache",), ("-k", "7"), ("--batch-size", "3"), ("--no-noise-floor",)])
def test_other_settings_are_measured(more: tuple[str, ...], quantdrift: Run, measured: list[Path]) -> None:
    quantdrift(*COMMAND)
    quantdrift(*COMMAND, *more)
    assert len(measured) == 2


def test_what_is_other_or_damaged_is_measured_again(quantdrift: Run, measured: list[Path], place: Path) -> None:
    quantdrift(*COMMAND)
    quantdrift(*COMMAND[:-2], "--data", "ROOT/a", "--out", "out")
    quantdrift(*COMMAND)
    assert len(measured) == 3
    weights = place / "tiny" / "model.safetensors"
    before = weights.stat()
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
    quantdrift(*COMMAND)
    assert len(measured) == 4
    evidence = Path("out/evidence.parquet")
    evidence.write_bytes(evidence.read_bytes()[:-1])
    quantdrift(*COMMAND)
    assert len(measured) == 5


# --- what a run says of its embeddings and its calibration -------------------------------------------


def notes(place: Path, name: str) -> list[str]:
    record = json.loads((place / name / "run.json").read_text())
    return [str(note) for note in record["data"]["warnings"]]


def test_inputs_that_a_model_does_not_tell_apart_are_said(place: Path, quantdrift: Run) -> None:
    """Texts none of whose words the model knows, as with another model's tokenizer."""
    texts = numbered("x", [f"w{n} x{n}" for n in range(40)])
    write_beir_folder(place / "foreign", texts, texts)
    shown = quantdrift("run", "TINY@W4", "--data", "ROOT/foreign", "--out", "ROOT/same")
    warnings = notes(place, "same")
    for arm in ("reference", "candidate"):
        for side in ("query", "document"):
            text = rf"{arm}: 9\d % of the {side} embeddings are duplicates"
            assert any(re.match(text, note) for note in warnings), warnings
    assert "reference: 9" in shown


@pytest.mark.slow
@pytest.mark.parametrize(("calib", "said"), [("", True), ("+calib=10", False)])
def test_a_calibration_on_all_that_is_ranked_is_said(calib: str, said: bool, place: Path, quantdrift: Run) -> None:
    command = ("run", f"TINY@W4-adaround{calib}", "--data", "ROOT/data", "--out", "ROOT/fitted")
    shown = quantdrift(*command)
    text = f"calibrated on all {N_DOCS} documents, the very ones that are ranked"
    assert (text in " ".join(shown.split())) is said
    assert any(note.startswith(text) for note in notes(place, "fitted")) is said


# --- demo: it ends with the questions that broke, and with commands that work as printed -------------


def test_a_quick_demo_ends_with_what_broke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny().save(str(tmp_path / "tiny"))
    code, out, _ = cli("demo", "--quick", "--spec", "./tiny@W2-rtn")
    assert code == 0
    assert "May I ship ./tiny@W2" in out
    assert "docstrings the 200 with the shortest documents" in out  # not taken for all of them
    assert any(line.startswith("What breaks: the worst 3 of ") for line in out.splitlines())
    assert sum(line.startswith("reference  ") for line in out.splitlines()) == 3
    following = [line.strip() for line in out.splitlines() if line.startswith("    quantdrift ")]
    assert {"show", "report", "gate", "certify", "ship"} <= {line.split()[1] for line in following}
    code, shown, _ = cli(*shlex.split(following[0])[1:])
    assert (code, shown.count("\nreference  ") > 3) == (0, True)
    assert cli(*shlex.split(following[1])[1:])[0] == 0
