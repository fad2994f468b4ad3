"""Text-to-image tasks of mteb: the figures of stock mteb in either arm, and those of a study of the same task."""

import json
from pathlib import Path
from typing import Any

import mteb
import pytest
from datasets import Dataset
from PIL import Image

from quantdrift.harness import DEPTH
from quantdrift.runs.folder import read_run
from quantdrift_mteb.evaluation import mteb_keys
from support.command_line import cli
from support.mteb_samples import one_thread, retrieval_task, scores
from support.small_clip import image_search, small_clip

__all__ = ["one_thread"]


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sixteen captions, each of one of twenty images; mteb knows it by its name."""
    folder = image_search(tmp_path / "data")
    queries, files = (
        [json.loads(line)[key] for line in (folder / name).read_text().splitlines()]
        for name, key in (("queries.jsonl", "text"), ("corpus.jsonl", "image"))
    )
    content = {
        "queries": Dataset.from_dict({"id": [f"q{row}" for row in range(len(queries))], "text": queries}),
        "corpus": Dataset.from_dict(
            {"id": [f"i{row}" for row in range(len(files))], "image": [Image.open(folder / file) for file in files]}
        ),
        "relevant_docs": {f"q{row}": {f"i{row}": 1} for row in range(len(queries))},
        "top_ranked": None,
    }
    made = retrieval_task("TinyImages", {"default": {"test": content}}, kind="Any2AnyRetrieval", category="t2i")
    registry = __import__("mteb.get_tasks", fromlist=["x"])._TASKS_REGISTRY
    monkeypatch.setitem(registry, "TinyImages", type(made))
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return made


def test_either_arm_is_what_stock_mteb_finds(task: Any, tmp_path: Path) -> None:
    clip = small_clip(tmp_path / "clip")
    (told,) = scores(mteb.get_model(f"quantdrift:{clip}@W2-rtn"), task)["test"]
    model = mteb.get_model(f"quantdrift:{clip}@W2-rtn").base
    (full,) = scores(model, task)["test"]
    assert told["drift_reference_ndcg_at_10"] == pytest.approx(full["ndcg_at_10"], abs=1e-5)
    pair = mteb.get_model(f"quantdrift:{clip}@W2-rtn")
    with pair.pair.candidate():
        (low,) = scores(pair.base, task)["test"]
    assert told["ndcg_at_10"] == low["ndcg_at_10"]
    assert told["drift_flip_at_1"] > 0


@pytest.mark.parametrize("scheme", ["W2-rtn", "W3-gptq"])
def test_a_study_has_the_figures_of_mteb(task: Any, tmp_path: Path, scheme: str) -> None:
    clip = small_clip(tmp_path / "clip")
    plan = {"models": [str(clip)], "schemes": [scheme], "data": [{"mteb": "TinyImages"}]}
    Path("study.yaml").write_text(json.dumps({**plan, "settings": {"k": DEPTH, "batch_size": 8}}))
    code, _, err = cli("study", "run", "study.yaml", "--no-probe", "--quiet")
    assert code == 0, err
    (cell,) = Path("quantdrift-runs/study/cells").iterdir()
    run = read_run(cell)
    (told,) = scores(mteb.get_model(f"quantdrift:{clip}@{scheme}"), task)["test"]
    keys = mteb_keys(run.evidence())
    assert keys["drift_n_inputs"] == (16 if scheme == "W2-rtn" else 12)  # a quarter calibrates the tower of texts
    for key in (key for key in keys if told.get(key) is not None):
        assert keys[key] == pytest.approx(told[key], rel=1e-3), key
