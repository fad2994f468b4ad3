"""Models that can be paired and their names; what a pair does to a process; and that nothing else in mteb changes."""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import mteb
import numpy as np
import pytest
import torch
from mteb.mocks.mock_tasks import MockSTSTask
from mteb.models import CrossEncoderWrapper, SearchEncoderWrapper, SentenceTransformerEncoderWrapper
from safetensors.torch import load_file, save_file

from integration.quantdrift_mteb.mteb_samples import (
    QUIET,
    embed,
    retrieval_task,
    save_encoder,
    scores,
    split_data,
    stock,
)
from quantdrift.base.errors import UnsupportedError
from quantdrift.finished.diff import PartDiff, diff_runs, estimate_of
from quantdrift.finished.formats import read_finished
from quantdrift.metrics import parse_metric
from quantdrift.models.files.named import resolve
from quantdrift_mteb import cli, hooks
from quantdrift_mteb.meta import local_meta
from support.candidate_samples import quantized, text
from support.rerank_samples import save_cross_encoder
from support.row_models import static_model

pytestmark = pytest.mark.usefixtures("cache")
TEXTS = [text(1), text(2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("model"), prompts={"query": "ba: ", "document": ""})


@pytest.fixture
def pair(folder: Path) -> Any:
    return mteb.get_model(f"quantdrift:{folder}@W3-rtn")


def small(*, seed: int = 0, **attributes: Any) -> Any:
    data = {"default": {"test": split_data(10, 30, seed=seed)}}
    return retrieval_task("TinyState", data, **attributes)


def figures(model: Any, task: Any, **kwargs: Any) -> dict[str, Any]:
    """The scores of the only split and subset."""
    return scores(model, task, **kwargs)["test"][0]


def test_alone_the_pair_is_its_candidate_and_an_evaluation_restores_the_weights(pair: Any, folder: Path) -> None:
    plain = stock(folder)
    full = embed(plain, TEXTS)
    with quantized(plain, "W3-rtn"):
        low = embed(plain, TEXTS)
    before = pair.pair.fingerprint
    for task in (small(), MockSTSTask()):
        np.testing.assert_array_equal(embed(pair, TEXTS), low)
        scores(pair, task)
        assert pair.pair.fingerprint == before
        np.testing.assert_array_equal(embed(pair.base, TEXTS), full)


@pytest.mark.parametrize(("make", "call", "fatal"), [(small, 6, KeyboardInterrupt), (MockSTSTask, 4, RuntimeError)])
def test_nothing_is_half_written(make: Any, call: int, fatal: type[BaseException], pair: Any, tmp_path: Path) -> None:
    before, calls, encode = pair.pair.fingerprint, [], pair.base.encode

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            raise fatal("enough")
        return encode(*args, **kwargs)

    pair.base.encode = interrupted
    with pytest.raises(fatal, match="enough"):
        scores(pair, make(), cache=mteb.ResultCache(tmp_path / "out"))
    assert pair.pair.fingerprint == before
    assert not list((tmp_path / "out").rglob("*.*"))
    # what had been found before is not taken for what comes now
    other = small(seed=3)
    del pair.base.encode
    expected = figures(pair.base, small(seed=3))["main_score"]
    assert figures(pair, other)["drift_reference_main_score"] == expected


@pytest.mark.parametrize("truncate", [True, False])
def test_kept_embeddings_are_not_taken_for_others(truncate: bool, folder: Path, pair: Any) -> None:
    first, fresh = figures(pair, small()), mteb.get_model(f"quantdrift:{folder}@W3-rtn")
    options = {"encode_kwargs": {**QUIET, "truncate_dim": 8}} if truncate else {}
    if not truncate:
        pair.base.model_prompts = fresh.base.model_prompts = {"query": "du: ", "document": "da: "}
    changed = figures(pair, small(), **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUANTDRIFT_CACHE", "off")
        assert changed == figures(fresh, small(), **options)
    assert changed["drift_epsilon_median"] != first["drift_epsilon_median"]


# --- which models, how they are loaded, and their names ----------------------------------------------


def test_a_folder_is_named_after_itself_and_its_files(folder: Path, tmp_path: Path) -> None:
    copied = tmp_path / "my@model"
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
    assert figures(pair, small())["drift_spec"] == "./my@model@W4-g128-rtn"
    with pytest.raises(UnsupportedError, match="has no revision 'abc'"):
        mteb.get_model_meta("quantdrift:./my@model@W4", revision="abc")


def test_a_spec_without_its_prefix_is_told_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"write quantdrift:minilm@W4-rtn"):
        mteb.get_model_meta("minilm@W4-rtn")
    (tmp_path / "my@W4").mkdir()
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


def test_what_loading_left_out_is_told(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = shutil.copytree(folder, tmp_path / "copied") / "model.safetensors"
    save_file({**load_file(file), "extra.weight": torch.ones(2)}, file, {"format": "pt"})
    mteb.get_model(f"quantdrift:{file.parent}@W4-rtn")
    assert "stores extra.weight, which BertModel has no use for" in capsys.readouterr().err


def test_what_has_no_linear_layer_is_refused(tmp_path: Path) -> None:
    static_model(tmp_path)
    with pytest.raises(UnsupportedError, match=r"has no nn\.Linear layer.*fp\+table=8"):
        mteb.get_model("quantdrift:./static@W4")
    assert mteb.get_model("quantdrift:./static@fp+table=8").pair.stages
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    with pytest.raises(UnsupportedError, match=r"broken.config\.json cannot be read: "):
        mteb.get_model("quantdrift:./broken@W4")


# --- the changes in mteb, and that nothing else changes ----------------------------------------------


def test_a_stock_model_is_evaluated_as_without_us(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_us = scores(stock(folder), small())
    module = sys.modules["mteb.evaluate"]
    monkeypatch.setattr(module, "_evaluate_task", module._evaluate_task.__wrapped__)
    assert with_us == scores(stock(folder), small())
    assert not any(key.startswith("drift") for key in with_us["test"][0])


@pytest.mark.slow
def test_every_name_of_a_task_is_in_the_files_that_are_looked_into() -> None:
    mteb.get_tasks(tasks=["PythonDocsRetrieval"])  # ours are listed then
    texts = cli._texts()
    names = [name for name in sys.modules["mteb.get_tasks"]._TASKS_REGISTRY if not name.startswith("Tiny")]
    assert len(names) > 500
    assert not [name for name in names if f'"{name}"' not in texts]


@pytest.mark.slow
def test_tasks_of_ours_are_there_by_name_and_in_no_list() -> None:
    for name in ("PythonDocsModules", "PythonDocsRetrieval"):
        assert [task.metadata.name for task in mteb.get_tasks(tasks=[name], languages=["eng"])] == [name]
    listed = {task.metadata.name for task in mteb.get_tasks(task_types=["Retrieval"], script=["Latn"])}
    assert len(listed) > 100
    assert name not in listed


def test_a_wrapped_pair_measures_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path))
    wrapped = SearchEncoderWrapper(mteb.get_model(f"quantdrift:{folder}@W3"))
    with pytest.warns(UserWarning, match="inside a SearchEncoderWrapper.*no drift"):
        entry = scores(wrapped, small())["test"][0]
    assert not any(key.startswith("drift") for key in entry)


def test_an_mteb_that_looks_otherwise_is_left_alone() -> None:
    module = ModuleType("mteb.get_tasks")
    vars(module).update(_TASKS_REGISTRY=[])
    before = dict(vars(module))
    with pytest.raises(TypeError, match="has no _TASKS_REGISTRY dict"):
        hooks.on_tasks_imported(module)
    assert vars(module) == before


# --- predictions that mteb itself writes, as `diff` reads them ---------------------------------------


def values(part: PartDiff, *names: str) -> list[float | None]:
    return [estimate_of(parse_metric(name), part).value for name in names]


def predict(model: Any, folder: Path) -> None:
    """What mteb writes of a search over two splits."""
    data: Mapping[str, Mapping[str, Any]] = {"en": {"test": split_data(20, 30), "dev": split_data(15, 25, seed=1)}}
    scores(model, retrieval_task("Searches", data, languages={"en": ["eng-Latn"]}), prediction_folder=folder)


@pytest.mark.slow
def test_predictions_of_mteb_are_compared_by_task_subset_and_split(tmp_path: Path) -> None:
    model, folders = stock(save_encoder(tmp_path / "model")), (tmp_path / "a", tmp_path / "b")
    predict(model, folders[0])
    with quantized(model, "W2-rtn"):  # the same one, by hand
        predict(model, folders[1])
    parts = {part.name: part for part in diff_runs(*map(read_finished, folders)).parts}
    raw = [json.loads((folder / "Searches_predictions.json").read_text()) for folder in folders]
    for split in ("dev", "test"):
        tops = [[max(ranking, key=ranking.__getitem__) for ranking in arm["en"][split].values()] for arm in raw]
        flips = np.mean([before != after for before, after in zip(*tops, strict=True)])
        assert 0 < flips < 1
        assert values(parts[f"Searches/en/{split}"], "flip@1") == [pytest.approx(flips)]
