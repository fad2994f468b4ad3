"""mteb's own console script with quantdrift beside it, and what it leaves on disk."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mteb
import pytest
from mteb.models.model_meta import ModelMeta
from mteb.results import TaskResult

from integration.quantdrift_mteb.mteb_samples import retrieval_task, save_encoder, scores, split_data, stock
from quantdrift.metrics import default_metrics, measure
from quantdrift.metrics.keys import key_of
from quantdrift.runs.folder import Run, read_run
from quantdrift.show.run import as_text, run_output
from support.warm import warm

pytestmark = pytest.mark.slow

TASK = "PythonDocsRetrieval"
NAME = "quantdrift/local__encoder@W3-g128-rtn"


def run_script(folder: Path, script: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a console script in an environment without a hub."""
    ours = {"HF_HUB_OFFLINE": "1", "QUANTDRIFT_CACHE": "off", "COLUMNS": "200", **environment}
    ended = warm().run(Path(sys.executable).parent / script, *arguments, cwd=folder, **ours)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The main command, run once on a small model: its output folder."""
    folder = tmp_path_factory.mktemp("main")
    model = save_encoder(folder)
    command = ("run", "--model", f"quantdrift:{model}@W3-rtn", "-t", TASK, "--output-folder", "OUT")
    code, _, err = run_script(folder, "mteb", *command)
    assert code == 0, err
    (folder / "err.txt").write_text(err)
    return folder


@pytest.fixture(scope="module")
def result_file(finished: Path) -> Path:
    (path,) = finished.glob(f"OUT/results/*/*/{TASK}.json")
    return path


@pytest.fixture(scope="module")
def entry(result_file: Path) -> Mapping[str, Any]:
    (entry,) = json.loads(result_file.read_text())["scores"]["test"]
    return entry


@pytest.fixture(scope="module")
def run(result_file: Path, entry: Mapping[str, Any]) -> Run:
    return read_run(result_file.parent / entry["drift_evidence"])


def test_the_result_holds_mtebs_own_keys_and_the_drift(entry: Mapping[str, Any], tmp_path: Path) -> None:
    task = retrieval_task("TinyKeys", {"default": {"test": split_data(3, 5)}})
    stock_keys = set(scores(stock(save_encoder(tmp_path)), task)["test"][0])
    assert stock_keys == {key for key in entry if not key.startswith("drift_")}
    lost = {f"drift_gold_lost_at_{k}" for k in (1, 5, 10)}
    medians = {f"drift_{name}_median" for name in ("separation", "epsilon", "gap")}
    others = {"drift_flip_at_1", "drift_at_risk", "drift_noise_floor", "drift_n_inputs"}
    assert lost | medians | others | {"drift_reference_main_score"} <= entry.keys()
    assert entry["drift_spec"].endswith("encoder@W3-g128-rtn")
    assert entry["drift_n_inputs"] > 1000
    assert entry["drift_flip_at_1"] > entry["drift_noise_floor"]


def test_the_command_ends_with_the_verdict_and_where_the_run_is(
    finished: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished)  # paths are as they are typed there
    assert as_text(run_output(run)) in (finished / "err.txt").read_text()


def test_the_numbers_follow_from_the_stored_evidence(entry: Mapping[str, Any], run: Run) -> None:
    again = measure(run.evidence())
    assert run.record["spec"] == entry["drift_spec"]
    for metric in default_metrics():
        value = again[str(metric)].to_json()["value"]
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


def test_mteb_reads_its_files_back(finished: Path, result_file: Path, entry: Mapping[str, Any]) -> None:
    result = TaskResult.from_disk(result_file)
    assert result.scores["test"][0]["drift_flip_at_1"] == entry["drift_flip_at_1"]
    assert result.get_score() == entry["ndcg_at_10"]
    cache = mteb.ResultCache(finished / "OUT")
    table = cache.load_results().to_dataframe()
    assert (table[NAME].tolist(), table["task_name"].tolist()) == ([entry["main_score"]], [TASK])
    meta = mteb.get_model_meta(f"quantdrift:{finished / 'encoder'}@W3-rtn")
    assert meta.name == NAME
    again = cache.load_task_result(TASK, meta)
    assert again is not None
    assert again.get_score() == result.get_score()
    text = (result_file.parent / "model_meta.json").read_text()
    assert ModelMeta.model_validate_json_resolved(text).name == NAME
    assert json.loads(text)["adapted_from"] == "local/encoder"


def test_the_fallback_needs_no_hook_and_what_cannot_be_paired_is_refused_in_one_line(tmp_path: Path) -> None:
    for model, said in (("quantdrift:minilm@W4-gtpq", "mean gptq?"), ("minilm@W4", "write quantdrift:minilm@W4")):
        command = ("mteb", "run", "--model", model, "-t", TASK, "--output-folder", "OUT")
        code, out, err = run_script(tmp_path, "quantdrift", *command, QUANTDRIFT_HOOK="0")
        assert (code, "Traceback" in out + err, list(tmp_path.rglob("*.json"))) == (2, False, [])
        assert err.splitlines()[-1].startswith("quantdrift: ")
        assert said in err.splitlines()[-1]
