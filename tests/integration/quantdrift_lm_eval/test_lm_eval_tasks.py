"""Unusual tasks and options of lm-eval with a pair: own metrics, drawn answers, calibration, run folders."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from safetensors.torch import load_file, save_file

from integration.quantdrift_lm_eval.lm_eval_samples_maker import evaluate, save_model, text, write_tasks
from quantdrift.base.errors import DataError
from quantdrift.runs.folder import Run, find_runs
from quantdrift_lm_eval.model import QuantizedPairLM

N = 8
PYTHON = """
def as_words(doc, results):
    said = results[0]
    right = float(said[:1] == doc["a"][:1])
    return {"letters": len(said), "right": right, "both": (said, doc["a"])}

def share(items):
    return sum(said[:1] == wanted[:1] for said, wanted in items) / len(items)

def breaks(doc, results):
    breaks.calls = getattr(breaks, "calls", 0) + 1
    if breaks.calls > 8:  # the candidate's documents come first
        raise KeyError("a field that is missing")
    return {"right": 1.0}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [save_model(tmp_path_factory.mktemp(f"model{seed}"), seed=seed, wide=2) for seed in range(2)]


@pytest.fixture(scope="module")
def tasks(models: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside those of every kind, tasks made from `sums`, which has the filters `first` and `start`."""
    folder = write_tasks(tmp_path_factory.mktemp("tasks"), models[0], N)
    (folder / "own.py").write_text(PYTHON)
    sums = yaml.safe_load((folder / "sums.yaml").read_text())

    def write(name: str, task: dict[str, Any], added: str = "") -> None:
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task) + added)

    # called as the filter of another
    write("sums-first", {**sums, "task": "tiny_sums-first", "filter_list": sums["filter_list"][1:]})
    bare = {key: value for key, value in sums.items() if key not in ("metric_list", "filter_list")}
    metrics = {"letters": "mean", "right": "mean", "both": "!function own.share"}
    for name, function, chosen in (("own", "as_words", list(metrics)), ("broken", "breaks", ["right"])):
        added = f"process_results: !function own.{function}\nmetric_list:\n" + "".join(
            f"  - metric: {metric}\n    aggregation: {metrics[metric]}\n    higher_is_better: true\n"
            for metric in chosen
        )
        write(name, {**bare, "task": f"tiny_{name}"}, added)
    return folder


@pytest.fixture(scope="module")
def lm(models: list[str]) -> QuantizedPairLM:
    return QuantizedPairLM(models[0], "W4-rtn", device="cpu", batch_size=4)


def runs(tasks: Path, folder: Path, names: list[str], model: str, scheme: str = "W4-rtn") -> list[Run]:
    arguments = {"pretrained": model, "scheme": scheme, "evidence": str(folder)}
    evaluate("quantdrift", tasks, names, model_args=arguments)
    return find_runs([folder])


def test_metrics_of_a_task_s_own_python(lm: QuantizedPairLM, tasks: Path) -> None:
    results = evaluate(lm, tasks, ["own"])
    rows = results["results"]["tiny_own"]
    for name in ("right", "letters"):
        mean = sum(sample[f"drift_reference_{name}"] for sample in results["samples"]["tiny_own"]) / N
        assert rows[f"drift_reference_{name},none"] == pytest.approx(mean)
    # a pair per document is no number of it; the task's own function makes one of all
    assert rows["drift_reference_both,none"] == rows["drift_reference_right,none"]
    assert "drift_right_to_wrong_right,none" in rows
    assert not [key for key in rows if "to_wrong_both" in key or "to_wrong_letters" in key]
    assert results["quantdrift"]["tasks"]["tiny_own"]["none"]["judged_by"] == "right"


def test_without_drift_a_task_has_results(lm: QuantizedPairLM, tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = evaluate(lm, tasks, ["broken", "questions"])
    assert results["results"]["tiny_broken"]["right,none"] == 1.0
    assert list(results["quantdrift"]["tasks"]) == ["tiny_questions"]
    assert "no drift is measured on tiny_broken" in capsys.readouterr().err


def test_both_arms_draw_the_same_random_numbers(lm: QuantizedPairLM, tasks: Path) -> None:
    drawn = {"do_sample": True, "temperature": 3.0, "max_gen_toks": 4, "until": ["|"]}
    rows = evaluate(lm, tasks, ["sums"], gen_kwargs=drawn)["results"]["tiny_sums"]
    assert rows["drift_flip_at_1,first"] < 0.5  # with other draws nearly every answer would differ


def test_prompts_are_what_it_is_calibrated_on(tasks: Path, models: list[str], tmp_path: Path) -> None:
    (run,) = runs(tasks, tmp_path, ["questions", "texts"], models[0], "W3-adaround")
    record = run.record["quantization"]
    assert record["calibration"]["source"] == "prompts of the tasks"
    assert record["calibration"]["n_inputs"] == N  # the choices and the texts are no prompts
    assert record["fallbacks"] == {}


def test_a_file_in_place_of_prompts_and_neither(tasks: Path, models: list[str], tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(text(seed, 6) for seed in range(20)))
    (run,) = runs(tasks, tmp_path / "a", ["questions"], models[0], f"W4A8+calib={file}")
    assert run.record["quantization"]["calibration"]["source"] == str(file)
    with pytest.raises(DataError, match=r"Give texts with \+calib=FILE.txt"):
        runs(tasks, tmp_path / "b", ["texts"], models[0], "W4A8")


def test_outside_of_an_evaluation_it_is_the_candidate(models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    asked = [Instance("loglikelihood", {}, ("ba ba", " bo"), 0)]
    lm = QuantizedPairLM(models[0], "W2", device="cpu")
    with lm.pair.candidate():
        expected = HFLM.loglikelihood(lm, asked)
    assert lm.loglikelihood(asked) == expected
    assert HFLM(models[0], device="cpu").loglikelihood(asked) != expected
    assert "only the candidate is run" in capsys.readouterr().err


def test_what_loading_left_out_is_told(models: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(models[0], tmp_path / "model")
    weights = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file({**weights, "extra.weight": torch.ones(2)}, folder / "model.safetensors", {"format": "pt"})
    QuantizedPairLM(str(folder), "W4-rtn", device="cpu", dtype="bfloat16")
    said = capsys.readouterr().err
    assert "stores extra.weight, which LlamaForCausalLM has no use for" in said
    assert "full precision is bfloat16 here" in said


def test_no_run_folder_takes_the_place_of_another_s(models: list[str], tasks: Path, tmp_path: Path) -> None:
    data = [run.record["data"] for run in runs(tasks, tmp_path / "a", ["sums", "sums-first"], models[0])]
    wanted = [("tiny_sums", "first"), ("tiny_sums", "start"), ("tiny_sums-first", "start")]
    assert sorted((entry["name"], entry["subset"]) for entry in data) == wanted
    for model in (*models, *models):  # one of the same model is replaced
        kept = runs(tasks, tmp_path / "b", ["questions"], model)
    assert sorted(run.record["model"]["name"] for run in kept) == sorted(models)
