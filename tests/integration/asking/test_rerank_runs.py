"""`quantdrift run CROSS@SCHEME --shortlist RUN`, as a user types it: what the run holds, and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

import random

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder
from torch import nn

from quantdrift.builtin.cross_encoder.work import load_cross_encoder
from quantdrift.builtin.sentence.work import pick_device
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.data.retrieval import RetrievalDataset, read_beir_folder
from quantdrift.models.files.named import resolve
from quantdrift.runs.folder import read_run
from support.beir_folder import numbered, write_beir_folder
from support.candidate_samples import WORDS
from support.finished_samples import write_trec
from support.rerank_samples import save_cross_encoder, save_generative, score_lists
from support.tiny_command_line import Run, one_thread, place, quantdrift
from support.versus_samples import check

N_QUERIES, N_DOCS = 12, 30


def write_data(folder: Path) -> RetrievalDataset:
    """A folder in BEIR layout; a query is the beginning of its relevant document."""
    rng = random.Random(0)
    documents = [" ".join(rng.choices(WORDS, k=rng.randint(6, 12))) for _ in range(N_DOCS)]
    queries = [" ".join(documents[row].split()[:4]) for row in range(N_QUERIES)]
    judged = {f"q{row}": [f"c{row}"] for row in range(N_QUERIES)}
    return read_beir_folder(write_beir_folder(folder, numbered("q", queries), numbered("c", documents), judged))


def lists() -> dict[str, list[str]]:
    """Eight documents of each query in an order of their own; every third lacks the relevant one."""
    rng = random.Random(1)
    made = {}
    for query in range(N_QUERIES):
        relevant = f"c{query}"
        others = rng.sample([f"c{row}" for row in range(N_DOCS) if f"c{row}" != relevant], k=8)
        made[f"q{query}"] = others if query % 3 == 0 else [relevant, *others[1:]]
    return made


def predicted(folder: Path, dataset: RetrievalDataset) -> list[NDArray[Any]]:
    """What sentence-transformers itself scores; and by a copy that is quantized."""
    full, low = (CrossEncoder(str(folder), device="cpu", activation_fn=nn.Identity()) for _ in range(2))
    with QuantizedPair([low], "W3-g16-rtn").candidate():
        return [score_lists(model.predict, dataset, lists()) for model in (full, low)]


def top_names(item_ids: NDArray[Any], items: NDArray[np.int64]) -> list[list[str]]:
    """Names of the items of a ranking, best first."""
    return [[str(item_ids[item]) for item in row if item >= 0] for row in items.tolist()]


__all__ = ["one_thread", "place", "quantdrift"]

CROSS = ("run", "ROOT/cross@W3-g16-rtn", "--data", "ROOT/judged")


@pytest.fixture(scope="module", autouse=True)
def dataset(place: Path) -> RetrievalDataset:
    """ROOT/judged, the cross-encoder ROOT/cross and a shortlist of eight documents."""
    save_cross_encoder(place / "cross")
    save_cross_encoder(place / "nli", n_scores=3)
    save_generative(place / "generative")
    write_trec(
        place / "bm25.trec", {query: {name: -rank for rank, name in enumerate(row)} for query, row in lists().items()}
    )
    return write_data(place / "judged")


def record(out: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(out)
    return parsed


@pytest.mark.parametrize("model", ["cross", "generative"])
def test_both_arms_are_the_library_s(model: str, place: Path, dataset: RetrievalDataset, quantdrift: Run) -> None:
    spec = f"ROOT/{model}@W3-g16-rtn"
    run = record(quantdrift("run", spec, "--data", "ROOT/judged", "--shortlist", "ROOT/bm25.trec", "--json"))
    finished, arms = read_run(Path(run["path"])), predicted(place / model, dataset)
    evidence = finished.evidence()
    assert (evidence.input_ids.tolist(), set(evidence.n_items.tolist())) == (list(dataset.query_ids), {8})
    check(finished, *arms, 2e-5, dataset.document_ids)
    firsts = [np.nanargmax(arm, axis=1) for arm in arms]
    assert 0 < run["metrics"]["flip@1"]["value"] == np.mean(firsts[0] != firsts[1]) < 1
    assert run["metrics"]["noise_floor"]["value"] == 0
    assert evidence.noise is not None
    assert 0 < evidence.noise.epsilon.max() < 1e-4


def test_a_run_of_a_retriever_gives_its_full_precision_ranking(place: Path, quantdrift: Run) -> None:
    searched = record(quantdrift("run", "TINY@W2-rtn", "--data", "ROOT/judged", "--out", "first", "--json"))
    assert searched["metrics"]["flip@1"]["value"] > 0  # or the arm would not matter
    reranked = record(quantdrift(*CROSS, "--shortlist", "first", "--top", "5", "--json"))
    evidence = read_run(Path(reranked["path"])).evidence()
    retrieved = read_run(Path("first")).evidence()
    expected = top_names(retrieved.item_ids, retrieved.reference_top.items[:, :5])
    kept = top_names(evidence.item_ids, evidence.reference_top.items)
    assert [sorted(row) for row in kept] == [sorted(row) for row in expected]
    settings, source = reranked["settings"], reranked["data"]["shortlist"]
    assert (settings["reading"], settings["shortlist"]["top"]) == ("reranking", 5)
    assert (len(settings["shortlist"]["digest"]), source["spec"]) == (32, searched["spec"])
    assert source["retriever_fingerprint"] == searched["model"]["fingerprint"]
    shown = quantdrift(*CROSS, "--shortlist", "first", "--top", "5")
    assert "reranking 5 documents of first (found by" in " ".join(shown.split())


# --- what cannot be reranked ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("TINY@W4", "an embedding model, which searches .leave --shortlist out"),
        ("ROOT/nli@W4", "gives a pair 3 scores"),
        ("ROOT/nli-backbone@W4", "is a classifier, which takes classification data"),
        ("ROOT/cross@W4+query", ".query needs embeddings.*and a cross-encoder"),
        ("ROOT/cross@W3.5+gap", "the criterion gap needs embeddings"),
        ("ROOT/generative-backbone@W4", "is a Qwen3ForCausalLM, a language model, .*CrossEncoder.save_pretrained"),
        ("ROOT/cross vs ROOT/cross", "expected a reference and another model"),
    ],
)
def test_models_and_schemes_that_cannot_rerank(spec: str, message: str, quantdrift: Run) -> None:
    command = ("run", spec, "--data", "ROOT/judged", "--shortlist", "ROOT/bm25.trec")
    shown = quantdrift(*command, code=2)
    assert re.search(message, shown), shown
    assert "Traceback" not in shown


def test_a_shortlist_of_other_data_is_refused(quantdrift: Run) -> None:
    quantdrift("run", "TINY@W8", "--data", "ROOT/data", "--out", "other")
    command = ("run", "ROOT/cross@W4", "--data", "ROOT/judged", "--shortlist", "other")
    shown = quantdrift(*command, code=2)
    assert "does not belong to the data judged" in shown


@pytest.mark.skipif(not hasattr(CrossEncoder, "set_keep_in_fp32_modules"), reason="sentence-transformers < 6.2")
def test_a_head_of_low_precision_scores_in_float32(tmp_path: Path) -> None:
    folder = save_cross_encoder(tmp_path / "half", dtype=torch.bfloat16)
    model = load_cross_encoder(resolve(str(folder)), device=pick_device("cpu"), dtype="bfloat16")
    assert next(model.model.parameters()).dtype == torch.bfloat16
    assert model.model.keep_in_fp32_modules == ["0.model.classifier"]
    pairs = [("wing drag", "the drag of the wing"), ("heat", "boundary layer"), ("flow", "shock wave")]
    scores = model.encode(pairs, "pair", 2)[:, 0]
    rounded = torch.from_numpy(scores).bfloat16().float().numpy()
    assert (scores != rounded).any()
