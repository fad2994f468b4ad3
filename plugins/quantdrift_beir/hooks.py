"""What is changed in beir when quantdrift_beir is imported: six functions, each wrapped.

Models and results that are not a pair's go through untouched. Whoever imports quantdrift_beir wants it to work, so a
beir that does not look as expected is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from beir.reranking import Rerank  # type: ignore[import-untyped]  # it ships no types
from beir.retrieval.evaluation import EvaluateRetrieval  # type: ignore[import-untyped]  # likewise
from beir.retrieval.search.dense import DenseRetrievalExactSearch  # type: ignore[import-untyped]  # likewise

from quantdrift.errors import UnsupportedError
from quantdrift.patching import arguments_of, errors_in_one_line, wrap
from quantdrift_beir.pairs import held_pair
from quantdrift_beir.reranking import rerank_both
from quantdrift_beir.results import evaluate_custom
from quantdrift_beir.search import retrieve_both, search_by_pair


def wrap_beir() -> None:
    """Wrap what beir searches, reranks and judges with; what is wrapped already stays."""
    dense = DenseRetrievalExactSearch
    files = ("corpus", "queries", "encode_output_path", "overwrite", "query_filename", "corpus_filename")
    saved = ("query_embeddings_file", "corpus_embeddings_files", "top_k")
    try:
        wrap(dense, "search", ("corpus", "queries", "top_k", "score_function"), _if_pair(search_by_pair))
        wrap(dense, "encode", files, _if_pair(_no_files))
        wrap(dense, "search_from_files", saved, _if_pair(_no_files))
        wrap(Rerank, "rerank", ("corpus", "queries", "results", "top_k"), _if_pair(rerank_both))
        wrap(EvaluateRetrieval, "retrieve", ("corpus", "queries"), _if_pair(retrieve_both, holder="retriever"))
        wrap(EvaluateRetrieval, "evaluate_custom", ("qrels", "results", "k_values", "metric"), _judge, static=True)
    except TypeError as error:
        raise UnsupportedError(
            f"beir {version('beir')} is not as expected: {error}. quantdrift was written for beir 2.2; install it "
            'with: pip install "beir>=2.2,<3"'
        ) from error
    errors_in_one_line()


def _if_pair(ours: Callable[..., Any], *, holder: str | None = None) -> Callable[..., Any]:
    """A method that is ours where the object, or its attribute `holder`, keeps a pair."""

    def method(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        pair = held_pair(self if holder is None else getattr(self, holder, None))
        if pair is None:
            return original(self, *args, **kwargs)
        given = arguments_of(original, self, *args, **kwargs)
        given.pop("self")
        return ours(original, self, pair, given | given.pop("kwargs", {}))

    return method


def _judge(original: Callable[..., Any], qrels: Any, results: Any, k_values: Any, metric: str) -> Any:
    return evaluate_custom(original, qrels, results, k_values, metric)


def _no_files(_: Callable[..., Any], searcher: Any, *__: Any) -> Any:
    """Embeddings of a pair are of two models, and beir's files are of one."""
    raise UnsupportedError(
        f"{type(searcher).__name__} holds a pair: expected retrieve(corpus, queries); got a call that writes or reads "
        "beir's files of embeddings, which are of one model. Those of both arms are kept in quantdrift's cache anyway"
    )
