"""Unusual tasks and options of lm-eval, with a pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from quantdrift_lm_eval.model import QuantizedPairLM
from support.lm_eval_samples_maker import evaluate, save_model, write_tasks

N = 10
PYTHON = """
def as_words(doc, results):
    said = results[0]
    right = float(said[:1] == doc["a"][:1])
    return {"letters": len(said), "right": right, "both": (said, doc["a"])}

def first_letter(doc, results):
    return {"right": float(results[0][0][:1] == doc["a"][:1])}

def share(items):
    return sum(said[:1] == wanted[:1] for said, wanted in items) / len(items)

def breaks(doc, results):
    breaks.calls = getattr(breaks, "calls", 0) + 1
    if breaks.calls > 10:  # the candidate's documents come first
        raise KeyError("a field that is missing")
    return {"right": 1.0}
"""


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> QuantizedPairLM:
    folder = save_model(tmp_path_factory.mktemp("model"))
    return QuantizedPairLM(folder, "W4-rtn", device="cpu", batch_size=4)


@pytest.fixture(scope="module")
def tasks(lm: QuantizedPairLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tasks(tmp_path_factory.mktemp("tasks"), lm.spec.model, N)
    (folder / "own.py").write_text(PYTHON)
    sums = yaml.safe_load((folder / "sums.yaml").read_text())
    del sums["filter_list"]
    _add(folder, sums, "own", "as_words", letters="mean", right="mean", both="!function own.share")
    _add(folder, sums, "broken", "breaks", right="mean")
    drawn = {**sums, "task": "tiny_drawn", "repeats": 3}
    drawn["generation_kwargs"] = {**sums["generation_kwargs"], "do_sample": True, "temperature": 1.0}
    drawn["filter_list"] = [{"name": "all", "filter": [{"function": "take_first_k", "k": 3}]}]
    del drawn["metric_list"]
    _add(folder, drawn, "drawn", "first_letter", right="mean")
    return folder


def _add(folder: Path, task: dict[str, Any], name: str, function: str, **metrics: str) -> None:
    """A task whose metrics are functions of its own, as many of lm-eval's are."""
    own = {key: value for key, value in task.items() if key != "metric_list"}
    text = yaml.safe_dump({**own, "task": f"tiny_{name}"})
    text += f"process_results: !function own.{function}\nmetric_list:\n"
    for metric, aggregation in metrics.items():
        text += f"  - metric: {metric}\n    aggregation: {aggregation}\n    higher_is_better: true\n"
    (folder / f"{name}.yaml").write_text(text)


def test_metrics_of_a_task_s_own_python(lm: QuantizedPairLM, tasks: Path) -> None:
    results = evaluate(lm, tasks, ["own"])
    rows = results["results"]["tiny_own"]
    samples = results["samples"]["tiny_own"]
    for name in ("right", "letters"):
        mean = sum(one[f"drift_reference_{name}"] for one in samples) / N
        assert rows[f"drift_reference_{name},none"] == pytest.approx(mean)
    # a pair per document is no number of it; the task's own function makes one of all
    assert rows["drift_reference_both,none"] == rows["drift_reference_right,none"]
    assert "drift_right_to_wrong_right,none" in rows
    assert not [key for key in rows if "to_wrong_both" in key or "to_wrong_letters" in key]
    told = results["quantdrift"]["tasks"]["tiny_own"]["none"]
    assert told["judged_by"] == "right"
    assert "drift_change_letters" in told


def test_a_task_whose_drift_cannot_be_had_keeps_its_results(
    lm: QuantizedPairLM, tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = evaluate(lm, tasks, ["broken", "questions"])
    assert results["results"]["tiny_broken"]["right,none"] == 1.0
    assert list(results["quantdrift"]["tasks"]) == ["tiny_questions"]
    told = capsys.readouterr().err
    assert "no drift is measured on tiny_broken: 'a field that is missing'" in told
