"""What is changed in mteb, and that nothing else is."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import mteb
import pytest
from mteb.models import SearchEncoderWrapper

from quantdrift_mteb import hooks
from support.mteb_samples import retrieval_task, scores, split_data, stock


def task() -> Any:
    return retrieval_task("TinyHooks", {"default": {"test": split_data(8, 20)}})


def test_a_stock_model_is_evaluated_as_without_us(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_us = scores(stock(folder), task())
    module = sys.modules["mteb.evaluate"]
    monkeypatch.setattr(module, "_evaluate_task", module._evaluate_task.__wrapped__)
    assert with_us == scores(stock(folder), task())
    assert not any(key.startswith("drift") for key in with_us["test"][0])


@pytest.mark.slow
def test_a_task_of_ours_is_there_by_name_and_in_no_list() -> None:
    name = "PythonDocsRetrieval"
    assert mteb.get_task(name).metadata.name == name
    assert [one.metadata.name for one in mteb.get_tasks(tasks=[name], languages=["eng"])] == [name]
    found = {one.metadata.name for one in mteb.get_tasks(task_types=["Retrieval"], script=["Latn"])}
    assert len(found) > 100
    assert name not in found


@pytest.mark.slow
def test_benchmarks_of_ours_are_there_by_name_and_in_no_list() -> None:
    (found,) = mteb.get_benchmarks(["QuantDrift(text)"])
    assert [one.metadata.name for one in found.tasks] == ["NFCorpus", "SciFact", "SCIDOCS", "FiQA2018"]
    classes = mteb.get_benchmark("QuantDrift(classes)")
    assert len(classes.tasks) == 11
    assert {split for one in classes.tasks for split in one.eval_splits} == {"test"}
    assert all(len(one.hf_subsets) == 1 for one in classes.tasks)
    assert not any(one.name.startswith("QuantDrift") for one in mteb.get_benchmarks())
    with pytest.raises(KeyError, match="expected one of"):
        mteb.get_benchmark("QuantDrift(images)")


def test_a_pair_inside_a_wrapper_of_mtebs_is_told_to_measure_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path))
    wrapped = SearchEncoderWrapper(mteb.get_model(f"quantdrift:{folder}@W3"))
    with pytest.warns(UserWarning, match="inside a SearchEncoderWrapper.*no drift"):
        found = scores(wrapped, task())["test"][0]
    assert not any(key.startswith("drift") for key in found)


def made(name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(attributes)
    return module


@pytest.mark.parametrize(
    ("change", "module"),
    [
        (hooks.on_models_imported, made("a", get_model_meta="text")),
        (hooks.on_models_imported, made("a", get_model_meta=lambda model_name: None)),
        (hooks.on_evaluate_imported, made("a", _evaluate_task=lambda model, task: None)),
        (hooks.on_tasks_imported, made("a", _TASKS_REGISTRY=[])),
        (hooks.on_benchmarks_imported, made("a", get_benchmark=lambda: None)),
    ],
)
def test_an_mteb_that_looks_otherwise_is_left_alone(change: Any, module: ModuleType) -> None:
    before = dict(vars(module))
    with pytest.raises(TypeError, match="has no"):
        change(module)
    assert vars(module) == before
