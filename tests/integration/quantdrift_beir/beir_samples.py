"""Small models and small data for the tests of the beir plugin; nothing is downloaded."""

import math
from typing import Any

from beir.retrieval.models import SentenceBERT
from beir.retrieval.search.dense import DenseRetrievalExactSearch

from quantdrift.data.retrieval import RetrievalDataset
from support.candidate_samples import text

Results = dict[str, dict[str, float]]


def texts(n_docs: int = 30, n_queries: int = 8) -> tuple[dict[str, Any], dict[str, str]]:
    """A corpus, of which every other document has a title, and queries that begin documents."""
    corpus = {
        f"d{number}": {"title": text(number + 500, 2) if number % 2 else "", "text": text(number, 5 + number % 13)}
        for number in range(n_docs)
    }
    queries = {
        f"q{number}": " ".join(corpus[f"d{number}"]["text"].split()[:4]) + f" {text(number, 1)}"
        for number in range(n_queries)
    }
    return corpus, queries


def qrels_of(queries: dict[str, str]) -> dict[str, dict[str, int]]:
    return {query: {f"d{query[1:]}": 1} for query in queries}


def model(folder: str, **options: Any) -> SentenceBERT:
    return SentenceBERT(folder, device="cpu", **options)


def exact(model: Any, **options: Any) -> DenseRetrievalExactSearch:
    return DenseRetrievalExactSearch(model, batch_size=8, **{"show_progress_bar": False, **options})


def assert_same_results(results: Results, expected: Results, tolerance: float = 1e-5) -> None:
    """Assert that every query has equal documents with equal scores, in any order."""
    assert results.keys() == expected.keys()
    for query, scores in expected.items():
        assert results[query].keys() == scores.keys(), query
        for name, score in scores.items():
            close = math.isclose(results[query][name], score, rel_tol=tolerance, abs_tol=tolerance)
            assert close, (query, name, results[query][name], score)


def dataset_of(corpus: dict[str, Any], queries: dict[str, str]) -> RetrievalDataset:
    """Make the dataset of quantdrift's own runs: title, a space, text."""
    return RetrievalDataset.of(queries, corpus, qrels_of(queries), name="tiny")
