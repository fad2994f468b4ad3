"""Reranking inside mteb: the same evidence as `quantdrift run --shortlist`, and stock results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from torch import nn

from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.engine.inputs import Settings
from quantdrift.engine.run import run as run_pair
from quantdrift.engine.store import EmbeddingStore
from quantdrift.evidence import Evidence
from quantdrift.finished.shortlist import Shortlist
from quantdrift.progress import Silent
from quantdrift.runs import Run, find_runs
from quantdrift.spec import parse
from support.mteb_samples import quantized, retrieval_task, save_cross_encoder, scores, split_data, stock

pytestmark = pytest.mark.usefixtures("cache")


DATA = split_data(15, 40, shortlist=8)
SCHEME = "W3-g16-rtn"


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_cross_encoder(tmp_path_factory.mktemp("cross"))


def task(content: dict[str, Any] | None = None) -> Any:
    made = {"default": {"test": DATA if content is None else content}}
    return retrieval_task("TinyShortlists", made, kind="Reranking")


def inside(reranker: Path, folder: Path, *, batch_size: int) -> Run:
    """The run that mteb's evaluation leaves."""
    pair = mteb.get_model(f"quantdrift:{reranker}@{SCHEME}")
    options = {"batch_size": batch_size, "show_progress_bar": False}
    scores(pair, task(), cache=mteb.ResultCache(folder), encode_kwargs=options)
    (run,) = find_runs([folder])
    return run


def alone(reranker: Path, folder: Path, *, batch_size: int) -> Run:
    """The run of the same pairs without mteb."""
    corpus, queries = DATA["corpus"], DATA["queries"]
    dataset = RetrievalDataset(
        name="TinyShortlists",
        query_ids=tuple(queries["id"]),
        queries=tuple(queries["text"]),
        document_ids=tuple(corpus["id"]),
        documents=tuple(corpus["text"]),
        qrels=DATA["relevant_docs"],
        split="test",
    )
    shortlist = Shortlist(
        documents={query: tuple(names) for query, names in DATA["top_ranked"].items()},
        top=8,
        path=folder,
        record={"from": "trec"},
    )
    return run_pair(
        parse(f"{reranker}@{SCHEME}"),
        dataset,
        shortlist=shortlist,
        out=folder,
        settings=Settings(batch_size=batch_size),
        store=EmbeddingStore(None),
        progress=Silent(),
    )


def parts(evidence: Evidence) -> dict[str, Any]:
    """Everything that metrics are computed from, with names in place of numbers."""
    found: dict[str, Any] = {"delta_min": evidence.delta_min, "delta_max": evidence.delta_max}
    for arm, top in (("reference", evidence.reference_top), ("candidate", evidence.candidate_top)):
        found[f"{arm} items"] = evidence.item_ids[top.items].tolist()
        found[f"{arm}, by reference"] = top.reference_scores
        found[f"{arm}, by candidate"] = top.candidate_scores
    return found


@pytest.mark.slow
def test_pair_by_pair_both_ways_are_the_same_to_the_last_bit(reranker: Path, tmp_path: Path) -> None:
    run, own = (made(reranker, tmp_path / made.__name__, batch_size=1) for made in (inside, alone))
    evidence, expected = run.evidence(), own.evidence()
    assert evidence.input_ids.tolist() == expected.input_ids.tolist()
    assert set(evidence.n_items.tolist()) == {8}
    theirs = parts(expected)
    for name, values in parts(evidence).items():
        np.testing.assert_array_equal(values, theirs[name], err_msg=name)
    for name in ("flip@1", "separation", "epsilon", "S", "gold_lost@1", "ndcg@10"):
        assert run.record["metrics"][name] == own.record["metrics"][name]
    assert run.record["metrics"]["flip@1"]["value"] > 0
    assert run.record["model"]["fingerprint"] == own.record["model"]["fingerprint"]


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.Tanh(), nn.Identity()])
def test_evidence_is_of_raw_scores_and_mtebs_predictions_are_stock(
    activation: nn.Module, reranker: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "reranker"
    CrossEncoder(str(reranker), device="cpu", activation_fn=activation).save_pretrained(str(folder))
    plain = stock(folder)
    with quantized(plain, SCHEME):
        expected = scores(plain, task(), prediction_folder=tmp_path / "stock")
    pair = mteb.get_model(f"quantdrift:{folder}@{SCHEME}")
    cache = mteb.ResultCache(tmp_path / "results")
    found = scores(pair, task(), prediction_folder=tmp_path / "pair", cache=cache)
    assert found["test"][0]["main_score"] == expected["test"][0]["main_score"]
    files = [next((tmp_path / name).rglob("*predictions.json")) for name in ("pair", "stock")]
    given, stocks = (json.loads(file.read_text())["default"]["test"] for file in files)
    assert given == stocks
    # the model is as it was
    assert type(pair.base.model.activation_fn) is type(activation)
    (run,) = find_runs([tmp_path / "results"])
    top = run.evidence().candidate_top.candidate_scores
    through = activation(_tensor(np.sort(top, axis=1))).numpy()
    predicted = np.sort([[*given[query].values()] for query in DATA["queries"]["id"]], axis=1)
    # a vectorized sigmoid may differ in the last bit from row to row
    np.testing.assert_allclose(through, predicted.astype(np.float32), rtol=2e-7)
    own = "the model's own search"
    name = type(activation).__name__.lower()
    expected_words = own if name == "identity" else f"{own}, before its {name}"
    assert run.record["settings"]["similarity"] == expected_words


def _tensor(values: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(values))
