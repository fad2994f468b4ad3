"""The noise floor of tasks whose answers are drawn: there is none, and the results say why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from quantdrift_lm_eval.model import QuantizedPairLM
from support.lm_eval_samples_maker import evaluate, save_model, write_tasks

N = 6
SAMPLED = {"drawn": {"do_sample": True, "temperature": 1.0}, "warm": {"temperature": 0.7}}


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


def test_a_group_with_drawn_answers_has_no_noise_floor_either(results: dict[str, Any]) -> None:
    told = results["quantdrift"]["groups"]["tiny_mixed"]["first"]
    assert told["drift_noise_floor"] is None
    assert told["no_noise_floor"].startswith("answers are drawn")
    assert told["drift_n_inputs"] == 2 * N
    row = results["results"]["tiny_mixed"]
    assert "drift_noise_floor,first" not in row
    assert "drift_flip_at_1,first" in row
