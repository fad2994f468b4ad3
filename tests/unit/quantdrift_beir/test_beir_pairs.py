"""A pair as a model object of beir, and metrics by name on results with and without drift."""

import copy
import importlib
import pickle
from typing import Any

import pytest
import torch

pytest.importorskip("beir")

from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.models import SentenceBERT
from beir.retrieval.search.dense import DenseRetrievalExactSearch
from torch import nn

import quantdrift_beir
from quantdrift.base.errors import MissingExtraError, UnknownNameError, UnsupportedError
from quantdrift.finished.rankings import evidence_of_rankings
from quantdrift.metrics.base import MetricError
from quantdrift_beir import Drift, PairedResults, QuantizedPair
from quantdrift_beir.pairs import description_of, inputs_of
from quantdrift_beir.results import BEIR_METRICS

CORPUS = {"a": {"title": "", "text": "abba"}, "b": {"title": "x", "text": "bob"}}


class Letters:
    """A model of the user's own: counts of letters through one linear layer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layer = nn.Linear(26, 16, bias=False)
        self.sep = " "

    def _embed(self, texts: list[str]) -> torch.Tensor:
        counts = [[text.count(chr(97 + number)) for number in range(26)] for text in texts]
        with torch.no_grad():
            embedded: torch.Tensor = self.layer(torch.tensor(counts, dtype=torch.float32))
        return embedded

    def encode_queries(self, queries: list[str], batch_size: int = 16, **_: Any) -> torch.Tensor:
        return self._embed(queries)

    def encode_corpus(self, corpus: Any, batch_size: int = 8, **_: Any) -> torch.Tensor:
        return self._embed([f"{document.get('title', '')} {document['text']}" for document in corpus])

    def start_multi_process_pool(self) -> None:
        raise AssertionError("it would start processes")


def test_asked_directly_a_pair_is_the_candidate_and_otherwise_the_model() -> None:
    model = Letters()
    pair = QuantizedPair(model, "W2-channel")
    full = model.encode_queries(["abc"])
    low = pair.encode_queries(["abc"])
    assert not torch.equal(full, low)
    assert torch.equal(model.encode_queries(["abc"]), full)
    with pair.pair.candidate():
        assert torch.equal(model.encode_queries(["abc"]), low)
    assert pair.sep == " "
    pair.sep = "; "
    assert model.sep == "; "
    assert pair.layer is model.layer
    assert not hasattr(pair, "predict")


def test_each_arm_answers_while_it_is_asked_for_and_an_error_leaves_the_reference_in_place() -> None:
    model = Letters()
    pair = QuantizedPair(model, "W2-channel")
    before, full, low = pair.pair.fingerprint, model.encode_queries(["abc"]), pair.encode_queries(["abc"])
    with pair.arms.answering("reference"):
        assert torch.equal(pair.encode_queries(["abc"]), full)
        with pair.arms.answering("candidate"):
            assert torch.equal(pair.encode_queries(["abc"]), low)
        with pytest.raises(AttributeError), pair.arms.answering("candidate"):
            pair.encode_queries([None])
        assert pair.pair.fingerprint == before
        assert torch.equal(pair.encode_queries(["abc"]), full)
    assert not pair.arms.session
    assert torch.equal(pair.encode_queries(["abc"]), low)


@pytest.mark.parametrize(
    ("model", "message"),
    [(object(), "holds no torch module"), (QuantizedPair(Letters(), "W4-channel"), "is a pair already")],
)
def test_what_cannot_be_a_pair_is_refused(model: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        QuantizedPair(model, "W4")


def test_copies_in_other_processes_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="other processes"):
        QuantizedPair(Letters(), "W4-channel").start_multi_process_pool()


def test_a_beir_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"quantdrift\[beir\]"):
        importlib.reload(quantdrift_beir)


def test_a_stock_search_goes_through_untouched() -> None:
    original = DenseRetrievalExactSearch.search.__wrapped__
    search = DenseRetrievalExactSearch(Letters(), show_progress_bar=False)
    queries = {"p": "a", "q": "b"}
    results = search.search(CORPUS, queries, 2, score_function="dot")
    assert type(results) is dict
    assert results == original(search, CORPUS, queries, 2, score_function="dot")


class Stub(SentenceBERT):  # type: ignore[misc]  # its type is not known
    """beir's class with a module in place of a language model."""

    def __init__(self, **settings: Any) -> None:
        self.q_model = self.doc_model = nn.Linear(2, 2)
        for name, value in settings.items():
            setattr(self, name, value)


Stub.__module__ = "beir.retrieval.models.sentence_bert"


def test_embeddings_are_kept_under_all_that_beir_gives_its_models() -> None:
    unset = ("max_length", "query_prefix", "query_prompt_name", "doc_prefix", "doc_prompt_name")
    settings: dict[str, Any] = {"sep": " ", **dict.fromkeys(unset)}
    plain = description_of(Stub(**settings))
    assert plain is not None
    assert plain == description_of(Stub(**settings))
    for name in settings:
        assert description_of(Stub(**{**settings, name: "another"})) != plain
    capped = Stub(**settings)
    capped.q_model.max_seq_length = 7
    assert description_of(capped) != plain


