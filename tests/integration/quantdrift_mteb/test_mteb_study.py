"""A task of mteb's as data of a study: the figures are those of mteb's own run of the pair."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features
from datasets import Image as ImageFeature
from PIL import Image

from integration.quantdrift_mteb.mteb_samples import (
    one_thread,
    other_task,
    retrieval_task,
    save_encoder,
    scores,
    split_data,
)
from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.data.images import contents_of
from quantdrift.data.labelled import ClassificationDataset
from quantdrift.data.retrieval import read_beir_folder
from quantdrift.harness import DEPTH
from quantdrift.metrics import parse_metric
from quantdrift.runs.folder import Run, read_run
from quantdrift_mteb.data import read_task
from quantdrift_mteb.evaluation import mteb_keys
from support.command_line import cli
from support.small_clip import image_search, small_clip

__all__ = ["one_thread"]

PROMPTS = {"query": "ask ", "document": "text "}


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes mteb know a task by its name."""
    registry = __import__("mteb.get_tasks", fromlist=["x"])._TASKS_REGISTRY
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))

    def add(task: Any) -> str:
        monkeypatch.setitem(registry, task.metadata.name, type(task))
        return str(task.metadata.name)

    return add


def search(name: str = "TinySearch", **options: Any) -> Any:
    content = split_data(25, 40, title="about", instruction="find it", **options)
    del content["relevant_docs"]["q3"]  # without a judgement: mteb leaves the query out
    content["relevant_docs"]["q4"] = {"d4": 0}
    return retrieval_task(name, {"default": {"test": content}})


def run_of(model: Path, task: str, scheme: str) -> Run:
    """The only run of a study of a task."""
    plan = {"models": [{"model": str(model), "name": "tiny"}], "schemes": [scheme], "data": [{"mteb": task}]}
    Path("study.yaml").write_text(json.dumps({**plan, "settings": {"k": DEPTH, "batch_size": 8}}))
    code, _, err = cli("study", "run", "study.yaml", "--quiet")
    assert code == 0, err
    (cell,) = Path("quantdrift-runs/study/cells").iterdir()
    return read_run(cell)


def assert_near(keys: Mapping[str, Any], entry: Mapping[str, Any]) -> None:
    """Batches differ, and so do the last digits."""
    for key in (key for key in keys if entry.get(key) is not None):
        assert keys[key] == pytest.approx(entry[key], rel=1e-3), key


@pytest.mark.parametrize("scheme", ["W2-rtn", pytest.param("W3-gptq", marks=pytest.mark.slow)])
def test_a_search_has_the_figures_of_mteb(listed: Any, tmp_path: Path, scheme: str) -> None:
    """With prompts, titles and instructions, and to the last digit."""
    model = save_encoder(tmp_path, prompts=PROMPTS)
    run = run_of(model, listed(search()), scheme)
    (entry,) = scores(mteb.get_model(f"quantdrift:{model}@{scheme}"), search())["test"]
    keys = mteb_keys(run.evidence())
    assert run.evidence().n_inputs == 24
    assert keys["drift_flip_at_1"] > 0
    assert keys == {key: entry[key] for key in keys}
    ndcg = parse_metric("ndcg@10").per_input(run.evidence())
    assert np.nan_to_num(ndcg).mean() == pytest.approx(entry["main_score"], abs=1e-5)  # mteb counts q4 as 0


@pytest.mark.parametrize("ignores", [True, False])
def test_a_query_that_is_a_document_too_has_the_figures_of_mteb(listed: Any, tmp_path: Path, ignores: bool) -> None:
    """A task that ignores equal ids does so whatever their texts; one that does not is told of."""

    def task() -> Any:
        content, ids = split_data(12, 40), [f"d{number}" for number in range(12)]
        content["queries"] = Dataset.from_dict({"id": ids, "text": [*content["corpus"]["text"][:11], "another text"]})
        content["relevant_docs"] = {name: {f"d{number + 20}": 1} for number, name in enumerate(ids)}
        return retrieval_task("TinySelf", {"default": {"test": content}}, ignore_identical_ids=ignores)

    model = save_encoder(tmp_path)
    run = run_of(model, listed(task()), "W2-rtn")
    evidence, cache = run.evidence(), mteb.ResultCache(tmp_path / "results")
    assert evidence.n_items.tolist() == [39] * 11 + [39 if ignores else 40]
    (entry,) = scores(mteb.get_model(f"quantdrift:{model}@W2-rtn"), task(), cache=cache)["test"]
    ndcg = np.nan_to_num(parse_metric("ndcg@10").per_input(evidence)).mean()
    assert (ndcg == pytest.approx(entry["main_score"], abs=1e-5)) == ignores
    inside = read_run(next(tmp_path.rglob("drift/TinySelf/test-default"))).record["data"]["warnings"]
    assert any(("leaves out" in note or "left out" in note) if ignores else "hides changes" in note for note in inside)


def test_classes_have_the_figures_of_mteb(listed: Any, tmp_path: Path) -> None:
    model = save_encoder(tmp_path)
    run = run_of(model, listed(other_task("MockClassificationTask")), "W2-rtn")
    (entry,) = scores(mteb.get_model(f"quantdrift:{model}@W2-rtn"), other_task("MockClassificationTask"))["test"]
    keys = mteb_keys(run.evidence(), searched=False)
    assert keys["drift_flip_at_1"] > 0
    for key in ("drift_n_inputs", "drift_flip_at_1", "drift_accuracy", "drift_gold_lost_at_1"):
        assert keys[key] == entry[key]
    assert run.record["data"]["n_train"] == entry["drift_probe_n_train"]
    assert_near(keys, entry)


