"""beir's exact search with a pair: stock results, and the evidence of quantdrift's own runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.search.dense import DenseRetrievalExactSearch
from beir.retrieval.search.dense.util import dot_score

import quantdrift_beir
from quantdrift.engine.inputs import Settings
from quantdrift.engine.run import run as run_pair
from quantdrift.engine.store import EmbeddingStore
from quantdrift.errors import ScoreError
from quantdrift.progress import Silent
from quantdrift.runs import Run, read_run
from quantdrift.spec import parse
from quantdrift_beir import PairedResults, QuantizedPair
from support.beir_samples import (
    assert_same_evidence,
    assert_same_results,
    dataset_of,
    exact,
    model,
    qrels_of,
    quantized,
    texts,
)

CORPUS, QUERIES = texts()
ASKED = {"query": "query", "passage": "document"}  # prompts as quantdrift run chooses them


def own_run(folder: str, scheme: str, out: Path, **settings: Any) -> Run:
    return run_pair(
        parse(f"{folder}@{scheme}"),
        dataset_of(CORPUS, QUERIES),
        out=out,
        settings=Settings(batch_size=8, **settings),
        store=EmbeddingStore(None),
        progress=Silent(),
        device="cpu",
    )


def test_importing_it_is_all_that_a_script_needs() -> None:
    assert "quantdrift_beir" in sys.modules
    assert quantdrift_beir.__all__ == ["Drift", "PairedResults", "QuantizedPair"]


@pytest.mark.parametrize("function", ["cos_sim", "dot"])
@pytest.mark.parametrize("top_k", [1, 5, 1000])
def test_each_arms_results_are_those_of_a_stock_search(function: str, top_k: int, folder: str) -> None:
    found = exact(QuantizedPair(model(folder), "W3-rtn")).search(CORPUS, QUERIES, top_k, function)
    plain = model(folder)
    assert isinstance(found, PairedResults)
    assert_same_results(found.reference, exact(plain).search(CORPUS, QUERIES, top_k, function))
    with quantized(plain, "W3-rtn"):
        expected = exact(plain).search(CORPUS, QUERIES, top_k, function)
    assert_same_results(found, expected)
    assert all(type(score) is float for one in found.values() for score in one.values())


@pytest.mark.parametrize("scheme", ["W4-rtn", "W3-g64-gptq+calib=20", "W3.5+gap", "W4+query"])
def test_evidence_is_that_of_quantdrift_run_bit_for_bit(scheme: str, folder: str, tmp_path: Path) -> None:
    pair = QuantizedPair(model(folder, prompt_names=ASKED), scheme)
    evaluator = EvaluateRetrieval(exact(pair), score_function="cos_sim")
    found = evaluator.retrieve(CORPUS, QUERIES).drift.with_qrels(qrels_of(QUERIES))
    assert_same_evidence(found.evidence, own_run(folder, scheme, tmp_path / "run").evidence())


def test_a_document_of_the_querys_own_id_is_left_out_of_everything(folder: str) -> None:
    corpus = {**CORPUS, "q1": {"title": "", "text": QUERIES["q1"]}}
    found = exact(QuantizedPair(model(folder), "W3")).search(corpus, QUERIES, 1000, "cos_sim")
    assert "q1" not in found["q1"]
    assert "q1" not in found.reference["q1"]
    assert "q1" in found["q0"]
    counts = dict(zip(found.evidence.input_ids, found.evidence.n_items.tolist(), strict=True))
    assert counts == {name: len(corpus) - (name == "q1") for name in QUERIES}
    assert found.drift.record["data"]["warnings"] == ["1 query has the id of a document, which beir leaves out"]
    plain = model(folder)
    with quantized(plain, "W3"):
        assert_same_results(found, exact(plain).search(corpus, QUERIES, 1000, "cos_sim"))
    before = found.drift["flip@1"]
    EvaluateRetrieval.evaluate(qrels_of(QUERIES), found, [1, 10])  # drops such documents in place
    assert found.drift["flip@1"] == before


def test_an_unknown_score_function_is_beirs_own_error(folder: str) -> None:
    with pytest.raises(ValueError, match="must be either") as stock:
        exact(model(folder)).search(CORPUS, QUERIES, 5, "manhattan")
    with pytest.raises(ValueError, match="must be either") as ours:
        exact(QuantizedPair(model(folder), "W3")).search(CORPUS, QUERIES, 5, "manhattan")
    assert str(ours.value) == str(stock.value)


def test_a_score_function_of_the_users_own_is_searched_once_per_arm(folder: str) -> None:
    def bent(queries: Any, documents: Any) -> Any:
        return torch.sin(3 * dot_score(queries, documents))

    def search(one: Any) -> Any:
        searcher = exact(one)
        searcher.score_functions["bent"] = bent
        searcher.score_function_desc["bent"] = "bent"
        return searcher.search(CORPUS, QUERIES, 1000, "bent")

    found = search(QuantizedPair(model(folder), "W3"))
    plain = model(folder)
    assert_same_results(found.reference, search(plain))
    with quantized(plain, "W3"):
        assert_same_results(found, search(plain))
    assert found.evidence.exact  # the lists hold the whole corpus
    assert found.drift["epsilon"].value > 0


def evaluated(kind: Any, one: Any, corpus: Any = CORPUS) -> Any:
    search = kind(one, batch_size=8, show_progress_bar=False)
    return EvaluateRetrieval(search, [1000]).retrieve(corpus, QUERIES)


def assert_both_arms_are_stock(kind: Any, folder: str) -> PairedResults:
    """Either arm finds what a stock model of its weights finds with the same class."""
    found = evaluated(kind, QuantizedPair(model(folder), "W3"))
    assert isinstance(found, PairedResults)
    plain = model(folder)
    assert_same_results(found.reference, evaluated(kind, plain))
    with quantized(plain, "W3"):
        assert_same_results(found, evaluated(kind, plain))
    return found


def test_queries_that_depend_on_what_an_arm_found_compare_the_two_lists(folder: str) -> None:
    class Feedback(DenseRetrievalExactSearch):  # type: ignore[misc]  # its type is not known
        def search(self, corpus: Any, queries: Any, *args: Any, **kwargs: Any) -> Any:
            first = super().search(corpus, queries, *args, **kwargs)
            best = {query: max(scores, key=scores.__getitem__) for query, scores in first.items()}
            longer = {query: f"{queries[query]} {corpus[best[query]]['text']}" for query in queries}
            return super().search(corpus, longer, *args, **kwargs)

    found = assert_both_arms_are_stock(Feedback, folder)
    evidence = found.evidence
    for row, query in enumerate(evidence.input_ids):
        deltas = [found[query][name] - found.reference[query][name] for name in CORPUS]
        assert evidence.delta_min[row] == pytest.approx(min(deltas), abs=1e-6)
        assert evidence.delta_max[row] == pytest.approx(max(deltas), abs=1e-6)


def test_an_embedding_that_is_no_number_is_an_error_that_names_the_input(folder: str) -> None:
    sick = model(folder)
    original = sick.encode_queries

    def encode(queries: Any, **kwargs: Any) -> Any:
        return original(queries, **kwargs) * torch.tensor(float("nan"))

    sick.encode_queries = encode
    with pytest.raises(ScoreError, match="query 'q0' holds NaN"):
        exact(QuantizedPair(sick, "W3")).search(CORPUS, QUERIES, 5, "cos_sim")


def test_a_run_folder_is_that_of_any_other_run(folder: str, tmp_path: Path) -> None:
    found = exact(QuantizedPair(model(folder), "W3")).search(CORPUS, QUERIES, 5, "cos_sim")
    saved = found.save(tmp_path / "run", qrels=qrels_of(QUERIES), data="tiny")
    record = read_run(saved.path).record
    assert record["spec"] == f"{folder}@W3-g128-rtn"
    assert record["data"]["name"] == "tiny"
    assert record["bits_per_weight"]["linear"] == 3
    assert record["settings"]["similarity"] == "cosine"
    expected = own_run(folder, "W3", tmp_path / "own").record
    assert record.keys() == expected.keys()
    assert record["metrics"].keys() == expected["metrics"].keys()
    assert record["model"]["fingerprint"] == expected["model"]["fingerprint"]
    assert record["model"]["layers_never_reached"] == expected["model"]["layers_never_reached"]
