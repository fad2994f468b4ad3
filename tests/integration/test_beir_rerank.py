"""beir's reranking with a paired cross-encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("beir")

from beir.reranking import Rerank
from beir.reranking.models import CrossEncoder
from beir.retrieval.evaluation import EvaluateRetrieval
from beir_samples import assert_same_results, qrels_of, quantized, save_cross_encoder, texts
from sentence_transformers import CrossEncoder as PlainCrossEncoder
from torch import nn

from quantdrift.errors import DataError, UnsupportedError
from quantdrift.evidence import Evidence
from quantdrift_beir import PairedResults, QuantizedPair

CORPUS, QUERIES = texts()
NAMES = list(CORPUS)
SHORTLISTS = {
    query: {name: 1.0 / (1 + rank) for rank, name in enumerate(NAMES[start : start + 12])}
    for start, query in enumerate(QUERIES)
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_cross_encoder(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))


def reranked(model: Any, shortlists: Any = SHORTLISTS, top_k: int = 12) -> Any:
    return Rerank(model, batch_size=4).rerank(CORPUS, QUERIES, shortlists, top_k=top_k)


@pytest.mark.parametrize("top_k", [5, 12])
@pytest.mark.parametrize("kind", [CrossEncoder, PlainCrossEncoder])
def test_both_arms_score_the_same_shortlist_as_stock_beir(
    kind: Any, top_k: int, folder: str
) -> None:
    found = reranked(QuantizedPair(kind(folder, device="cpu"), "W3-rtn"), top_k=top_k)
    plain = kind(folder, device="cpu")
    assert isinstance(found, PairedResults)
    assert_same_results(found.reference, reranked(plain, top_k=top_k))
    with quantized(plain, "W3-rtn"):
        assert_same_results(found, reranked(plain, top_k=top_k))
    assert set(found.evidence.n_items.tolist()) == {top_k}


def logits(model: CrossEncoder, query: str, names: list[str]) -> dict[str, float]:
    """Scores without the sigmoid, by the model itself."""
    joined = [f"{CORPUS[name]['title']} {CORPUS[name]['text']}".strip() for name in names]
    pairs = [[QUERIES[query], text] for text in joined]
    found = model.model.predict(pairs, activation_fn=nn.Identity(), show_progress_bar=False)
    return dict(zip(names, found.tolist(), strict=True))


def test_evidence_is_of_raw_scores_and_exact_over_the_shortlist(folder: str) -> None:
    base = CrossEncoder(folder, device="cpu")
    activation = base.model.activation_fn
    assert type(activation) is nn.Sigmoid
    found = reranked(QuantizedPair(base, "W3-rtn"))
    assert base.model.activation_fn is activation
    evidence: Evidence = found.evidence
    assert evidence.exact
    low = CrossEncoder(folder, device="cpu")
    with quantized(low, "W3-rtn"):
        for row, query in enumerate(evidence.input_ids):
            names = list(found[query])
            after, before = (logits(model, query, names) for model in (low, base))
            deltas = [after[name] - before[name] for name in names]
            assert evidence.delta_min[row] == pytest.approx(min(deltas), abs=1e-5)
            assert evidence.delta_max[row] == pytest.approx(max(deltas), abs=1e-5)
            top = evidence.item_ids[evidence.candidate_top.items[row, 0]]
            assert top == max(after, key=after.__getitem__)
    assert found.drift["epsilon"].bound is None
    assert found.drift["noise_floor"].value == 0
    judged = EvaluateRetrieval.evaluate_custom(qrels_of(QUERIES), found, [1], metric="flip")
    assert judged == {"flip@1": found.drift["flip@1"].value}
    assert found.drift.made.reading["scores"] == "raw, before the sigmoid"


def test_the_head_stays_at_full_precision(folder: str) -> None:
    pair = QuantizedPair(CrossEncoder(folder, device="cpu"), "W3-rtn")
    assert list(pair.pair.left_out.values()) == ["classification head"]


def test_each_arm_is_asked_once_for_all_pairs(folder: str) -> None:
    base = CrossEncoder(folder, device="cpu")
    asked = []
    original = base.predict

    def predict(sentences: Any, **kwargs: Any) -> Any:
        asked.append([tuple(pair) for pair in sentences])
        return original(sentences, **kwargs)

    base.predict = predict
    reranked(QuantizedPair(base, "W3-rtn"))
    everything = [calls for calls in asked if len(calls) == 12 * len(QUERIES)]
    assert len(everything) == 2
    assert everything[0] == everything[1]
    assert len(asked) == 4  # a look at which layers are reached, and the noise floor


def test_a_query_without_documents_and_a_document_of_its_own_id_do_not_count(folder: str) -> None:
    corpus = {**CORPUS, "q1": {"title": "", "text": "drag of the wing"}}
    shortlists = {**SHORTLISTS, "q0": {}, "q1": {"q1": 2.0, "d4": 1.0, "d5": 0.5}}
    pair = QuantizedPair(CrossEncoder(folder, device="cpu"), "W3-rtn")
    found = Rerank(pair, batch_size=4).rerank(corpus, QUERIES, shortlists, top_k=12)
    assert found["q0"] == {}
    assert found["q1"].keys() == {"q1", "d4", "d5"}  # as stock beir has it
    assert "q0" not in found.evidence.input_ids
    row = found.evidence.input_ids.tolist().index("q1")
    assert found.evidence.n_items[row] == 2


def test_calibration_is_on_documents_and_their_own_first_words(folder: str, tmp_path: Path) -> None:
    asked: list[Any] = []
    base = CrossEncoder(folder, device="cpu")
    original = base.predict

    def predict(sentences: Any, **kwargs: Any) -> Any:
        asked.extend(tuple(pair) for pair in sentences)
        return original(sentences, **kwargs)

    base.predict = predict
    pair = QuantizedPair(base, "W3-g32-gptq+calib=10")
    record = reranked(pair).save(tmp_path / "run").record
    assert record["quantization"]["calibration"]["n_inputs"] == 10
    joined = {f"{one['title']} {one['text']}".strip() for one in CORPUS.values()}
    openings = [pair for pair in asked if " ".join(pair[1].split()[:12]) == pair[0]]
    assert openings
    assert {document for _, document in openings} <= joined
    asked_for = set(QUERIES.values())
    assert not any(query in asked_for for query, _ in openings)


def test_what_a_cross_encoder_cannot_do_is_refused(folder: str) -> None:
    base = CrossEncoder(folder, device="cpu")
    with pytest.raises(UnsupportedError, match="reads query and document together"):
        reranked(QuantizedPair(base, "W4+query"))
    with pytest.raises(UnsupportedError, match=r"reads query and document.*allocation\.json"):
        reranked(QuantizedPair(base, "W3.5+gap"))
    several = CrossEncoder(folder, device="cpu")
    several.model.config.num_labels = 3
    with pytest.raises(UnsupportedError, match="gives a pair 3 scores"):
        reranked(QuantizedPair(several, "W4"))
    with pytest.raises(DataError, match="nothing to rerank"):
        reranked(QuantizedPair(base, "W4"), {"q0": {}})
    with pytest.raises(DataError, match="nothing to rerank"):
        reranked(QuantizedPair(base, "W4"), {"d0": {"d0": 1.0}})


def test_the_weights_are_back_bit_for_bit(folder: str) -> None:
    base = CrossEncoder(folder, device="cpu")
    pair = QuantizedPair(base, "W2")
    before = pair.pair.fingerprint
    found = reranked(pair)
    assert pair.pair.fingerprint == before
    assert found.drift["epsilon"].value > 0
