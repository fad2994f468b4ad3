"""What `quantdrift doctor` looks at, and what it advises; the list of quantizers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quantdrift import _hook
from quantdrift.base import paths
from quantdrift.features.doctor import checks as doctor
from support.command_line import cli

INSTALLED = {"mteb": "2.26.24", "torch": "2.13.0+cpu", "transformers": "5.23.0", "sentence-transformers": "6.2.0"}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The packages this environment seems to hold; a test changes them as it likes."""
    packages = dict(INSTALLED)
    monkeypatch.setattr(doctor, "version_of", packages.get)
    return packages


def test_doctor_fails_only_where_models_cannot_be_scored(installed: dict[str, str]) -> None:
    code, printed, _ = cli("doctor")
    assert code == 0
    assert 'For beir: pip install "quantdrift[beir]"' in printed
    del installed["torch"]
    code, printed, _ = cli("doctor")
    assert code == 1
    assert 'torch is not installed (runs the models): pip install "quantdrift[models]"' in printed
    code, printed, _ = cli("doctor", "--json")
    report = json.loads(printed)
    assert (code, len(report["problems"])) == (1, 1)
    assert {c["name"]: c["version"] for c in report["components"]}["mteb"] == "2.26.24"


def test_what_a_library_warns_of_on_import_stands_in_doctor_alone(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], tmp_path: Path
) -> None:
    installed["torchao"] = "0.1"
    (tmp_path / "torchao.py").write_text("import logging; logging.getLogger(__name__).warning('no kernels: lost.so')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    assert "Note: torchao warns: no kernels: lost.so (when torchao is imported)" in cli("doctor")[1]
    ended = subprocess.run([sys.executable, "-c", "import quantdrift.models, torchao"], capture_output=True, check=True)
    assert (ended.stdout, ended.stderr) == (b"", b"")


@pytest.mark.parametrize(
    ("installed", "off", "errors", "says"),
    [
        (True, "", {}, "is active"),
        (True, "0", {}, "switched off by QUANTDRIFT_HOOK"),
        (False, "", {}, "install quantdrift with pip"),
        (True, "", {"mteb.evaluate": "KeyError: 'x'"}, "KeyError"),
    ],
)
def test_the_advice_names_the_reason_and_the_way_without_the_hook(
    monkeypatch: pytest.MonkeyPatch, installed: bool, off: str, errors: dict[str, str], says: str
) -> None:
    finder = _hook.HookFinder("pth")
    finder.errors.update(errors)
    monkeypatch.setenv(_hook.OFF_SWITCH, off)
    monkeypatch.setattr(_hook, "installed_finder", lambda: finder if installed else None)
    monkeypatch.setattr(doctor, "version_of", INSTALLED.get)
    report = doctor.diagnose()["hook"]
    assert says in report["advice"]
    assert report["active"] == (installed and not off)
    assert bool(errors) or report["active"] or "`quantdrift mteb run ...` works" in report["advice"]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"QUANTDRIFT_CACHE": "/big/disk", "XDG_CACHE_HOME": "/xdg"}, "/big/disk"),
        ({"QUANTDRIFT_CACHE": "~/mine"}, "/home/me/mine"),
        ({"QUANTDRIFT_CACHE": " ", "XDG_CACHE_HOME": "/xdg"}, "/xdg/quantdrift"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/quantdrift"),
        ({}, "/home/me/.cache/quantdrift"),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="the expected paths are POSIX ones")
def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("QUANTDRIFT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert paths.cache_dir() == Path(expected)


def test_quantizers_are_listed_with_what_is_installed(installed: dict[str, str]) -> None:
    installed["gptqmodel"] = "7.6.0"
    rows = {row.pop("quantizer"): row for row in json.loads(cli("list", "quantizers", "--json")[1])}
    assert rows["gptq"] == {
        "calibrated": True,
        "libraries": ["gptqmodel"],
        "versions": {"gptqmodel": "7.6.0"},
        "available": True,
        "install": None,
    }
    assert (rows["rtn"]["libraries"], rows["rtn"]["available"]) == ([], True)
    assert (rows["awq"]["libraries"], rows["awq"]["available"]) == (["gptqmodel", "autoawq"], True)
    assert rows["hqq"]["available"] is False
    assert rows["hqq"]["install"] == 'pip install "quantdrift[hqq]"'
