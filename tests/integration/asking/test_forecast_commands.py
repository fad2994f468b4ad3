"""`--plan` tells what a command takes and does nothing; what is there already costs nothing."""

import json
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from support.tiny_command_line import Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]


def test_a_plan_writes_nothing_and_a_finished_run_or_kept_embeddings_cost_nothing(quantdrift: Run) -> None:
    line = ("run", "TINY@W3", "--data", "ROOT/data", "--json")
    plan = json.loads(quantdrift(*line, "--plan"))
    stages = [step["stage"] for step in plan["steps"]]
    assert stages == ["loading", "reference", "quantization", "candidate", "noise floor"]
    assert plan["seconds"] == pytest.approx(sum(step["seconds"] for step in plan["steps"]))
    assert plan["memory"] > 0
    assert plan["download"] == 0
    assert plan["rate"]["operations"] > 0
    assert not Path("quantdrift-runs").exists()
    run = json.loads(quantdrift(*line))
    again = json.loads(quantdrift(*line, "--plan"))
    assert again == {"path": str(Path(run["path"]).relative_to(Path.cwd())), "seconds": 0}
    other = json.loads(quantdrift("run", "TINY@W2", "--data", "ROOT/data", "--plan", "--json"))
    assert "reference" not in [step["stage"] for step in other["steps"]]


def test_repair_and_allocate_have_a_plan_too(quantdrift: Run) -> None:
    repair = json.loads(quantdrift("repair", "TINY@W3", "--data", "ROOT/data", "--plan", "--json"))
    assert [step["stage"] for step in repair["steps"]][-2:] == ["trials", "runs"]
    assert not Path("repair").exists()
    choice = json.loads(
        quantdrift("allocate", "TINY@W3.5+gap", "--data", "ROOT/data", "--no-cache", "--plan", "--json")
    )
    assert [step["stage"] for step in choice["steps"]] == ["loading", "reference", "allocation"]
    assert not Path("allocation.json").exists()


def test_what_cannot_fit_is_refused_before_a_model_is_loaded(quantdrift: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantdrift.asking.forecast.memory_left", lambda: 1 << 20)
    line = ("run", "TINY@W4", "--data", "ROOT/data", "--no-cache", "--out", "out")
    assert "of memory or more" in quantdrift(*line, code=2)
    assert not Path("out").exists()
    monkeypatch.setenv("QUANTDRIFT_FORECAST", "off")
    quantdrift(*line)
    assert Path("out/run.json").exists()
