"""Stored embeddings and indexes inside mteb."""

from pathlib import Path
from typing import Any

import mteb
import pytest
from mteb.models import SearchEncoderWrapper
from mteb.models.model_meta import ScoringFunction
from mteb.models.search_encoder_index import FaissSearchIndex

from integration.quantdrift_mteb.mteb_samples import retrieval_task, scores, split_data, stock
from quantdrift.metrics import measure
from quantdrift.runs.folder import read_run

faiss = pytest.importorskip("faiss", reason="the extra 'faiss' is not installed")

pytestmark = pytest.mark.usefixtures("cache")


def task() -> Any:
    return retrieval_task("TinyIndex", {"default": {"test": split_data(30, 200)}})


def figures(model: Any, **kwargs: Any) -> dict[str, Any]:
    return scores(model, task(), **kwargs)["test"][0]


@pytest.mark.parametrize("deployment", ["index=HNSW4", "emb=ubinary+rescore=1", "emb=int8+rescore=2+index=IVF16,Flat"])
def test_a_pair_is_scored_by_what_its_index_returns(deployment: str, folder: Path, tmp_path: Path) -> None:
    pair = mteb.get_model(f"quantdrift:{folder}@fp+{deployment}")
    entry = figures(pair, cache=mteb.ResultCache(tmp_path / "out"))
    (place,) = (tmp_path / "out").rglob("evidence.parquet")
    estimates = measure(read_run(place.parent).evidence(), ["ndcg@10", "flip@1"])
    assert entry["main_score"] == pytest.approx(estimates["ndcg@10"].value, abs=6e-6)
    assert entry["drift_flip_at_1"] == pytest.approx(estimates["flip@1"].value, abs=1e-6)
    assert ("drift_index_flip_at_1" in entry) == ("index=" in deployment)
    assert entry["drift_reference_main_score"] == figures(stock(folder))["main_score"]


def test_a_flat_index_is_what_mteb_s_own_backend_finds(folder: Path) -> None:
    ours, model = figures(mteb.get_model(f"quantdrift:{folder}@fp+index=Flat")), stock(folder)
    model.mteb_model_meta.similarity_fn_name = ScoringFunction.COSINE  # a model that is not saved to the hub has none
    theirs = figures(SearchEncoderWrapper(model, index_backend=FaissSearchIndex(model)))
    assert ours["main_score"] == theirs["main_score"]
