"""beir's reranking with a paired cross-encoder."""

from typing import Any

import pytest
from beir.reranking import Rerank
from beir.reranking.models import CrossEncoder
from beir.retrieval.evaluation import EvaluateRetrieval
from sentence_transformers import CrossEncoder as PlainCrossEncoder
from torch import nn

from integration.quantdrift_beir.beir_samples import assert_same_results, qrels_of, texts
from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.evidence.record import Evidence
from quantdrift.measuring.flow import other_batch_size
from quantdrift_beir import PairedResults, QuantizedPair
from support.candidate_samples import quantized
from support.rerank_samples import save_cross_encoder

CORPUS, QUERIES = texts()
NAMES = list(CORPUS)
SHORTLISTS = {
    query: {name: 1.0 / (1 + rank) for rank, name in enumerate(NAMES[start : start + 12])}
    for start, query in enumerate(QUERIES)
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_cross_encoder(tmp_path_factory.mktemp("model") / "reranker"))


def reranked(model: Any, shortlists: Any = SHORTLISTS, top_k: int = 12) -> Any:
    return Rerank(model, batch_size=4).rerank(CORPUS, QUERIES, shortlists, top_k=top_k)


@pytest.mark.parametrize(("kind", "top_k"), [(CrossEncoder, 5), (PlainCrossEncoder, 12)])
def test_both_arms_score_the_same_shortlist_as_stock_beir(kind: Any, top_k: int, folder: str) -> None:
    results = reranked(QuantizedPair(kind(folder, device="cpu"), "W3-rtn"), top_k=top_k)
    plain = kind(folder, device="cpu")
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


def test_evidence_is_of_raw_scores_and_exact_over_the_shortlist(folder: str) -> None:
    base = CrossEncoder(folder, device="cpu")
    activation = base.model.activation_fn
    assert type(activation) is nn.Sigmoid
    results = reranked(QuantizedPair(base, "W3-rtn"))
    assert base.model.activation_fn is activation
    evidence: Evidence = results.evidence
    assert evidence.exact
    low = CrossEncoder(folder, device="cpu")
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


def test_the_noise_floor_is_that_of_two_runs_by_hand(folder: str) -> None:
    """A model whose scores move with the batch size: of d1 in q1 by 10, of d2 in q2 by 0.25."""
    base = CrossEncoder(folder, device="cpu")
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


def test_what_a_cross_encoder_cannot_do_is_refused(folder: str) -> None:
    base = CrossEncoder(folder, device="cpu")
    with pytest.raises(UnsupportedError, match="query and document"):
        reranked(QuantizedPair(base, "W4+query"))
    with pytest.raises(UnsupportedError, match=r"reads query and document.*allocation\.json"):
        reranked(QuantizedPair(base, "W3.5+gap"))
    several = CrossEncoder(folder, device="cpu")
    several.model.config.num_labels = 3
    with pytest.raises(UnsupportedError, match="3 scores"):
        reranked(QuantizedPair(several, "W4"))
    with pytest.raises(DataError, match="nothing to rank"):
        reranked(QuantizedPair(base, "W4"), {"q0": {}})
