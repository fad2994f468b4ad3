"""The stock command `lm_eval --model quantdrift`, as a user runs it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from integration.quantdrift_lm_eval.lm_eval_samples_maker import lm_eval_command, save_model, write_tasks
from quantdrift.finished.diff import change_of, diff_runs
from quantdrift.finished.formats import read_finished

pytestmark = pytest.mark.slow
QUIET = ("--batch_size", "4", "--device", "cpu", "--include_path", "tasks")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model `model` and tasks `tasks`, as a user's working folder."""
    folder = tmp_path_factory.mktemp("work")
    model = save_model(folder / "model")
    write_tasks(folder / "tasks", model, 10)
    return folder


@pytest.fixture(scope="module")
def stock(place: Path) -> Any:
    """The stock command on a pair."""
    names = ("--tasks", "tiny_group,tiny_sums", "--model_args", "pretrained=model,scheme=W3-rtn")
    logs = ("--log_samples", "--output_path", "out", "--use_cache", "answers/kept")
    return lm_eval_command("--model", "quantdrift", *names, *QUIET, *logs, cwd=place)


def table(printed: str) -> dict[tuple[str, str], list[str]]:
    """Rows of lm-eval's table, by task and metric with filter."""
    rows, task = {}, ""
    for line in printed.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 9 and re.fullmatch(r"[\d.-]+", cells[6]):
            task = cells[0].removeprefix("- ") or task
            rows[task, f"{cells[4]},{cells[2]}"] = cells
    return rows


def test_the_table_tells_the_drift_with_standard_errors(stock: Any) -> None:
    assert stock.returncode == 0, stock.stderr
    rows = table(stock.stdout)
    for task in ("tiny_group", "tiny_questions"):
        for name in ("acc", "drift_reference_acc", "drift_flip_at_1", "drift_right_to_wrong_acc"):
            cells = rows[task, f"{name},none"]
            assert cells[7] == "±"
            assert float(cells[8]) >= 0
        assert float(rows[task, "drift_separation_median,none"][6]) > 0
    for name in ("first", "start"):
        assert rows["tiny_sums", f"drift_flip_at_1,{name}"][5] == "↓"
        assert ("tiny_sums", f"drift_right_to_wrong_exact_match,{name}") in rows
    per_task = [name for task, name in rows if task == "tiny_questions"]
    assert len(per_task) == 11  # a headline, not everything
    assert "quantdrift: both arms: 45 loglikelihood requests" in stock.stderr
    assert "--use_cache keeps no answers of a pair" in stock.stderr


def test_results_samples_and_run_folders_lie_beside_each_other(stock: Any, place: Path) -> None:
    out = place / "out" / "model"
    results = json.loads(next(out.glob("results_*.json")).read_text())
    shown = table(stock.stdout)["tiny_questions", "drift_flip_at_1,none"][6]
    row = results["results"]["tiny_questions"]
    assert f"{row['drift_flip_at_1,none']:.4f}" == f"{float(shown):.4f}"
    assert results["quantdrift"]["tasks"]["tiny_sums"]["first"]["kind"] == "generate_until"
    lines = next(out.glob("samples_tiny_questions_*.jsonl")).read_text().splitlines()
    flips = [json.loads(line)["drift_flip_at_1"] for line in lines]
    assert sum(flips) / len(flips) == pytest.approx(row["drift_flip_at_1,none"])
    kept = read_finished(out)  # as quantdrift diff reads it
    compared = {part.name: part.values for part in diff_runs(kept, kept).parts}
    for name in ("acc", "acc_norm"):
        assert change_of(compared["tiny_questions"][name])[:2] == pytest.approx([row[f"{name},none"]] * 2)
    exact = results["results"]["tiny_sums"]["exact_match,start"]
    assert change_of(compared["tiny_sums (start)"]["exact_match"])[:2] == pytest.approx([exact] * 2)
    runs = {path.parent.name for path in out.glob("drift/W3-g128-rtn+head=lm_head/*/run.json")}
    assert runs == {"tiny_questions", "tiny_more_questions", "tiny_sums-first", "tiny_sums-start"}
