"""What is changed in mteb, and that nothing else is."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from copy import copy
from pathlib import Path
from types import ModuleType
from typing import Any

import mteb
import pytest
from mteb.models import SearchEncoderWrapper

from quantdrift_mteb import hooks
from support.mteb_samples import retrieval_task, save_encoder, scores, split_data, stock

CHANGED = {
    "mteb.models.get_model_meta": ("get_model_meta", hooks.on_models_imported),
    "mteb.evaluate": ("_evaluate_task", hooks.on_evaluate_imported),
    "mteb.get_tasks": ("_TASKS_REGISTRY", hooks.on_tasks_imported),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("model"))


def task() -> Any:
    return retrieval_task("TinyHooks", {"default": {"test": split_data(8, 20)}})


@pytest.mark.parametrize("name", CHANGED)
def test_changing_twice_changes_nothing(name: str) -> None:
    module, (attribute, change) = sys.modules[name], CHANGED[name]
    before = copy(getattr(module, attribute))
    change(module)
    again = importlib.reload(hooks)
    getattr(again, change.__name__)(module)
    assert getattr(module, attribute) == before


def test_a_stock_model_is_evaluated_as_without_us(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_us = scores(stock(folder), task())
    module = sys.modules["mteb.evaluate"]
    monkeypatch.setattr(module, "_evaluate_task", module._evaluate_task.__wrapped__)
    assert with_us == scores(stock(folder), task())
    assert not any(key.startswith("drift") for key in with_us["test"][0])


def test_a_task_of_ours_is_there_by_name_and_in_no_list() -> None:
    name = "PythonDocsRetrieval"
    assert mteb.get_task(name).metadata.name == name
    for filters in ({}, {"languages": ["eng"]}, {"task_types": ["Retrieval"], "script": ["Latn"]}):
        assert [one.metadata.name for one in mteb.get_tasks(tasks=[name], **filters)] == [name]
        found = mteb.get_tasks(**filters)
        assert len(found) > 100
        assert name not in {one.metadata.name for one in found}


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
        (hooks.on_models_imported, made("a")),
        (hooks.on_models_imported, made("a", get_model_meta="text")),
        (hooks.on_models_imported, made("a", get_model_meta=lambda model_name: None)),
        (hooks.on_evaluate_imported, made("a", _evaluate_task=lambda model, task: None)),
        (hooks.on_tasks_imported, made("a", _TASKS_REGISTRY=[])),
        (hooks.on_tasks_imported, made("a", TASK_LIST=())),
    ],
)
def test_an_mteb_that_looks_otherwise_is_left_alone(change: Any, module: ModuleType) -> None:
    before = dict(vars(module))
    with pytest.raises(TypeError, match="has no"):
        change(module)
    assert vars(module) == before


def fresh(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A new Python with the hook, which finds the modules of `folder` first."""
    environment = {k: v for k, v in os.environ.items() if k != "QUANTDRIFT_HOOK"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )


@pytest.mark.slow
def test_an_mteb_of_another_shape_gets_one_warning_and_goes_on(tmp_path: Path) -> None:
    sources = {
        "__init__": "",
        "evaluate": "def _evaluate_task(model): return 1",
        "get_tasks": "TASK_LIST = []",
        "models/__init__": "",
        "models/get_model_meta": "def get_model_meta(name): return name",
    }
    for name, source in sources.items():
        path = tmp_path / "mteb" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    done = fresh(
        "import mteb.evaluate, mteb.get_tasks, mteb.models.get_model_meta as models\n"
        "print(mteb.evaluate._evaluate_task(0), mteb.get_tasks.TASK_LIST,"
        " models.get_model_meta('quantdrift:minilm@W4'))",
        tmp_path,
    )
    assert done.stdout == "1 [] quantdrift:minilm@W4\n"
    assert done.stderr.count("RuntimeWarning") == 1
    assert "mteb goes on without quantdrift" in done.stderr


@pytest.mark.slow
def test_our_tasks_first_then_mteb_and_a_reload(tmp_path: Path) -> None:
    done = fresh(
        "import importlib, sys\n"
        "from quantdrift_tasks.mteb_tasks import PythonDocsRetrieval\n"  # imports mteb halfway
        "import mteb\n"
        "assert type(mteb.get_task('PythonDocsRetrieval')) is PythonDocsRetrieval\n"
        "assert len(mteb.get_tasks(tasks=['PythonDocsRetrieval'])) == 1\n"
        "module = importlib.reload(sys.modules['mteb.models.get_model_meta'])\n"
        "print(module.get_model_meta('quantdrift:minilm@W4').name)\n"
        "tasks = importlib.reload(sys.modules['mteb.get_tasks'])\n"
        "assert type(tasks.get_task('PythonDocsRetrieval')) is PythonDocsRetrieval\n",
        tmp_path,
    )
    assert done.stdout.strip().endswith("all-MiniLM-L6-v2@W4-g128-rtn")
    assert "Warning: quantdrift" not in done.stderr
