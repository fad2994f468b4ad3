"""mteb's own console script with quantdrift beside it, and what it leaves on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mteb
import pytest
from mteb.models.model_meta import ModelMeta
from mteb.results import TaskResult

from quantdrift.metrics import default_metrics, measure
from quantdrift.metrics.keys import key_of
from quantdrift.runs import Run, read_run
from support.mteb_samples import retrieval_task, save_encoder, scores, split_data, stock

pytestmark = pytest.mark.slow

SCRIPTS = Path(sys.executable).parent
TASK = "PythonDocsRetrieval"
NAME = "quantdrift/sentence-transformers__all-MiniLM-L6-v2@W4-g128-rtn"
SHORT = 240  # seconds, for what takes a few on a machine that has nothing else to do


def start(folder: Path, script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A console script in an environment without a hub."""
    kept = {key: value for key, value in os.environ.items() if key != "QUANTDRIFT_HOOK"}
    own = {"HF_HUB_OFFLINE": "1", "QUANTDRIFT_CACHE": str(folder / "cache"), "COLUMNS": "200"}
    return subprocess.Popen(
        [str(SCRIPTS / script), *arguments],
        cwd=folder,
        env={**kept, **own, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], seconds: int = SHORT) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The main command, run once: its output folder and what it wrote to standard error."""
    folder = tmp_path_factory.mktemp("main")
    command = ("run", "--model", "quantdrift:minilm@W4-rtn", "-t", TASK, "--output-folder", "OUT")
    code, _, err = finish(start(folder, "mteb", *command), seconds=1800)
    assert code == 0, err
    return folder / "OUT", err


@pytest.fixture(scope="session")
def result_file(finished: tuple[Path, str]) -> Path:
    (path,) = finished[0].glob(f"results/*/*/{TASK}.json")
    return path


@pytest.fixture(scope="session")
def entry(result_file: Path) -> Mapping[str, Any]:
    (found,) = json.loads(result_file.read_text())["scores"]["test"]
    return found


@pytest.fixture(scope="session")
def run(result_file: Path, entry: Mapping[str, Any]) -> Run:
    return read_run(result_file.parent / entry["drift_evidence"])


def test_the_result_holds_mtebs_own_keys_and_the_drift(entry: Mapping[str, Any], tmp_path: Path) -> None:
    task = retrieval_task("TinyKeys", {"default": {"test": split_data(3, 5)}})
    own = set(scores(stock(save_encoder(tmp_path)), task)["test"][0])
    assert own == {key for key in entry if not key.startswith("drift_")}
    lost = {f"drift_gold_lost_at_{k}" for k in (1, 5, 10)}
    medians = {f"drift_{name}_median" for name in ("separation", "epsilon", "gap")}
    others = {"drift_flip_at_1", "drift_at_risk", "drift_noise_floor", "drift_n_inputs"}
    assert lost | medians | others | {"drift_reference_main_score"} <= entry.keys()
    assert entry["drift_spec"] == "minilm@W4-g128-rtn"
    assert entry["drift_n_inputs"] == 1509
    assert 0.1 < entry["drift_flip_at_1"] < 0.4
    assert entry["drift_noise_floor"] < 0.01
    assert entry["main_score"] < entry["drift_reference_main_score"]


def test_the_numbers_follow_from_the_stored_evidence(entry: Mapping[str, Any], run: Run) -> None:
    again = measure(run.evidence())
    assert run.record["spec"] == entry["drift_spec"]
    for metric in default_metrics():
        value = again[str(metric)].value
        assert run.record["metrics"][str(metric)]["value"] == value
        key = key_of(metric)
        if key in entry:
            assert entry[key] == pytest.approx(value, abs=1e-6), key
    assert again["ndcg@10"].value == pytest.approx(entry["ndcg_at_10"], abs=1e-5)
    reference = pytest.approx(entry["drift_reference_main_score"], abs=1e-5)
    assert again["reference.ndcg@10"].value == reference
    (layer,) = run.record["model"]["layers_never_reached"]
    assert "pooler" in layer
    assert run.record["data"]["revision"].startswith("cpython-")


def test_mteb_reads_its_files_back(finished: tuple[Path, str], result_file: Path, entry: Mapping[str, Any]) -> None:
    result = TaskResult.from_disk(result_file)
    assert result.scores["test"][0]["drift_flip_at_1"] == entry["drift_flip_at_1"]
    assert result.get_score() == entry["ndcg_at_10"]
    cache = mteb.ResultCache(finished[0])
    table = cache.load_results().to_dataframe()
    assert table[NAME].tolist() == [entry["main_score"]]
    assert table["task_name"].tolist() == [TASK]
    meta = mteb.get_model_meta("quantdrift:minilm@W4-rtn")
    assert meta.name == NAME
    again = cache.load_task_result(TASK, meta)
    assert again is not None
    assert again.get_score() == result.get_score()
    text = (result_file.parent / "model_meta.json").read_text()
    assert ModelMeta.model_validate_json_resolved(text).name == NAME
    assert json.loads(text)["adapted_from"] == "sentence-transformers/all-MiniLM-L6-v2"


def test_what_cannot_be_paired_is_refused_in_one_line(tmp_path: Path) -> None:
    command = ("run", "--model", "quantdrift:minilm@W4-gtpq", "-t", TASK, "--output-folder", "OUT")
    code, out, err = finish(start(tmp_path, "mteb", *command))
    assert (code, "Traceback" in out + err, list(tmp_path.rglob("*.json"))) == (1, False, [])
    assert err.splitlines()[-1].startswith("quantdrift: ")
    assert "did you mean gptq?" in err.splitlines()[-1]


def test_the_fallback_needs_no_hook(tmp_path: Path) -> None:
    spec = f"quantdrift:{save_encoder(tmp_path)}@W3-rtn+query"
    command = ("mteb", "run", "--model", spec, "-t", TASK, "--output-folder", "OUT")
    code, _, err = finish(start(tmp_path, "quantdrift", *command, QUANTDRIFT_HOOK="0", OMP_NUM_THREADS="1"))
    assert code == 0, err
    (path,) = tmp_path.glob(f"OUT/results/*/*/{TASK}.json")
    found = json.loads(path.read_text())["scores"]["test"][0]
    assert found["drift_flip_at_1"] > 0
    assert path.parent.parent.name == "quantdrift__local__encoder@W3-g128-rtn+query"
