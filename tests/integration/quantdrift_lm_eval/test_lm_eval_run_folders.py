"""Run folders of lm-eval: none takes the place of another task's or of another model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from quantdrift.runs import find_runs
from quantdrift_lm_eval.model import QuantizedPairLM
from support.lm_eval_samples_maker import evaluate, save_model, write_tasks

N = 4


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [save_model(tmp_path_factory.mktemp(f"model{seed}"), seed=seed) for seed in range(2)]


@pytest.fixture(scope="module")
def tasks(models: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside `sums`, which has the filters `first` and `start`, a task named `sums-first`."""
    folder = write_tasks(tmp_path_factory.mktemp("tasks"), models[0], N)
    sums = yaml.safe_load((folder / "sums.yaml").read_text())
    alone = {**sums, "task": "tiny_sums-first", "filter_list": sums["filter_list"][1:]}
    (folder / "alone.yaml").write_text(yaml.safe_dump(alone))
    return folder


def evaluated(model: str, tasks: Path, names: list[str], evidence: Path) -> dict[str, Any]:
    lm = QuantizedPairLM(model, "W4-rtn", device="cpu", batch_size=4, evidence=str(evidence))
    found: dict[str, Any] = evaluate(lm, tasks, names)["quantdrift"]["runs"]
    return found


def data_of(evidence: Path) -> list[tuple[str, str]]:
    told = [run.record["data"] for run in find_runs([evidence])]
    return sorted((data["name"], data["subset"]) for data in told)


def test_a_task_called_as_another_s_filter_has_a_folder_of_its_own(
    models: list[str], tasks: Path, tmp_path: Path
) -> None:
    runs = evaluated(models[0], tasks, ["sums", "sums-first"], tmp_path)
    assert data_of(tmp_path) == [("tiny_sums", "first"), ("tiny_sums", "start"), ("tiny_sums-first", "start")]
    assert runs["tiny_sums"]["first"] != runs["tiny_sums-first"]["start"]


def test_a_run_of_another_model_is_not_replaced_and_one_of_the_same_is(
    models: list[str], tasks: Path, tmp_path: Path
) -> None:
    for model in (*models, *models):
        evaluated(model, tasks, ["questions"], tmp_path)
    found = {run.record["model"]["name"]: run for run in find_runs([tmp_path])}
    assert set(found) == set(models)
    assert len(find_runs([tmp_path])) == 2
    assert found[models[0]].path.name == "tiny_questions"
