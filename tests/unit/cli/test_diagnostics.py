from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quantdrift import _hook, paths
from quantdrift import doctor as components
from quantdrift import doctor as diagnostics
from quantdrift._hook_notify import HookStatus
from quantdrift.errors import RunError
from support.command_line import cli
from support.places import ROOT

INSTALLED = {"mteb": "2.26.24", "torch": "2.13.0+cpu", "transformers": "5.23.0", "sentence-transformers": "6.2.0"}
DECLARED = ["numpy>=1.26", 'mteb>=2.26; extra == "mteb"', 'lm_eval[hf]>=0.4.13; extra == "lm-eval"']


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The packages this environment seems to hold; a test changes them as it likes."""
    packages = dict(INSTALLED)

    def version(name: str) -> str:
        if name not in packages:
            raise metadata.PackageNotFoundError(name)
        return packages[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: DECLARED)
    return packages


def component(name: str) -> components.Component:
    return next(c for c in components.components() if c.name == name)


def test_what_is_there_is_usable_and_what_is_not_has_its_install_line(installed: dict[str, str]) -> None:
    mteb = component("mteb")
    assert (mteb.version, mteb.minimum, mteb.usable, mteb.install) == ("2.26.24", "2.26", True, None)
    beir = component("beir")
    assert (beir.version, beir.usable) == (None, False)
    assert beir.install == 'pip install "quantdrift[beir]"'
    assert component("lm_eval").minimum == "0.4.13"
    assert component("rtn").usable
    assert component("adaround").usable  # built in too
    assert component("hqq").install == 'pip install "quantdrift[hqq]"'
    assert component("gptqmodel").install == 'pip install "quantdrift[gptq]"'


@pytest.mark.parametrize(
    ("version", "usable"), [("2.26", True), ("2.26.0rc1", True), ("2.100.0", True), ("2.3", False), ("1.38.4", False)]
)
def test_an_older_version_than_declared_does_not_count(installed: dict[str, str], version: str, usable: bool) -> None:
    installed["mteb"] = version
    assert component("mteb").usable is usable


def test_a_source_folder_without_metadata_declares_no_minimum(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    assert component("mteb").minimum is None
    assert component("mteb").usable


def test_every_extra_that_is_named_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {extra for _, extra, _ in components._KNOWN.values() if extra}
    assert named <= set(project["optional-dependencies"])


def test_doctor_succeeds_when_models_can_be_scored_inside_mteb(installed: dict[str, str]) -> None:
    code, printed, _ = cli("doctor")
    assert code == 0
    assert "Ready" in printed
    assert 'For beir: pip install "quantdrift[beir]"' in printed


def test_doctor_fails_and_says_what_is_missing(installed: dict[str, str]) -> None:
    del installed["torch"]
    installed["mteb"] = "1.0"
    code, printed, _ = cli("doctor")
    assert code == 1
    assert "Ready" not in printed
    assert 'torch is not installed (runs the models): pip install "quantdrift[models]"' in printed
    assert "mteb 1.0 is installed, 2.26 or newer is needed" in printed


def test_the_json_output_is_one_object_with_the_same_content(installed: dict[str, str]) -> None:
    del installed["mteb"]
    code, printed, _ = cli("doctor", "--json")
    assert code == 1
    report = json.loads(printed)
    assert report["hook"]["advice"]
    assert {c["name"]: c["version"] for c in report["components"]}["torch"] == "2.13.0+cpu"
    assert len(report["problems"]) == 1


@pytest.mark.parametrize(
    ("status", "startup_file", "says"),
    [
        (HookStatus(active=True, switched_off=False, started_by="pth"), "x.pth", "is active"),
        (HookStatus(active=False, switched_off=True), "x.pth", "switched off by QUANTDRIFT_HOOK"),
        (HookStatus(active=False, switched_off=False), None, "install quantdrift there with pip"),
        (HookStatus(active=False, switched_off=False), "x.pth", "although x.pth is there"),
        (
            HookStatus(active=True, switched_off=False, errors={"mteb.evaluate": "KeyError: 'x'"}),
            "x.pth",
            "mteb.evaluate: KeyError: 'x'",
        ),
    ],
)
def test_the_advice_names_the_reason_and_the_way_without_the_hook(
    monkeypatch: pytest.MonkeyPatch, status: HookStatus, startup_file: str | None, says: str
) -> None:
    monkeypatch.setattr(_hook, "status", lambda: status)
    monkeypatch.setattr(diagnostics, "_startup_file", lambda: startup_file)
    found = diagnostics.diagnose()
    assert says in found["hook"]["advice"]
    assert status.active or "`quantdrift mteb run ...` works" in found["hook"]["advice"]
    fine = status.active and not status.errors
    assert (found["hook"]["advice"] in found["advice"]) is not fine


def test_the_startup_file_is_looked_for_in_site_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path)])
    monkeypatch.setattr("site.ENABLE_USER_SITE", False)
    assert diagnostics.diagnose()["hook"]["startup_file"] is None
    name = "quantdrift.start" if sys.version_info >= (3, 15) else "quantdrift.pth"
    (tmp_path / name).touch()
    assert diagnostics.diagnose()["hook"]["startup_file"] == str(tmp_path / name)


def test_accelerators_are_named_only_when_torch_is_there_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert diagnostics.diagnose()["accelerators"] is None

    torch: Any = SimpleNamespace(
        cuda=SimpleNamespace(device_count=lambda: 2, get_device_name="GPU {}".format),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False)),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert diagnostics.diagnose()["accelerators"] == ["GPU 0", "GPU 1"]


def test_looking_imports_nothing_heavy() -> None:
    code = (
        "import sys; from quantdrift.doctor import diagnose; diagnose();"
        "print({'torch', 'numpy', 'transformers', 'sentence_transformers'} & {*sys.modules})"
    )
    python = [sys.executable, "-c", code]
    done = subprocess.run(python, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


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


def test_without_a_home_folder_the_error_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("QUANTDRIFT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(RunError, match="set QUANTDRIFT_CACHE"):
        paths.cache_dir()
    assert diagnostics.diagnose()["cache"]["path"] is None


def test_the_cache_folder_need_not_exist_to_be_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "not" / "yet"))
    cache = diagnostics.diagnose()["cache"]
    assert cache["path"] == str(tmp_path / "not" / "yet")
    assert cache["writable"]
    assert cache["free_bytes"] is not None
    assert cache["free_bytes"] > 0
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [(lambda folder: folder.touch(mode=0o755), "cannot be written to"), (lambda folder: None, "Little space is left")],
)
def test_a_cache_folder_that_will_not_do_is_pointed_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spoil: Callable[[Path], object], says: str
) -> None:
    folder = tmp_path / "cache"
    spoil(folder)
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(folder))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**6))
    (sentence,) = (s for s in diagnostics.diagnose()["advice"] if "cache folder" in s)
    assert says in sentence
    assert "QUANTDRIFT_CACHE" in sentence
