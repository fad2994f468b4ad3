"""`diff` of sample logs that lm-eval itself writes, of two tiny language models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lm_eval.loggers import EvaluationTracker

from quantdrift.finished.diff import Diff, change_of, diff_runs
from quantdrift.finished.readers import read_finished
from support.lm_eval_samples_maker import evaluate, save_model, write_tasks

pytestmark = pytest.mark.slow  # the real harness runs

CHOSEN = ("questions", "last_word", "texts", "sums")
"""A task of every type of request."""


def log(model: str, tasks: Path, out: Path, **options: Any) -> dict[str, Any]:
    """Evaluate and write results and samples as the lm_eval command does."""
    arguments = f"pretrained={model},dtype=float32"
    tracker = EvaluationTracker(output_path=str(out))
    tracker.general_config_tracker.log_experiment_args("hf", arguments, None, None, False)
    found = evaluate("hf", tasks, CHOSEN, model_args=arguments, log_samples=True, **options)
    samples = found.pop("samples")
    tracker.save_results_aggregated(results=found, samples=samples)
    for name in found["configs"]:
        tracker.save_results_samples(task_name=name, samples=samples[name])
    return found


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    root = tmp_path_factory.mktemp("lm")
    models = [save_model(root / f"model{seed}", seed=seed) for seed in (0, 1)]
    tasks = write_tasks(root / "tasks", models[0])
    results = [log(model, tasks, root / name) for model, name in zip(models, ("a", "b"), strict=True)]
    log(models[1], tasks, root / "limited", limit=10)
    return root, results[0], results[1]


@pytest.fixture(scope="module")
def found(logged: tuple[Path, Any, Any]) -> Diff:
    root, _, _ = logged
    return diff_runs(read_finished(root / "a"), read_finished(root / "b"))


def test_the_harness_s_own_metrics_are_those_of_its_results(
    logged: tuple[Path, dict[str, Any], dict[str, Any]], found: Diff
) -> None:
    compared = 0
    for part in found.parts:
        task, _, name = part.name.partition(" (")
        filter_name = name.removesuffix(")") or "none"
        for metric, values in part.values.items():
            before, after, _ = change_of(values)
            told = [run["results"][task].get(f"{metric},{filter_name}") for run in logged[1:]]
            if None in told or "perplexity" in metric:
                continue
            assert [before, after] == pytest.approx(told)
            compared += 1
    assert compared >= 4
