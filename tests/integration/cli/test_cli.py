"""`quantdrift run` as a user types it, on a tiny model, and what is refused before one is loaded."""

import json
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from support.beir_folder import numbered, write_beir_folder
from support.command_line import cli
from support.tiny_command_line import Run, one_thread, place, quantdrift, text

__all__ = ["one_thread", "place", "quantdrift"]


@pytest.fixture(scope="module", autouse=True)
def _judged(place: Path) -> None:
    documents = [text(number, 9) for number in range(20)]
    queries = [" ".join(document.split()[:5]) for document in documents[:4]]
    write_beir_folder(place / "judged", numbered("q", queries), numbered("d", documents), {"q0": ["d0"], "q1": ["d5"]})


def test_a_run_prints_a_table_or_json_and_leaves_a_folder_with_all_metrics(quantdrift: Run) -> None:
    command = ("run", "TINY@W3", "--data", "ROOT/judged", "--out", "run")
    shown = quantdrift(*command)
    assert all(part in shown for part in ("flip@1", "unused layer", "run folder:", "Verdict: open. "))
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
        (["minilm@W4-gtpq"], "did you mean gptq"),
        (["minlm@W4"], "did you mean minilm"),
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