@pytest.fixture
def captions(tmp_path: Path) -> Any:
    """Sixteen captions, each of one of twenty images."""
    data = read_beir_folder(image_search(tmp_path / "data"))
    pictures = [Image.fromarray(image) for image in data.documents]
    content = {
        "queries": Dataset.from_dict({"id": list(data.query_ids), "text": list(data.queries)}),
        "corpus": Dataset.from_dict({"id": list(data.document_ids), "image": pictures}),
        "relevant_docs": data.qrels,
        "top_ranked": None,
    }
    return retrieval_task("TinyImages", {"default": {"test": content}}, kind="Any2AnyRetrieval", category="t2i")


@pytest.mark.parametrize("scheme", ["W2-rtn", "W3-gptq"])
def test_a_search_of_images_has_the_figures_of_mteb(listed: Any, captions: Any, tmp_path: Path, scheme: str) -> None:
    clip = small_clip(tmp_path / "clip")
    run = run_of(clip, listed(captions), scheme)
    pair = mteb.get_model(f"quantdrift:{clip}@{scheme}")
    (entry,) = scores(pair, captions)["test"]
    keys = mteb_keys(run.evidence())
    assert keys["drift_n_inputs"] == (16 if scheme == "W2-rtn" else 12)  # a quarter calibrates the tower of texts
    assert keys["drift_flip_at_1"] > 0
    assert_near(keys, entry)
    if scheme == "W2-rtn":  # and either arm is what stock mteb finds
        (full,) = scores(pair.base, captions)["test"]
        assert entry["drift_reference_ndcg_at_10"] == pytest.approx(full["ndcg_at_10"], abs=1e-5)
        with pair.pair.candidate():
            (low,) = scores(pair.base, captions)["test"]
        assert entry["ndcg_at_10"] == low["ndcg_at_10"]


def test_images_of_a_task_are_decoded_when_they_are_needed(listed: Any) -> None:
    """A colour image, a grey one, and one that lies in a file; labels are the numbers of the data."""
    grey, colour = Image.new("L", (5, 4), 7), Image.new("RGB", (4, 4), (1, 2, 3))
    colour.save("kept.png")
    features = Features({"picture": ImageFeature(), "cls": ClassLabel(names=["cat", "dog"])})
    rows = {"picture": [colour, grey, "kept.png"], "cls": [1, 0, 1]}

    def load_data(self: Any, *_: Any, **__: Any) -> None:
        part = Dataset.from_dict(rows, features=features)
        self.dataset, self.data_loaded = DatasetDict(train=part, test=part), True

    kind = type(other_task("MockClassificationTask"))
    metadata = kind.metadata.model_copy(update={"name": "TinyImages", "modalities": ["image"]})
    columns = {"input_column_name": "picture", "label_column_name": "cls"}
    task = type("TinyImages", (kind,), {"load_data": load_data, "metadata": metadata, **columns})()
    data = read_task(listed(task), "test", None)
    assert isinstance(data, ClassificationDataset)
    assert (data.kind, data.test.labels) == ("image", ("1", "0", "1"))
    assert [image.shape for image in data.test.inputs] == [(4, 4, 3), (4, 5, 3), (4, 4, 3)]
    assert data.test.inputs[0][0, 0].tolist() == [1, 2, 3]
    assert set(np.ravel(data.test.inputs[1]).tolist()) == {7}
    assert len(set(contents_of(data.test.inputs))) == 2  # the first, stored as PNG, and the file are the same bytes
    assert data.train is not None
    assert len(data.train.ids) == 3


def test_a_task_is_taken_by_name_on_the_command_line_too(listed: Any, tmp_path: Path) -> None:
    model, name = save_encoder(tmp_path), listed(search())
    code, out, _ = cli("run", f"{model}@W2-rtn", "--task", name, "--quiet", "--json")
    assert code == 0
    record, same = json.loads(out), run_of(model, name, "W2-rtn").record
    assert record["data"]["fingerprint"] == same["data"]["fingerprint"]
    assert record["metrics"] == same["metrics"]
    prompted = listed(search("TinyPrompted"))
    other = save_encoder(tmp_path / "other", prompts={**PROMPTS, "TinyPrompted-query": "now "})
    code, _, err = cli("run", f"{other}@W2-rtn", "--task", prompted, "--quiet")
    assert code == 2
    assert "has the prompt 'TinyPrompted-query'" in err


def test_other_tasks_splits_and_subsets(listed: Any) -> None:
    content = split_data(12, 20)
    languages = {"de": ["deu-Latn"], "en": ["eng-Latn"]}
    two = retrieval_task("TinyTwo", {name: {"test": content} for name in languages}, languages=languages)
    several = listed(two)
    assert len(read_task(several, "test", "en").query_ids) == 12  # type: ignore[union-attr]
    with pytest.raises(DataError, match="has 2 subsets"):
        read_task(several, "test", None)
    with pytest.raises(DataError, match="no subset 'fr'"):
        read_task(several, "test", "fr")
    with pytest.raises(DataError, match="no split 'dev'"):
        read_task(several, "dev", "en")
    with pytest.raises(DataError, match="'TinyNone': KeyError"):
        read_task("TinyNone", "test", None)
    lists = listed(
        retrieval_task("TinyLists", {"default": {"test": split_data(12, 20, shortlist=5)}}, kind="Reranking")
    )
    with pytest.raises(UnsupportedError, match="shortlists of its own"):
        read_task(lists, "test", None)
    with pytest.raises(UnsupportedError, match="neither a search nor"):
        read_task(listed(other_task("MockSTSTask")), "test", None)
