"""The changes in mteb, and that nothing else changes."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import mteb
import pytest
from mteb.models import SearchEncoderWrapper

from integration.quantdrift_mteb.mteb_samples import retrieval_task, scores, split_data, stock
from quantdrift_mteb import cli, hooks


def task() -> Any:
    return retrieval_task("TinyHooks", {"default": {"test": split_data(8, 20)}})


def test_a_stock_model_is_evaluated_as_without_us(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_us = scores(stock(folder), task())
    module = sys.modules["mteb.evaluate"]
    monkeypatch.setattr(module, "_evaluate_task", module._evaluate_task.__wrapped__)
    assert with_us == scores(stock(folder), task())
    assert not any(key.startswith("drift") for key in with_us["test"][0])


@pytest.mark.slow
def test_every_name_of_a_task_is_in_the_files_that_are_looked_into() -> None:
    mteb.get_tasks(tasks=["PythonDocsSmall"])  # ours are listed then
    texts = cli._texts()
    names = [name for name in sys.modules["mteb.get_tasks"]._TASKS_REGISTRY if not name.startswith("Tiny")]
    assert len(names) > 500
    assert not [name for name in names if f'"{name}"' not in texts]


@pytest.mark.slow
def test_tasks_and_benchmarks_of_ours_are_there_by_name_and_in_no_list() -> None:
    for name in ("PythonDocsSmall", "PythonDocsShort", "PythonDocsRetrieval"):
        assert [task.metadata.name for task in mteb.get_tasks(tasks=[name], languages=["eng"])] == [name]
    listed = {task.metadata.name for task in mteb.get_tasks(task_types=["Retrieval"], script=["Latn"])}
    assert len(listed) > 100
    assert name not in listed
    (texts,) = mteb.get_benchmarks(["QuantDrift(text)"])
    assert [task.metadata.name for task in texts.tasks] == ["NFCorpus", "SciFact", "SCIDOCS", "FiQA2018"]
    classes = mteb.get_benchmark("QuantDrift(classes)")
    assert len(classes.tasks) == 11
    assert {split for task in classes.tasks for split in task.eval_splits} == {"test"}
    assert all(len(task.hf_subsets) == 1 for task in classes.tasks)
    assert not any(benchmark.name.startswith("QuantDrift") for benchmark in mteb.get_benchmarks())
    with pytest.raises(KeyError, match="expected one of"):
        mteb.get_benchmark("QuantDrift(images)")


def test_a_wrapped_pair_measures_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path))
    wrapped = SearchEncoderWrapper(mteb.get_model(f"quantdrift:{folder}@W3"))
    with pytest.warns(UserWarning, match="inside a SearchEncoderWrapper.*no drift"):
        entry = scores(wrapped, task())["test"][0]
    assert not any(key.startswith("drift") for key in entry)


def test_an_mteb_that_looks_otherwise_is_left_alone() -> None:
    module = ModuleType("mteb.get_tasks")
    vars(module).update(_TASKS_REGISTRY=[])
    before = dict(vars(module))
    with pytest.raises(TypeError, match="has no _TASKS_REGISTRY dict"):
        hooks.on_tasks_imported(module)
    assert vars(module) == before
