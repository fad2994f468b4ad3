"""Searches of other kinds: faiss, models and searches of the user's own, two searches as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("faiss")

from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.search.dense import FlatIPFaissSearch
from beir.retrieval.search.sparse import SparseSearch
from scipy.sparse import csr_matrix

from quantdrift.errors import UnsupportedError
from quantdrift_beir import QuantizedPair
from support.beir_samples import assert_same_results, exact, model, quantized, texts

CORPUS, QUERIES = texts()
ALL = len(CORPUS)


class Faiss(FlatIPFaissSearch):  # type: ignore[misc]  # its type is not known
    """beir 2.2's own is abstract: two methods are missing."""

    def encode(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError

    def search_from_files(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


class Sparse(SparseSearch):  # type: ignore[misc]  # its type is not known
    """Likewise."""

    encode, search_from_files = Faiss.encode, Faiss.search_from_files


class SparseModel:
    """Embeddings without their negative numbers, as a sparse matrix."""

    def __init__(self, folder: str) -> None:
        self.dense = model(folder)

    def encode_corpus(self, corpus: Any, batch_size: int = 8, **_: Any) -> Any:
        vectors = self.dense.encode_corpus(corpus, batch_size=batch_size, show_progress_bar=False)
        return csr_matrix(np.maximum(vectors, 0))

    def encode_query(self, query: str) -> Any:
        vectors = self.dense.encode_queries([query], show_progress_bar=False)
        return np.maximum(vectors[0], 0)


def evaluator(search: Any, top_k: int = 10) -> EvaluateRetrieval:
    return EvaluateRetrieval(search, k_values=[1, top_k], score_function="cos_sim")


def faiss(one: Any) -> Any:
    return Faiss(one, batch_size=8)


def test_each_arm_has_an_index_of_its_own(folder: str) -> None:
    found = evaluator(faiss(QuantizedPair(model(folder), "W3"))).retrieve(CORPUS, QUERIES)
    plain = model(folder)
    assert_same_results(found.reference, evaluator(faiss(plain)).retrieve(CORPUS, QUERIES))
    with quantized(plain, "W3"):
        assert_same_results(found, evaluator(faiss(plain)).retrieve(CORPUS, QUERIES))
    streamed = exact(QuantizedPair(model(folder), "W3")).search(CORPUS, QUERIES, ALL, "cos_sim")
    assert found.drift["flip@1"] == streamed.drift["flip@1"]
    few, all_of_them = found.drift["epsilon"], streamed.drift["epsilon"]
    assert (few.bound, all_of_them.bound) == ("lower", None)
    assert few.value <= all_of_them.value * 1.001


def test_lists_that_faiss_fills_up_are_compared_without_what_fills_them(folder: str) -> None:
    found = evaluator(faiss(QuantizedPair(model(folder), "W3")), 3 * ALL).retrieve(CORPUS, QUERIES)
    assert min(found["q0"].values()) < -3e38  # what stock beir returns, too
    assert set(found.evidence.n_items.tolist()) == {ALL - 1}  # one document's score is lost
    assert not found.evidence.exact


@pytest.mark.parametrize("scheme", ["W3", "W3-g64-gptq+calib=20"])
def test_sparse_models_search_once_per_arm(scheme: str, folder: str) -> None:
    pair = QuantizedPair(SparseModel(folder), scheme)
    search = EvaluateRetrieval(Sparse(pair), k_values=[1, 10])
    found = search.retrieve(CORPUS, QUERIES, query_weights=True)
    plain = EvaluateRetrieval(Sparse(SparseModel(folder)), k_values=[1, 10])
    assert_same_results(found.reference, plain.retrieve(CORPUS, QUERIES, query_weights=True))
    assert found.drift["epsilon"].value > 0
    said = found.drift.record["model"]
    assert len(said["layers_never_reached"]) < said["layers_quantized"]


def test_files_of_embeddings_are_refused_for_a_pair(folder: str, tmp_path: Path) -> None:
    search = exact(QuantizedPair(model(folder), "W3"))
    with pytest.raises(UnsupportedError, match="files of embeddings"):
        evaluator(search).encode_and_retrieve(CORPUS, QUERIES, encode_output_path=str(tmp_path))
    with pytest.raises(UnsupportedError, match="files of embeddings"):
        search.search_from_files("queries.pkl", [], 3)
    assert not list(tmp_path.iterdir())
