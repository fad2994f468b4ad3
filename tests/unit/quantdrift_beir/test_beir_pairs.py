"""A pair as a model object of beir's, and what is wrapped in beir."""

import importlib
from typing import Any

import pytest
import torch

pytest.importorskip("beir")

from beir.retrieval.search.dense import DenseRetrievalExactSearch

import quantdrift_beir
from quantdrift.base.errors import MissingExtraError, UnsupportedError
from quantdrift_beir import QuantizedPair
from support.beir_letters import CORPUS, Letters


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
    found = search.search(CORPUS, queries, 2, score_function="dot")
    assert type(found) is dict
    assert found == original(search, CORPUS, queries, 2, score_function="dot")
