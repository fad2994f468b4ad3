"""beir's exact search and reranking with a pair: stock results, and the evidence of quantdrift's own runs."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from beir import util
from beir.reranking import Rerank
from beir.reranking.models import CrossEncoder
from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.search.dense.util import dot_score
from sentence_transformers import CrossEncoder as PlainCrossEncoder
from torch import nn

from integration.quantdrift_beir.beir_samples import assert_same_results, dataset_of, exact, model, qrels_of, texts
from quantdrift.base.errors import DataError, ScoreError, UnsupportedError
from quantdrift.data.retrieval import read_qrels
from quantdrift.evidence.perturbation import flips
from quantdrift.evidence.record import Evidence
from quantdrift.finished.diff import diff_runs, estimate_of
from quantdrift.finished.formats import read_finished
from quantdrift.measuring.flow import other_batch_size
from quantdrift.metrics import parse_metric
from quantdrift.models.inputs import Settings
from quantdrift.runs.folder import Run, read_run
from quantdrift.spec.grammar import parse
from quantdrift_beir import PairedResults, QuantizedPair
from support.candidate_samples import quantized
from support.rerank_samples import save_cross_encoder
from support.versus_samples import run_any

CORPUS, QUERIES = texts()
ASKED = {"query": "query", "passage": "document"}  # prompts as quantdrift run chooses them


def own_run(folder: str, scheme: str, out: Path, corpus: Any = CORPUS, **settings: Any) -> Run:
    how = Settings(batch_size=8, **settings)
    return run_any(parse(f"{folder}@{scheme}"), out, dataset=dataset_of(corpus, QUERIES), settings=how)


@pytest.mark.parametrize("function", ["cos_sim", "dot"])
@pytest.mark.parametrize("top_k", [5, 1000])
def test_each_arms_results_are_those_of_a_stock_search(function: str, top_k: int, folder: str) -> None:
    results = exact(QuantizedPair(model(folder), "W3-rtn")).search(CORPUS, QUERIES, top_k, function)
    plain = model(folder)
    assert isinstance(results, PairedResults)
    assert_same_results(results.reference, exact(plain).search(CORPUS, QUERIES, top_k, function))
    with quantized(plain, "W3-rtn"):
        expected = exact(plain).search(CORPUS, QUERIES, top_k, function)
    assert_same_results(results, expected)
    assert all(type(score) is float for scores in results.values() for score in scores.values())


INDEXED = "W4+emb=ubinary+rescore=1+index=HNSW4"


@pytest.mark.parametrize("scheme", ["W4-rtn", "W4A8-g64+calib=20", "W3.5+sqnr", "W4+query", INDEXED])
def test_evidence_is_that_of_quantdrift_run_bit_for_bit(scheme: str, folder: str, tmp_path: Path) -> None:
    pair = QuantizedPair(model(folder, prompt_names=ASKED), scheme)
    evaluator = EvaluateRetrieval(exact(pair), score_function="cos_sim")
    results = evaluator.retrieve(CORPUS, QUERIES)
    run = own_run(folder, scheme, tmp_path / "run")
    saved = results.save(tmp_path / "saved", qrels=qrels_of(QUERIES), data="tiny")
    ours, theirs = (pq.read_table(run.path / "evidence.parquet") for run in (run, saved))
    assert ours.equals(theirs)
    if scheme == INDEXED:  # beir sorts by score, and gets the list as the index returned it
        for row, query in enumerate(results.evidence.input_ids):
            listed = [
                results.evidence.item_ids[item] for item in results.evidence.candidate_top.items[row] if item >= 0
            ]
            best = sorted(results[query], key=results[query].__getitem__, reverse=True)
            assert best[:10] == [name for name in listed if name in results[query]][:10]
    if scheme == "W4-rtn":  # their run folders can be compared, too
        assert saved.record.keys() == run.record.keys()
        (part,) = diff_runs(read_finished(run.path), read_finished(saved.path)).parts
        assert part.evidence is not None
        assert not flips(part.evidence).any()


def test_a_document_of_the_querys_own_id_is_left_out_of_everything(folder: str) -> None:
    corpus = {**CORPUS, "q1": {"title": "", "text": QUERIES["q1"]}}
    results = exact(QuantizedPair(model(folder), "W3")).search(corpus, QUERIES, 1000, "cos_sim")
    assert "q1" not in results["q1"]
    assert "q1" not in results.reference["q1"]
    assert "q1" in results["q0"]
    counts = dict(zip(results.evidence.input_ids, results.evidence.n_items.tolist(), strict=True))
    assert counts == {name: len(corpus) - (name == "q1") for name in QUERIES}
    assert results.drift.record["data"]["warnings"] == ["1 query has the id of a document, which beir leaves out"]
    plain = model(folder)
    with quantized(plain, "W3"):
        assert_same_results(results, exact(plain).search(corpus, QUERIES, 1000, "cos_sim"))
    before = results.drift["flip@1"]
    EvaluateRetrieval.evaluate(qrels_of(QUERIES), results, [1, 10])  # drops such documents in place
    assert results.drift["flip@1"] == before


def test_another_score_function_is_refused(folder: str) -> None:
    searcher = exact(QuantizedPair(model(folder), "W3"))
    searcher.score_functions["bent"] = lambda queries, documents: torch.sin(3 * dot_score(queries, documents))
    with pytest.raises(UnsupportedError, match=r"'bent' .*quantdrift diff"):
        searcher.search(CORPUS, QUERIES, 5, "bent")


def test_an_embedding_that_is_no_number_is_an_error_that_names_the_input(folder: str) -> None:
    sick = model(folder)
    original = sick.encode_queries

    def encode(queries: Any, **kwargs: Any) -> Any:
        return original(queries, **kwargs) * torch.tensor(float("nan"))

    sick.encode_queries = encode
    with pytest.raises(ScoreError, match="query 'q0' holds NaN"):
        exact(QuantizedPair(sick, "W3")).search(CORPUS, QUERIES, 5, "cos_sim")


def test_beirs_own_metrics_are_the_candidates_and_a_saved_run_reads_back(folder: str, tmp_path: Path) -> None:
    """The script of docs/reference/harnesses.md."""
    evaluator = EvaluateRetrieval(exact(QuantizedPair(model(folder), "W2-rtn")), score_function="cos_sim")
    results, qrels = evaluator.retrieve(CORPUS, QUERIES), qrels_of(QUERIES)
    ndcg, *_ = evaluator.evaluate(qrels, results, evaluator.k_values)
    flips = evaluator.evaluate_custom(qrels, results, evaluator.k_values, metric="flip")
    assert flips == {"flip@1": results.drift["flip@1"].value}
    assert flips["flip@1"] > 0
    results.save(tmp_path / "run", qrels=qrels, data="few")
    record = read_run(tmp_path / "run").record
    assert ndcg["NDCG@10"] == round(record["metrics"]["ndcg@10"]["value"], 5)
    assert (record["spec"], record["data"]["name"]) == (f"{folder}@W2-g128-rtn", "few")
    # what beir itself writes, 0 for every rank, is compared by `diff`
    util.write_to_tsv(str(tmp_path / "test.tsv"), qrels)
    for name, lists in (("a", results.reference), ("b", dict(results))):
        util.save_runfile(str(tmp_path / f"{name}.trec"), lists)
    runs = [read_finished(tmp_path / f"{name}.trec") for name in ("a", "b")]
    (part,) = diff_runs(*runs, qrels=read_qrels(tmp_path / "test.tsv")).parts
    assert round(estimate_of(parse_metric("ndcg@10"), part).value or 0, 5) == ndcg["NDCG@10"]


# --- reranking with a paired cross-encoder -----------------------------------------------------------


NAMES = list(CORPUS)
SHORTLISTS = {
    query: {name: 1.0 / (1 + rank) for rank, name in enumerate(NAMES[start : start + 12])}
    for start, query in enumerate(QUERIES)
}


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_cross_encoder(tmp_path_factory.mktemp("model") / "reranker"))


def reranked(model: Any, shortlists: Any = SHORTLISTS, top_k: int = 12) -> Any:
    return Rerank(model, batch_size=4).rerank(CORPUS, QUERIES, shortlists, top_k=top_k)


@pytest.mark.parametrize(("kind", "top_k"), [(CrossEncoder, 5), (PlainCrossEncoder, 12)])
def test_both_arms_score_the_same_shortlist_as_stock_beir(kind: Any, top_k: int, reranker: str) -> None:
    results = reranked(QuantizedPair(kind(reranker, device="cpu"), "W3-rtn"), top_k=top_k)
    plain = kind(reranker, device="cpu")
    assert isinstance(results, PairedResults)
    assert_same_results(results.reference, reranked(plain, top_k=top_k))
    with quantized(plain, "W3-rtn"):
        assert_same_results(results, reranked(plain, top_k=top_k))
    assert set(results.evidence.n_items.tolist()) == {top_k}


def logits(model: CrossEncoder, query: str, names: list[str]) -> dict[str, float]:
    """Scores without the sigmoid, by the model itself."""
    joined = [f"{CORPUS[name]['title']} {CORPUS[name]['text']}".strip() for name in names]
    pairs = [[QUERIES[query], text] for text in joined]
    scores = model.model.predict(pairs, activation_fn=nn.Identity(), show_progress_bar=False)
    return dict(zip(names, scores.tolist(), strict=True))


def test_evidence_is_of_raw_scores_and_exact_over_the_shortlist(reranker: str) -> None:
    base = CrossEncoder(reranker, device="cpu")
    activation = base.model.activation_fn
    assert type(activation) is nn.Sigmoid
    results = reranked(QuantizedPair(base, "W3-rtn"))
    assert base.model.activation_fn is activation
    evidence: Evidence = results.evidence
    assert evidence.exact
    low = CrossEncoder(reranker, device="cpu")
    with quantized(low, "W3-rtn"):
        for row, query in enumerate(evidence.input_ids):
            names = list(results[query])
            after, before = (logits(model, query, names) for model in (low, base))
            deltas = [after[name] - before[name] for name in names]
            assert evidence.delta_min[row] == pytest.approx(min(deltas), abs=1e-5)
            assert evidence.delta_max[row] == pytest.approx(max(deltas), abs=1e-5)
            top = evidence.item_ids[evidence.candidate_top.items[row, 0]]
            assert top == max(after, key=after.__getitem__)
    assert results.drift["epsilon"].bound is None
    assert results.drift["noise_floor"].value == 0
    judged = EvaluateRetrieval.evaluate_custom(qrels_of(QUERIES), results, [1], metric="flip")
    assert judged == {"flip@1": results.drift["flip@1"].value}
    assert results.drift.record["settings"]["scores"] == "raw, before the sigmoid"


def test_the_noise_floor_is_that_of_two_runs_by_hand(reranker: str) -> None:
    """A model whose scores move with the batch size: of d1 in q1 by 10, of d2 in q2 by 0.25."""
    base = CrossEncoder(reranker, device="cpu")
    words = {f"{CORPUS[name]['title']} {CORPUS[name]['text']}".strip(): name for name in CORPUS}
    asked = {text: query for query, text in QUERIES.items()}
    moved = {("q1", "d1"): 10.0, ("q2", "d2"): 0.25, ("q3", "d14"): 99.0}

    def predict(sentences: Any, batch_size: int = 32, **_: Any) -> list[float]:
        pairs = [(asked[query], words[text]) for query, text in sentences]
        usual = [-float(name[1:]) for _, name in pairs]  # the first of a shortlist is the best
        again = batch_size == other_batch_size(4)
        return [score + again * moved.get(pair, 0) for score, pair in zip(usual, pairs, strict=True)]

    base.predict = predict
    evidence = reranked(QuantizedPair(base, "W3-rtn")).evidence
    noise = dict(zip(evidence.input_ids, evidence.noise.epsilon.tolist(), strict=True))
    flips = dict(zip(evidence.input_ids, evidence.noise.flips.tolist(), strict=True))
    # q1 and q2 begin with d1 and d2, which stay first; d14 is the twelfth of q3, out of the ten
    assert {query: value for query, value in noise.items() if value} == {"q1": 10.0, "q2": 0.25}
    assert not any(flips.values())
    moved[("q1", "d2")] = 12.0  # past d1
    evidence = reranked(QuantizedPair(base, "W3-rtn")).evidence
    assert evidence.noise.flips.tolist() == [query == "q1" for query in evidence.input_ids]
    assert evidence.noise.epsilon.max() == 12


def test_what_a_cross_encoder_cannot_do_is_refused(reranker: str) -> None:
    base = CrossEncoder(reranker, device="cpu")
    with pytest.raises(UnsupportedError, match="query and document"):
        reranked(QuantizedPair(base, "W4+query"))
    with pytest.raises(UnsupportedError, match=r"reads query and document.*allocation\.json"):
        reranked(QuantizedPair(base, "W3.5+gap"))
    several = CrossEncoder(reranker, device="cpu")
    several.model.config.num_labels = 3
    with pytest.raises(UnsupportedError, match="3 scores"):
        reranked(QuantizedPair(several, "W4"))
    with pytest.raises(DataError, match="nothing to rank"):
        reranked(QuantizedPair(base, "W4"), {"q0": {}})
