"""Models that can be paired, how they are loaded, and their names."""

import os
import shutil
from pathlib import Path
from typing import Any

import mteb
import pytest
from mteb.models import CrossEncoderWrapper, SentenceTransformerEncoderWrapper

from integration.quantdrift_mteb.mteb_samples import retrieval_task, scores, split_data
from quantdrift.base.errors import UnsupportedError
from quantdrift.models.files.named import resolve
from quantdrift_mteb.meta import local_meta
from support.rerank_samples import save_cross_encoder
from support.row_models import static_model

DATA = {"default": {"test": split_data(10, 30)}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def task() -> Any:
    return retrieval_task("TinyModels", DATA)


def figures(model: Any) -> dict[str, Any]:
    return scores(model, task())["test"][0]


def test_a_folder_is_named_after_itself_and_its_files(folder: Path, home: Path) -> None:
    copied = home / "my@model"
    shutil.copytree(folder, copied)
    metas = [mteb.get_model_meta(f"quantdrift:{path}@W4-rtn") for path in ("./my@model", copied, "my@model/", folder)]
    assert [meta.name for meta in metas] == [
        *["quantdrift/local__my@model@W4-g128-rtn"] * 3,
        "quantdrift/local__encoder@W4-g128-rtn",
    ]
    assert len({meta.revision for meta in metas[:3]}) == 1
    assert all(meta.revision.startswith("local-") for meta in metas)
    os.utime(copied / "model.safetensors", (1, 1))
    assert mteb.get_model_meta("quantdrift:./my@model@W4").revision != metas[0].revision
    pair = mteb.get_model("quantdrift:./my@model@W4")
    assert pair.mteb_model_meta.name == metas[0].name
    assert figures(pair)["drift_spec"] == "./my@model@W4-g128-rtn"
    with pytest.raises(UnsupportedError, match="has no revision 'abc'"):
        mteb.get_model_meta("quantdrift:./my@model@W4", revision="abc")


def test_a_spec_without_its_prefix_is_told_what_to_write(home: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"write quantdrift:minilm@W4-rtn"):
        mteb.get_model_meta("minilm@W4-rtn")
    (home / "my@W4").mkdir()
    with pytest.raises(Exception, match=r"my@W4") as stock:  # a folder of that name is a model of mteb's own
        mteb.get_model_meta("my@W4")
    assert not isinstance(stock.value, UnsupportedError)


def loader_of(path: Path) -> Any:
    return local_meta(resolve(str(path))).loader


def test_a_folder_says_what_kind_of_model_it_holds(folder: Path, tmp_path: Path) -> None:
    reranker = save_cross_encoder(tmp_path / "reranker")
    assert loader_of(folder) is SentenceTransformerEncoderWrapper
    for path in (reranker, reranker.with_name("reranker-backbone")):
        assert loader_of(path) is CrossEncoderWrapper
    with pytest.raises(UnsupportedError, match="query and document"):
        mteb.get_model(f"quantdrift:{reranker}@W4+query")
    for said, why in (('{"model_type": "Odd"}', "would be another model"), ("[" * 10**5, "cannot be read")):
        (reranker / "config_sentence_transformers.json").write_text(said)
        with pytest.raises(UnsupportedError, match=why):
            mteb.get_model(f"quantdrift:{reranker}@W4")


def test_what_has_no_linear_layer_is_refused(tmp_path: Path) -> None:
    static_model(tmp_path)
    with pytest.raises(UnsupportedError, match=r"has no nn\.Linear layer.*fp\+table=8"):
        mteb.get_model("quantdrift:./static@W4")
    assert mteb.get_model("quantdrift:./static@fp+table=8").pair.stages
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    with pytest.raises(UnsupportedError, match=r"broken.config\.json cannot be read: "):
        mteb.get_model("quantdrift:./broken@W4")
