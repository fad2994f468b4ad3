"""From a name to a model, and its kind from its files: aliases, folders, hub ids, cross-encoders."""

import importlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quantdrift.base.errors import RunError, UnknownNameError, UnsupportedError
from quantdrift.models.files.kinds import check_kind, is_cross_encoder, kind_of, refuse_unreachable
from quantdrift.models.files.named import ModelSource, is_open_clip, resolve
from quantdrift.models.files.packaged import PACKAGED, PackagedModel
from quantdrift.models.vetting import refuse_unsaid_pooling
from quantdrift.spec.names import ALIASES
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


def test_a_model_that_a_hub_switched_off_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name, shown in (("some/model", "'some/model' cannot"), ("bge-small", "'bge-small' (BAAI/bge-small-en-v1.5)")):
        with pytest.raises(UnsupportedError) as caught:
            refuse_unreachable(resolve(name), None)
        said = str(caught.value)
        assert shown in said
        assert "HF_HUB_OFFLINE is set" in said
        assert said.count(resolve(name).canonical) == 1
        assert "connection" not in said.lower()
    refuse_unreachable(resolve("open_clip:ViT-B-32/openai"), None)  # open_clip says what it has


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
    assert "QUANTDRIFT_CACHE turns off" in resolve("mpnet").otherwise


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


@pytest.mark.parametrize("alias", ALIASES)
def test_what_the_hub_calls_a_model_is_that_model_alone(alias: str) -> None:
    name = ALIASES[alias].rpartition("/")[2]
    if name.lower() != alias.lower():  # else it is the short name
        with pytest.raises(UnknownNameError) as caught:
            resolve(name.upper())
        assert caught.value.suggestions == [alias]


def test_what_open_clip_loads(tmp_path: Path) -> None:
    listed = resolve("open_clip:ViT-B-32/openai")
    assert (listed.kind, listed.location, is_open_clip(listed)) == ("hub", "ViT-B-32/openai", True)
    (tmp_path / "open_clip_config.json").write_text("{}")
    for name in (str(tmp_path), f"open_clip:{tmp_path}"):
        assert (resolve(name).kind, is_open_clip(resolve(name))) == ("local", True)
    (tmp_path / "config.json").write_text("{}")  # transformers loads it too, and is asked where nothing is said
    assert not is_open_clip(resolve(str(tmp_path)))
    assert is_open_clip(resolve(f"open_clip:{tmp_path}"))


# --- kinds -------------------------------------------------------------------------------------------


ONE = {"id2label": {"0": "LABEL_0"}}
BERT = {"architectures": ["BertForSequenceClassification"]}
MODULES = [{"idx": 0, "name": "0", "path": "", "type": "Transformer"}]


def model(folder: Path, config: dict[str, Any], *, modules: bool = False, kind: str | None = None) -> ModelSource:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if modules:
        (folder / "modules.json").write_text(json.dumps(MODULES))
    if kind is not None:
        content = json.dumps({"model_type": kind})
        (folder / "config_sentence_transformers.json").write_text(content)
    return resolve(str(folder))


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        (BERT | ONE, {}, True),
        (BERT | ONE, {"modules": True, "kind": "CrossEncoder"}, True),
        (BERT, {}, False),  # transformers writes no labels where there are two
        (BERT | {"id2label": {"0": "a", "1": "b", "2": "c"}}, {}, False),
        # an embedding model whose backbone was saved from a reranker
        (BERT | ONE, {"modules": True, "kind": "SentenceTransformer"}, False),
        ({"architectures": ["BertModel"], **ONE}, {}, False),
        ({"architectures": ["BertModel"]}, {"modules": True, "kind": "SentenceTransformer"}, False),
        ({"architectures": ["Qwen3ForCausalLM"]}, {"modules": True, "kind": "CrossEncoder"}, True),
        ({"architectures": ["Qwen3ForCausalLM"]}, {}, False),
        ({"architectures": ["ViTForImageClassification"], **ONE}, {}, False),
    ],
)
def test_what_files_say(config: dict[str, Any], options: dict[str, Any], expected: bool, tmp_path: Path) -> None:
    source = model(tmp_path / "model", config, **options)
    assert is_cross_encoder(source) is expected
    if expected:
        with pytest.raises(UnsupportedError, match=r"is a cross-encoder.*--shortlist RUN"):
            check_kind(source, "sentence")


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "GPT2LMHeadModel", "T5ForConditionalGeneration"])
@pytest.mark.parametrize(
    "refuse", [partial(kind_of, use="shortlist"), refuse_unsaid_pooling], ids=["reranks", "searches"]
)
def test_a_bare_language_model(architecture: str, refuse: Callable[[ModelSource], object], tmp_path: Path) -> None:
    config = {"architectures": [architecture]}
    bare = model(tmp_path / "bare", config)
    with pytest.raises(UnsupportedError, match=rf"is a {architecture}, a language model, .*CrossEncoder\.save_pretr"):
        refuse(bare)
    said = model(tmp_path / "said", config, modules=True, kind="SentenceTransformer")
    assert not refuse_unsaid_pooling(said)


def test_a_classifier_is_no_reranker_and_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="is a classifier"):
        check_kind(model(tmp_path / "model", BERT), "sentence")
