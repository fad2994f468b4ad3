"""A pair as a model object of beir's, what its embeddings are kept under, and what is wrapped in beir."""

import importlib
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("beir")

from beir.retrieval.models import SentenceBERT
from beir.retrieval.search.dense import DenseRetrievalExactSearch

import quantdrift_beir
from quantdrift.base.errors import MissingExtraError, UnsupportedError
from quantdrift_beir import QuantizedPair
from quantdrift_beir.pairs import description_of, inputs_of

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
    settings: dict[str, Any] = {
        "sep": " ",
        "max_length": None,
        "query_prefix": None,
        "query_prompt_name": None,
        "doc_prefix": None,
        "doc_prompt_name": None,
    }
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
