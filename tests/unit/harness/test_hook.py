import importlib
import importlib.util
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from quantdrift import _hook
from quantdrift.features.doctor import checks as doctor
from support.places import ROOT

STARTUP = ROOT / "plugins" / "startup"

HARNESS = """
LOADER_WHILE_RUNNING = type(__spec__.loader).__name__, type(__loader__).__name__
VALUE = 42

def answer():
    return VALUE
"""

PLUGIN = """
calls = []

def record(module):
    calls.append((module.__name__, module.VALUE))

def fail(module):
    raise AttributeError("module has no function\\n'answer'")
"""


@pytest.fixture(autouse=True)
def clean_start(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a Python that has just started without the hook; undone afterwards."""
    monkeypatch.delenv(_hook.OFF_SWITCH, raising=False)
    others = [f for f in sys.meta_path if not getattr(f, "is_quantdrift_hook", False)]
    monkeypatch.setattr(sys, "meta_path", others)
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("madeup"):
            del sys.modules[name]


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A harness `madeup` with two watched modules, and the plugin that wants to know."""
    package = tmp_path / "madeup"
    package.mkdir()
    for name in ("__init__", "evaluate", "tasks", "other"):
        (package / f"{name}.py").write_text(HARNESS)
    (package / "data.txt").write_text("some data")
    (tmp_path / "madeup_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    watch(monkeypatch, "record")
    return importlib.import_module("madeup_plugin")


def watch(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    target = f"madeup_plugin:{function}"
    monkeypatch.setattr(_hook, "WATCHED", {"madeup.evaluate": target, "madeup.tasks": target})


def hook_finders() -> list[Any]:
    return [f for f in sys.meta_path if getattr(f, "is_quantdrift_hook", False)]


def test_a_watched_module_looks_as_if_it_had_never_been_watched(harness: ModuleType) -> None:
    _hook.install()
    watched = importlib.import_module("madeup.evaluate")
    plain = importlib.import_module("madeup.other")

    assert type(watched.__spec__.loader) is type(plain.__spec__.loader)  # type: ignore[union-attr]
    assert watched.__loader__ is watched.__spec__.loader  # type: ignore[union-attr]
    assert plain.LOADER_WHILE_RUNNING == watched.LOADER_WHILE_RUNNING
    assert resources.files("madeup").joinpath("data.txt").read_text() == "some data"
    assert inspect.getsource(watched.answer) == inspect.getsource(plain.answer)
    assert pickle.loads(pickle.dumps(watched.answer)) is watched.answer


def test_an_error_in_our_function_is_one_warning_and_the_import_succeeds(
    harness: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watch(monkeypatch, "fail")
    _hook.install()
    modules = [importlib.import_module(f"madeup.{name}") for name in ("evaluate", "tasks")]
    assert [module.answer() for module in modules] == [42, 42]
    (line,) = capsys.readouterr().err.splitlines()  # once per harness, not once per module
    assert "QUANTDRIFT_HOOK=0" in line
    (finder,) = hook_finders()
    assert (finder.patched, set(finder.errors)) == ([], {"madeup.evaluate", "madeup.tasks"})
    assert finder.errors["madeup.evaluate"].startswith("AttributeError: module has no function")


def test_the_off_switch_leaves_the_import_system_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(sys.meta_path)
    for value in ("0", "OFF", " No "):
        monkeypatch.setenv(_hook.OFF_SWITCH, value)
        assert not _hook.install()
    assert sys.meta_path == before


def test_our_function_is_called_once(harness: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _hook.install("pth")
    assert sys.meta_path[0] is hook_finders()[0]
    for _ in range(2):
        importlib.import_module("madeup.evaluate")
    _hook.install()
    _hook.start()
    importlib.reload(_hook)
    watch(monkeypatch, "record")
    _hook.install()

    (finder,) = hook_finders()
    assert harness.calls == [("madeup.evaluate", 42)]
    assert (finder.started_by, finder.patched, finder.errors) == ("pth", ["madeup.evaluate"], {})


def lines_to_run(name: str) -> list[str]:
    lines = (STARTUP / name).read_text(encoding="ascii").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_the_pth_file_is_quiet_where_the_package_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "quantdrift._hook")
    monkeypatch.delitem(sys.modules, "quantdrift")
    (line,) = lines_to_run("quantdrift.pth")
    exec(line, {})
    assert "quantdrift" not in sys.modules


@pytest.mark.parametrize(
    "content",
    ["", "def install(", "\0\0", "raise RuntimeError('cut')", "def install(): ...", "import nowhere_to_be_found"],
)
def test_a_broken_hook_is_quiet_at_the_start_and_told_by_doctor(tmp_path: Path, content: str) -> None:
    """A real Python with a site folder of its own, whose quantdrift is broken."""
    (tmp_path / "quantdrift").mkdir()
    (tmp_path / "quantdrift" / "__init__.py").touch()
    (tmp_path / "quantdrift" / "_hook.py").write_text(content)
    (line,) = lines_to_run("quantdrift.pth")
    (tmp_path / "quantdrift.pth").write_text(line + "\n")
    script = f"import site, sys; site.addsitedir({str(tmp_path)!r}); print(getattr(sys, 'quantdrift_hook_error', None))"
    environment = {**os.environ, "PYTHONPATH": "", "QUANTDRIFT_HOOK": ""}
    ended = subprocess.run(
        [sys.executable, "-S", "-c", script],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path.parent,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Error" in ended.stdout  # which doctor shows


def test_doctor_says_that_the_hook_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "quantdrift_hook_error", "SyntaxError: '(' was never closed", raising=False)
    report = doctor._hook_report()
    assert "The hook is broken (SyntaxError: '(' was never closed): pip install --force-reinstall" in report["advice"]
    assert report["errors"]
