"""A task of mteb's as data of a study: the figures are those of mteb's own run of the pair."""

import json
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features
from datasets import Image as ImageFeature
from PIL import Image

from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.data.images import contents_of
from quantdrift.data.labelled import ClassificationDataset
from quantdrift.harness import DEPTH
from quantdrift.metrics import parse_metric
from quantdrift.runs.folder import read_run
from quantdrift_mteb.data import read_task
from quantdrift_mteb.evaluation import mteb_keys
from support.command_line import cli
from support.mteb_samples import one_thread, other_task, retrieval_task, save_encoder, scores, split_data

__all__ = ["one_thread"]

PROMPTS = {"query": "ask ", "document": "text "}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
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


def study(model: Path, data: list[dict[str, str]], schemes: list[str]) -> Path:
    plan = {"models": [{"model": str(model), "name": "tiny"}], "schemes": schemes, "data": data}
    Path("study.yaml").write_text(json.dumps({**plan, "settings": {"k": DEPTH, "batch_size": 8}}))
    code, _, err = cli("study", "run", "study.yaml", "--no-probe", "--quiet")
    assert code == 0, err
    return Path("quantdrift-runs/study/cells")


@pytest.mark.parametrize("scheme", ["W2-rtn", pytest.param("W3-gptq", marks=pytest.mark.slow)])
def test_a_search_has_the_figures_of_mteb(known: Any, tmp_path: Path, scheme: str) -> None:
    """With prompts, titles and instructions, and to the last digit."""
    model = save_encoder(tmp_path, prompts=PROMPTS)
    name = known(search())
    (cell,) = study(model, [{"mteb": name}], [scheme]).iterdir()
    run = read_run(cell)
    (told,) = scores(mteb.get_model(f"quantdrift:{model}@{scheme}"), search())["test"]
    keys = mteb_keys(run.evidence())
    assert run.evidence().n_inputs == 24
    assert keys["drift_flip_at_1"] > 0
    assert keys == {key: told[key] for key in keys}
    ndcg = parse_metric("ndcg@10").per_input(run.evidence())
    assert np.nan_to_num(ndcg).mean() == pytest.approx(told["main_score"], abs=1e-5)  # mteb counts q4 as 0


def test_classes_have_the_figures_of_mteb(known: Any, tmp_path: Path) -> None:
    model = save_encoder(tmp_path)
    name = known(other_task("MockClassificationTask"))
    (cell,) = study(model, [{"mteb": name}], ["W2-rtn"]).iterdir()
    run = read_run(cell)
    (told,) = scores(mteb.get_model(f"quantdrift:{model}@W2-rtn"), other_task("MockClassificationTask"))["test"]
    keys = mteb_keys(run.evidence(), searched=False)
    assert keys["drift_flip_at_1"] > 0
    for key in ("drift_n_inputs", "drift_flip_at_1", "drift_accuracy", "drift_gold_lost_at_1"):
        assert keys[key] == told[key]
    assert run.record["data"]["n_train"] == told["drift_probe_n_train"]
    for key in (key for key in keys if told.get(key) is not None):  # batches differ, and so do the last digits
        assert keys[key] == pytest.approx(told[key], rel=1e-3), key


def test_images_of_a_task_are_decoded_when_they_are_needed(known: Any) -> None:
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
    data, _ = read_task(known(task), "test", None)
    assert isinstance(data, ClassificationDataset)
    assert (data.kind, data.test.labels) == ("image", ("1", "0", "1"))
    assert [image.shape for image in data.test.inputs] == [(4, 4, 3), (4, 5, 3), (4, 4, 3)]
    assert data.test.inputs[0][0, 0].tolist() == [1, 2, 3]
    assert set(np.ravel(data.test.inputs[1]).tolist()) == {7}
    assert len(set(contents_of(data.test.inputs))) == 2  # the first, stored as PNG, and the file are the same bytes
    assert data.train is not None
    assert len(data.train.ids) == 3


def test_what_a_study_would_read_differently_is_refused(known: Any, tmp_path: Path) -> None:
    name = known(search("TinyPrompted"))
    model = save_encoder(tmp_path, prompts={**PROMPTS, "TinyPrompted-query": "now "})
    Path("study.yaml").write_text(json.dumps({"models": [str(model)], "schemes": ["W2"], "data": [{"mteb": name}]}))
    code, out, err = cli("study", "run", "study.yaml", "--no-probe", "--quiet")
    assert code == 1
    assert "TinyPrompted-query" in " ".join(f"{out} {err}".split())


def test_other_tasks_splits_and_subsets(known: Any) -> None:
    one = split_data(12, 20)
    several = known(
        retrieval_task(
            "TinyTwo", {"de": {"test": one}, "en": {"test": one}}, languages={"de": ["deu-Latn"], "en": ["eng-Latn"]}
        )
    )
    assert len(read_task(several, "test", "en")[0].query_ids) == 12  # type: ignore[union-attr]
    with pytest.raises(DataError, match="has 2 subsets"):
        read_task(several, "test", None)
    with pytest.raises(DataError, match="no subset 'fr'"):
        read_task(several, "test", "fr")
    with pytest.raises(DataError, match="no split 'dev'"):
        read_task(several, "dev", "en")
    with pytest.raises(DataError, match="mteb has no task 'TinyNone'"):
        read_task("TinyNone", "test", None)
    lists = known(retrieval_task("TinyLists", {"default": {"test": split_data(12, 20, shortlist=5)}}, kind="Reranking"))
    with pytest.raises(UnsupportedError, match="shortlists of its own"):
        read_task(lists, "test", None)
    with pytest.raises(UnsupportedError, match="neither a search nor"):
        read_task(known(other_task("MockSTSTask")), "test", None)
