"""`diff` of sample logs that lm-eval itself writes, of two tiny language models."""

from pathlib import Path
from typing import Any

import pytest
from lm_eval.loggers import EvaluationTracker

from quantdrift.finished.diff import change_of, diff_runs
from quantdrift.finished.formats import read_finished
from support.lm_eval_samples_maker import evaluate, save_model, write_tasks

pytestmark = pytest.mark.slow  # the real harness runs

CHOSEN = ("questions", "last_word", "texts", "sums")
"""A task of every type of request."""


def log(model: str, tasks: Path, out: Path) -> dict[str, Any]:
    """Evaluate and write results and samples as the lm_eval command does."""
    arguments = f"pretrained={model},dtype=float32"
    tracker = EvaluationTracker(output_path=str(out))
    tracker.general_config_tracker.log_experiment_args("hf", arguments, None, None, False)
    found = evaluate("hf", tasks, CHOSEN, model_args=arguments, log_samples=True)
    samples = found.pop("samples")
    tracker.save_results_aggregated(results=found, samples=samples)
    for name in found["configs"]:
        tracker.save_results_samples(task_name=name, samples=samples[name])
    return found


def test_the_harness_s_own_metrics_are_those_of_its_results(tmp_path: Path) -> None:
    models = [save_model(tmp_path / f"model{seed}", seed=seed) for seed in (0, 1)]
    tasks = write_tasks(tmp_path / "tasks", models[0])
    results = [log(model, tasks, tmp_path / name)["results"] for model, name in zip(models, "ab", strict=True)]
    compared = 0
    for part in diff_runs(read_finished(tmp_path / "a"), read_finished(tmp_path / "b")).parts:
        task, _, name = part.name.partition(" (")
        for metric, values in part.values.items():
            told = [run[task].get(f"{metric},{name.removesuffix(')') or 'none'}") for run in results]
            if None not in told and "perplexity" not in metric:
                assert change_of(values)[:2] == pytest.approx(told)
                compared += 1
    assert compared >= 4
