"""Small models and small data for the tests of the beir plugin; nothing is downloaded."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from beir.retrieval.models import SentenceBERT
from beir.retrieval.search.dense import DenseRetrievalExactSearch

from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.evidence.record import Evidence
from support.candidate_samples import encoder, text

Results = dict[str, dict[str, float]]

ARRAYS = ("input_ids", "delta_min", "delta_max", "n_items")
SCORES = ("reference_scores", "candidate_scores")


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


def save_encoder(folder: Path) -> str:
    """A sentence-transformers model of a few thousand random weights."""
    made = encoder(folder / "backbone")
    made.save_pretrained(str(folder / "encoder"))
    return str(folder / "encoder")


def model(folder: str, **options: Any) -> SentenceBERT:
    return SentenceBERT(folder, device="cpu", **options)


def exact(model: Any, **options: Any) -> DenseRetrievalExactSearch:
    return DenseRetrievalExactSearch(model, batch_size=8, **{"show_progress_bar": False, **options})


def assert_same_results(found: Results, expected: Results, tolerance: float = 1e-5) -> None:
    """The same documents for every query, with the same scores; the order of a dict is nothing."""
    assert found.keys() == expected.keys()
    for query, scores in expected.items():
        assert found[query].keys() == scores.keys(), query
        for name, score in scores.items():
            close = math.isclose(found[query][name], score, rel_tol=tolerance, abs_tol=tolerance)
            assert close, (query, name, found[query][name], score)


def assert_same_evidence(found: Evidence, expected: Evidence) -> None:
    """Every array is equal, bit for bit; items by their names, which a file keeps as it likes."""
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)
    for arm in ("reference_top", "candidate_top"):
        tops = [getattr(part, arm) for part in (found, expected)]
        for name in SCORES:
            one, other = (getattr(top, name) for top in tops)
            np.testing.assert_array_equal(one, other, f"{arm}.{name}")
        named = [
            np.where(top.items >= 0, part.item_ids[top.items], None)
            for top, part in zip(tops, (found, expected), strict=True)
        ]
        np.testing.assert_array_equal(named[0], named[1], f"{arm}.items")
    assert (found.noise is None) == (expected.noise is None)
    if found.noise is not None and expected.noise is not None:
        np.testing.assert_array_equal(found.noise.flips, expected.noise.flips)
        np.testing.assert_array_equal(found.noise.epsilon, expected.noise.epsilon)
    assert found.deltas == expected.deltas


def dataset_of(corpus: dict[str, Any], queries: dict[str, str]) -> RetrievalDataset:
    """The same data as quantdrift's own runs take them: title, a space, text."""
    return RetrievalDataset(
        name="tiny",
        query_ids=tuple(queries),
        queries=tuple(queries.values()),
        document_ids=tuple(corpus),
        documents=tuple(f"{one['title']} {one['text']}".strip() for one in corpus.values()),
        qrels=qrels_of(queries),
        split="test",
    )
