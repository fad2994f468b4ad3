"""From a name to a model: aliases, folders, hub ids, and what to say to a wrong one."""

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from quantdrift.base.errors import RunError, UnknownNameError, UnsupportedError
from quantdrift.models.files.named import ALIASES, is_open_clip, resolve
from quantdrift.models.files.packaged import PACKAGED, PackagedModel
from support.packaged_model import in_parts


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the same name as an alias must not be found by accident."""
    monkeypatch.chdir(tmp_path)


def test_an_alias_is_a_hub_id() -> None:
    for alias in set(ALIASES) - set(PACKAGED):
        for name in (alias, alias.upper()):
            source = resolve(name)
            assert (source.kind, source.location, source.name) == ("hub", ALIASES[alias], name)


def test_minilm_comes_from_its_package_without_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = PackagedModel(packages=["a_model_package"], within=["model"], install="a-model-package")
    monkeypatch.setitem(PACKAGED, "minilm", package)
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve("minilm").kind == "hub"  # the package is not installed
    assert "a-model-package brings it" in resolve("minilm").otherwise
    assert "try again" in resolve("bge-m3").otherwise
    where = tmp_path / "a_model_package" / "model"
    where.mkdir(parents=True)
    (where.parent / "__init__.py").touch()
    importlib.invalidate_caches()
    for name in ("minilm", "MiniLM"):
        source = resolve(name)
        assert (source.kind, source.location) == ("embedded", str(where))
        assert (source.canonical, source.otherwise) == ("sentence-transformers/all-MiniLM-L6-v2", "")
    assert "under the name 'minilm'" in resolve("sentence-transformers/all-MiniLM-L6-v2").otherwise


def test_a_model_in_parts_is_unpacked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    files = {"config.json": b"{}", "1_Pooling/config.json": b"[1]", "model.safetensors": bytes(range(256)) * 40}
    monkeypatch.setitem(PACKAGED, "mpnet", in_parts(tmp_path, files))
    source = resolve("mpnet")
    folder = Path(source.location)
    assert (source.kind, source.canonical) == ("embedded", "sentence-transformers/all-mpnet-base-v2")
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == files
    assert resolve("mpnet") == source
    assert capsys.readouterr().err.count("unpacking") == 1
    (folder / "model.safetensors").write_bytes(b"cut short")
    resolve("mpnet")
    assert (folder / "model.safetensors").read_bytes() == files["model.safetensors"]
    monkeypatch.setenv("QUANTDRIFT_CACHE", "off")
    assert resolve("mpnet").kind == "hub"


def test_parts_of_another_model_are_refused_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    model = in_parts(tmp_path, {"model.safetensors": b"weights"})
    monkeypatch.setitem(PACKAGED, "mpnet", model)
    model.places[1].write_bytes(b"of something else")
    with pytest.raises(RunError, match="expected sha256"):
        resolve("mpnet")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize("file", ["config.json", "modules.json"])
@pytest.mark.parametrize("spelling", [str, lambda path: path.name, lambda path: f"./{path.name}/"])
def test_a_model_folder(tmp_path: Path, file: str, spelling: Callable[[Path], str]) -> None:
    folder = tmp_path / "my@model v1"
    folder.mkdir()
    (folder / file).write_text("{}")
    source = resolve(spelling(folder))
    assert (source.kind, source.canonical, source.location) == ("local", "my@model v1", str(folder))
    folder.rename(tmp_path / "name")
    assert resolve(f"{tmp_path.name}/name").kind == "hub"
    tmp_path.joinpath(tmp_path.name).mkdir()
    (tmp_path / "name").rename(tmp_path / tmp_path.name / "name")
    assert resolve(f"{tmp_path.name}/name").kind == "local"  # a folder of two parts goes before a hub id


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("data", r"not a model folder: .* found a\.txt, b\.txt"),
        *((name, "no folder .*where") for name in ("./nowhere", "../no/where", "/no/where/at all", "~/nowhere")),
        *((f"open_clip:{name}", "open_clip:ARCHITECTURE/TAG") for name in ("ViT-B-32", "./none", "/no/where")),
    ],
)
def test_what_is_no_model(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "data").mkdir()
    for file in ("b.txt", "a.txt"):
        (tmp_path / "data" / file).touch()
    with pytest.raises(UnsupportedError, match=message):
        resolve(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("minilmm", "minilm"),
        ("BGE-larg", "bge-large"),
        ("qwen3-06B", "Qwen3-0.6B"),
        ("all-MiniLM-L6-v2", "minilm"),  # by what the hub calls it
        ("all-minilm-l12", "minilm-l12"),
    ],
)
def test_a_wrong_name_gets_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        resolve(name)
    assert meant == caught.value.suggestions[0]


def test_what_open_clip_loads(tmp_path: Path) -> None:
    listed = resolve("open_clip:ViT-B-32/openai")
    assert (listed.kind, listed.location, is_open_clip(listed)) == ("hub", "ViT-B-32/openai", True)
    (tmp_path / "open_clip_config.json").write_text("{}")
    for name in (str(tmp_path), f"open_clip:{tmp_path}"):
        assert (resolve(name).kind, is_open_clip(resolve(name))) == ("local", True)
    (tmp_path / "config.json").write_text("{}")  # transformers loads it too, and is asked where nothing is said
    assert not is_open_clip(resolve(str(tmp_path)))
    assert is_open_clip(resolve(f"open_clip:{tmp_path}"))
