"""Models whose similarity or search is their own, and those whose scores can be streamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mteb
import pytest
from mteb.models import MultiVectorWrapper, SparseEncoderWrapper
from sentence_transformers import MultiVectorEncoder, SparseEncoder
from transformers import BertForMaskedLM, BertModel

from quantdrift.runs import read_run
from quantdrift_mteb import pairs
from support.mteb_samples import quantized, retrieval_task, save_backbone, save_encoder, scores, split_data, stock

pytestmark = pytest.mark.usefixtures("cache")

DATA = {"default": {"test": split_data(10, 30)}}


def task() -> Any:
    return retrieval_task("TinySearches", DATA)


def figures(model: Any) -> dict[str, Any]:
    return scores(model, task())["test"][0]


KINDS: dict[str, tuple[Any, Any, Any]] = {
    "late": (MultiVectorEncoder, BertModel, MultiVectorWrapper),
    "sparse": (SparseEncoder, BertForMaskedLM, SparseEncoderWrapper),
}


@pytest.mark.parametrize("shortlist", [None, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_late_interaction_and_sparse_models_search_by_themselves(
    kind: str, shortlist: int | None, tmp_path: Path
) -> None:
    make, backbone, wrapper = KINDS[kind]
    saved = str(tmp_path / "model")
    make(save_backbone(backbone, tmp_path / "backbone"), device="cpu").save_pretrained(saved)
    content = split_data(10, 30, shortlist=shortlist)

    def searched(model: Any, **options: Any) -> Any:
        task = retrieval_task(f"Tiny{kind}", {"default": {"test": content}}, kind="Reranking")
        return scores(model, task, **options)["test"][0]

    pair = mteb.get_model(f"quantdrift:{saved}@W2")
    found = searched(pair, cache=mteb.ResultCache(tmp_path))
    plain = wrapper(saved, device="cpu")
    assert found["drift_reference_main_score"] == searched(plain)["main_score"]
    with quantized(plain, "W2"):
        assert found["main_score"] == searched(plain)["main_score"]
    assert found["drift_epsilon_median"] > 0
    assert found["drift_noise_floor"] == 0
    run = read_run(next(tmp_path.rglob("run.json")))
    assert set(run.evidence().n_items.tolist()) == {shortlist or 30}
    unreached = run.record["model"]["layers_never_reached"]
    assert all("pooler" in layer for layer in unreached)
    assert bool(run.record["data"]["warnings"]) == (kind == "sparse")


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The similarities that were streamed; a search of the model's own adds nothing."""
    found: list[str] = []
    original = pairs.search_by_embedding

    def noted(*args: Any) -> Any:
        found.append(str(args[-1]))
        return original(*args)

    monkeypatch.setattr(pairs, "search_by_embedding", noted)
    return found


@pytest.mark.parametrize(
    ("similarity", "expected"),
    [("cosine", ["cosine"]), ("dot", ["dot"]), ("euclidean", ["euclidean"]), ("manhattan", [])],
)
def test_scores_are_made_by_the_similarity_that_the_model_has(
    similarity: str, expected: list[str], tmp_path: Path, streamed: list[str]
) -> None:
    folder = save_encoder(tmp_path, similarity_fn_name=similarity)
    found = figures(mteb.get_model(f"quantdrift:{folder}@W3"))
    assert streamed == expected
    plain = stock(folder)
    assert found["drift_reference_main_score"] == figures(plain)["main_score"]
    with quantized(plain, "W3"):
        assert found["main_score"] == figures(plain)["main_score"]
