"""From a name to a model: aliases, folders, hub ids, and what to say to a wrong one."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from quantdrift.errors import UnknownNameError, UnsupportedError
from quantdrift.models import named as module
from quantdrift.models.named import ALIASES, EMBEDDED, resolve

HARNESS = ["Alibaba-NLP/gte-Qwen2-1.5B-instruct", "intfloat/e5-mistral-7b-instruct"]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the same name as an alias must not be found by accident."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def harness_names(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Stands in for mteb's registry, which takes seconds; holds a number per time it is asked."""
    asked: list[int] = []

    def names() -> list[str]:
        asked.append(1)
        return HARNESS

    monkeypatch.setattr(module, "_harness_names", names)
    return asked


@pytest.mark.parametrize("alias", sorted(set(ALIASES) - set(EMBEDDED)))
def test_an_alias_is_a_hub_id(alias: str, harness_names: list[int]) -> None:
    for name in (alias, alias.upper()):
        source = resolve(name)
        assert (source.kind, source.location) == ("hub", ALIASES[alias])
        assert source.canonical == ALIASES[alias]
        assert source.name == name
    assert not harness_names


def package(folder: Path, files: list[str]) -> Path:
    for name in files:
        path = folder / "a_model_package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return folder / "a_model_package"


def test_minilm_comes_from_its_package_without_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EMBEDDED", {"minilm": ("a_model_package", "model")})
    monkeypatch.syspath_prepend(tmp_path)
    hub = "sentence-transformers/all-MiniLM-L6-v2"
    assert resolve("minilm").kind == "hub"  # the package is not installed
    for name in ("minilm", hub):
        assert 'pip install "quantdrift[demo]"' in resolve(name).without_hub
    assert resolve("mpnet").without_hub == ""
    where = package(tmp_path, ["__init__.py", "model/config.json"])
    importlib.invalidate_caches()
    for name in ("minilm", "MiniLM"):
        source = resolve(name)
        assert (source.kind, source.location) == ("embedded", str(where / "model"))
        assert source.canonical == hub
        assert source.without_hub == ""
    assert "under the name 'minilm'" in resolve(hub).without_hub


# --- folders ---------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["config.json", "modules.json"])
@pytest.mark.parametrize(
    "spelling", [str, lambda path: path.name, lambda path: f"./{path.name}", lambda path: f"{path}/"]
)
def test_a_model_folder(tmp_path: Path, file: str, spelling: Callable[[Path], str]) -> None:
    folder = tmp_path / "my@model v1"
    folder.mkdir()
    (folder / file).write_text("{}")
    source = resolve(spelling(folder))
    assert (source.kind, source.canonical) == ("local", "my@model v1")
    assert source.location == str(folder)


def test_a_folder_of_two_parts_goes_before_a_hub_id(tmp_path: Path) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "config.json").write_text("{}")
    assert resolve("org/name").kind == "local"
    assert resolve("org/other").kind == "hub"


@pytest.mark.parametrize(("files", "found"), [([], "nothing"), (["b.txt", "a.txt"], "a.txt, b.txt")])
def test_a_folder_that_is_no_model(tmp_path: Path, files: list[str], found: str) -> None:
    (tmp_path / "data").mkdir()
    for name in files:
        (tmp_path / "data" / name).write_text("")
    with pytest.raises(UnsupportedError, match=f"not a model folder: .* found {found}. Save"):
        resolve("data")


@pytest.mark.parametrize("name", ["./nowhere", "../no/where", "/no/where/at all", "~/nowhere"])
def test_a_path_that_is_not_there_is_no_hub_id(name: str, harness_names: list[int]) -> None:
    with pytest.raises(UnsupportedError, match=r"no folder .*where"):
        resolve(name)
    assert not harness_names


# --- harnesses and wrong names ---------------------------------------------------------------


def test_the_short_name_of_a_harness_model(harness_names: list[int]) -> None:
    for name in ("e5-mistral-7b-instruct", "E5-Mistral-7B-Instruct"):
        source = resolve(name)
        assert (source.kind, source.canonical) == ("hub", "intfloat/e5-mistral-7b-instruct")
    assert harness_names


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("minilmm", "minilm"),
        ("BGE-larg", "bge-large"),
        ("qwen3-06B", "Qwen3-0.6B"),
        ("e5-mistral-7b", "intfloat/e5-mistral-7b-instruct"),
    ],
)
def test_a_wrong_name_gets_the_nearest(name: str, meant: str, harness_names: list[int]) -> None:
    with pytest.raises(UnknownNameError) as caught:
        resolve(name)
    assert meant in caught.value.suggestions
    assert f"unknown model {name!r}; did you mean" in str(caught.value)
    assert "or a folder" in str(caught.value)