def test_what_cannot_be_told_is_not_kept() -> None:
    assert description_of(Letters()) is None  # a class of the user's own may do anything
    assert description_of(Stub(sep=" ", normalize=lambda text: text)) is None
    assert description_of(Stub(sep=" ", tool=object())) is None
    pair = QuantizedPair(Letters(), "W4-channel")
    assert inputs_of(pair, "query", {"p": "a"}, {}).inputs.digest is None
    assert inputs_of(pair, "document", CORPUS, {}).inputs.digest is None


# --- metrics by name ---------------------------------------------------------------------------------


QUERIES = {"p": "?", "q": "?"}
RECORD = {"spec": "model@W4-g128-rtn", "data": {"fingerprint": "1"}, "settings": {}, "model": {}}
QRELS = {"p": {"a": 1}, "q": {"b": 2, "d": 1}}


REFERENCE = {"p": {"a": 0.9, "b": 0.8, "c": 0.2, "d": 0.1}, "q": {"b": 0.7, "a": 0.3, "c": 0.2, "d": 0.1}}
CANDIDATE = {
    "p": {"a": 0.6, "b": 0.8, "c": 0.2, "d": 0.1},  # a fell behind b: delta -0.3
    "q": {"b": 0.7, "a": 0.4, "c": 0.2, "d": 0.1},
}


def paired(reference: Any = REFERENCE, candidate: Any = CANDIDATE, *, complete: bool = True) -> PairedResults:
    evidence = evidence_of_rankings(reference, candidate, complete=complete)
    drift = Drift(evidence=evidence, reference=reference, record=RECORD)
    return PairedResults({query: candidate.get(query, {}) for query in QUERIES}, drift)


def judged(metric: str, results: Any = None, k_values: Any = (1, 2, 4)) -> dict[str, float | None]:
    given = paired() if results is None else results
    values: dict[str, float | None]
    values = EvaluateRetrieval.evaluate_custom(QRELS, given, list(k_values), metric=metric)
    return values


def test_a_family_of_ranks_is_computed_at_beirs_cutoffs() -> None:
    assert judged("gold_lost") == {"gold_lost@1": 0.5, "gold_lost@2": 0.0, "gold_lost@4": 0.0}
    assert judged("change.ndcg", k_values=[1]) == {"change.ndcg@1": -0.5}
    assert judged("set_kept", k_values=[2]) == {"set_kept@2": 1.0}


def test_beirs_own_metrics_are_beirs() -> None:
    results = {query: dict(scores) for query, scores in CANDIDATE.items()}
    for name in BEIR_METRICS:
        stock = EvaluateRetrieval.evaluate_custom(QRELS, results, [1, 2], metric=name)
        assert stock is not None
        assert judged(name, k_values=[1, 2]) == stock
    assert judged("mrr", k_values=[2]) == {"MRR@2": 0.75}
    assert judged("mrr@2") == {"mrr@2": 0.75}  # with its cut-off it is ours
    assert judged("accuracy", k_values=[1]) == {"Accuracy@1": 0.5}
    assert judged("reference.accuracy") == {"reference.accuracy": 1.0}


@pytest.mark.parametrize("results", [CANDIDATE, None])
def test_an_unknown_name_is_an_error_whatever_the_results_are(results: Any) -> None:
    with pytest.raises(UnknownNameError, match="mean flip") as error:
        judged("flipp", results)
    assert error.value.suggestions[0] == "flip"
    with pytest.raises(UnknownNameError, match="top_k_acc"):
        judged("top_k_ac", results)


def test_results_of_one_model_have_no_drift() -> None:
    with pytest.raises(UnsupportedError, match="results are of one"):
        judged("flip", CANDIDATE)


def test_what_looks_deeper_than_the_lists_is_undefined_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    cut = [{q: dict(list(r.items())[:2]) for q, r in arm.items()} for arm in (REFERENCE, CANDIDATE)]
    results = paired(*cut, complete=False)
    assert judged("gold_lost", results) == {"gold_lost@1": 0.5, "gold_lost@2": 0.0, "gold_lost@4": None}
    assert "gold_lost@4 is undefined" in capsys.readouterr().err
    assert results.drift["set_kept@5"].value is None
    assert {name: value.n for name, value in results.drift.items()}["flip@1"] == 2
    with pytest.raises(MetricError, match="names a family"):
        results.drift["set_kept"]


@pytest.mark.parametrize(
    "copied", [PairedResults.copy, copy.copy, copy.deepcopy, lambda results: pickle.loads(pickle.dumps(results))]
)
def test_copies_keep_the_drift(copied: Any) -> None:
    results = paired()
    again = copied(results)
    assert type(again) is PairedResults
    assert again == results
    assert again is not results
    assert (judged("flip", again), again.reference) == ({"flip@1": 0.5}, REFERENCE)
