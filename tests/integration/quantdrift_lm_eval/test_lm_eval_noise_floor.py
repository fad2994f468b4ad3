"""The noise floor of tasks whose answers are drawn: there is none, and the results say why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

pytest.importorskip("lm_eval")

from quantdrift.runs import find_runs
from quantdrift_lm_eval.model import QuantizedPairLM
from support.lm_eval_samples_maker import evaluate, save_model, write_tasks

N = 6
SAMPLED = {"drawn": {"do_sample": True, "temperature": 1.0}, "warm": {"temperature": 0.7}}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> QuantizedPairLM:
    folder = save_model(tmp_path_factory.mktemp("model"))
    evidence = tmp_path_factory.mktemp("evidence")
    return QuantizedPairLM(folder, "W4-rtn", device="cpu", batch_size=4, noise_floor=True, evidence=str(evidence))


@pytest.fixture(scope="module")
def tasks(lm: QuantizedPairLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tasks(tmp_path_factory.mktemp("tasks"), lm.spec.model, N)
    sums = yaml.safe_load((folder / "sums.yaml").read_text())
    sums["filter_list"] = sums["filter_list"][:1]
    (folder / "sums.yaml").write_text(yaml.safe_dump(sums))
    for name, settings in SAMPLED.items():
        task = {**sums, "task": f"tiny_{name}"}
        task["generation_kwargs"] = {**sums["generation_kwargs"], **settings}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))
    for name, parts in (("mixed", ["sums", "drawn"]), ("fixed", ["sums", "questions"])):
        group = {
            "group": f"tiny_{name}",
            "task": [f"tiny_{part}" for part in parts],
            "aggregate_metric_list": [{"metric": "exact_match", "weight_by_size": True}],
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(group))
    return folder


@pytest.fixture(scope="module")
def told() -> list[str]:
    """What was said on standard error, filled by the evaluation."""
    return []


@pytest.fixture(scope="module")
def results(lm: QuantizedPairLM, tasks: Path, told: list[str]) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quantdrift_lm_eval.model.complain", told.append)
        return evaluate(lm, tasks, ["mixed", "warm", "questions"])


@pytest.mark.parametrize("name", SAMPLED)
def test_drawn_answers_have_no_noise_floor_and_the_reason_is_told(name: str, results: dict[str, Any]) -> None:
    told = results["quantdrift"]["tasks"][f"tiny_{name}"]["first"]
    assert told["drift_noise_floor"] is None
    assert "drift_noise_floor_low" not in told
    assert told["no_noise_floor"].startswith("answers are drawn")
    rows = results["results"][f"tiny_{name}"]
    assert "drift_noise_floor,first" not in rows
    assert 0 <= rows["drift_flip_at_1,first"] <= 1
    assert all("drift_noise_floor" not in one for one in results["samples"][f"tiny_{name}"])


@pytest.mark.parametrize(("task", "filter_name"), [("sums", "first"), ("questions", "none")])
def test_tasks_beside_them_keep_theirs(task: str, filter_name: str, results: dict[str, Any]) -> None:
    told = results["quantdrift"]["tasks"][f"tiny_{task}"][filter_name]
    assert told["drift_noise_floor"] == 0.0
    assert "no_noise_floor" not in told
    assert results["results"][f"tiny_{task}"][f"drift_noise_floor,{filter_name}"] == 0.0


def test_drawn_requests_are_not_asked_again(results: dict[str, Any], told: list[str]) -> None:
    asked = [re.fullmatch(r"noise floor: ([0-9]+) (\w+) requests", line) for line in told]
    found = {match[2]: int(match[1]) for match in asked if match}
    assert found == {"generate_until": N, "loglikelihood": 3 * N}
    assert f"noise floor: not of {2 * N} answers that are drawn" in told


def test_a_group_with_drawn_answers_has_no_noise_floor_either(results: dict[str, Any]) -> None:
    told = results["quantdrift"]["groups"]["tiny_mixed"]["first"]
    assert told["drift_noise_floor"] is None
    assert told["no_noise_floor"].startswith("answers are drawn")
    assert told["drift_n_inputs"] == 2 * N
    row = results["results"]["tiny_mixed"]
    assert "drift_noise_floor,first" not in row
    assert "drift_flip_at_1,first" in row


def test_the_run_folder_says_that_none_was_measured(lm: QuantizedPairLM, results: dict[str, Any]) -> None:
    assert lm.evidence is not None
    records = {run.path.name: run.record for run in find_runs([lm.evidence])}
    assert records["tiny_sums"]["metrics"]["noise_floor"]["value"] == 0.0
    for name in SAMPLED:
        record = records[f"tiny_{name}"]
        assert record["metrics"]["noise_floor"]["value"] is None
        assert "not measured" in record["metrics"]["noise_floor"]["reason"]
        assert record["settings"]["noise_floor"] is False


def test_a_group_whose_answers_are_all_fixed_has_one(lm: QuantizedPairLM, tasks: Path) -> None:
    results = evaluate(lm, tasks, ["fixed"])
    assert results["results"]["tiny_fixed"]["drift_noise_floor,first"] == 0.0
    told = results["quantdrift"]["groups"]["tiny_fixed"]
    assert [told[name]["drift_noise_floor"] for name in ("first", "none")] == [0.0, 0.0]


def test_only_drawn_answers_are_never_asked_again(
    lm: QuantizedPairLM, tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = evaluate(lm, tasks, ["drawn"])
    assert "noise floor" not in results["quantdrift"]["seconds"]
    assert "no drift is measured" not in capsys.readouterr().err
    assert results["quantdrift"]["tasks"]["tiny_drawn"]["first"]["drift_noise_floor"] is None


def test_output_only_runs_have_no_metric_of_the_reference(lm: QuantizedPairLM, tasks: Path) -> None:
    """With --predict_only lm-eval's one metric is `bypass`, 999 whatever the answers are."""
    results = evaluate(lm, tasks, ["sums"], predict_only=True)
    row = results["results"]["tiny_sums"]
    assert row["bypass,first"] == 999
    assert not [key for key in row if key.startswith("drift_reference_")]
    (sample, *_) = results["samples"]["tiny_sums"]
    assert "drift_reference_bypass" not in sample
    assert sample["metrics"][0] == "bypass"
    assert 0 <= row["drift_flip_at_1,first"] <= 1
