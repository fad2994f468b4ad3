"""What is changed in beir when quantdrift_beir is imported: six functions, each wrapped.

Models and results that are not a pair's go through untouched. Whoever imports quantdrift_beir wants
it to work, so a beir that does not look as expected is an error.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from beir.reranking import Rerank  # type: ignore[import-untyped]  # it ships no types
from beir.retrieval.evaluation import EvaluateRetrieval  # type: ignore[import-untyped]  # likewise
from beir.retrieval.search.dense import DenseRetrievalExactSearch  # type: ignore[import-untyped]  # likewise

from quantdrift.errors import UnsupportedError
from quantdrift.patching import errors_in_one_line, expected, replace
from quantdrift_beir.custom import evaluate_custom
from quantdrift_beir.own_search import retrieve_both
from quantdrift_beir.pairs import held_pair
from quantdrift_beir.reranking import rerank_both
from quantdrift_beir.search import search_by_pair


def wrap_beir() -> None:
    """Wrap what beir searches, reranks and judges with; what is wrapped already stays.

    Raises:
        UnsupportedError: beir has not the functions that this was written for.
    """
    _of_pairs(DenseRetrievalExactSearch, "search", search_by_pair, ("corpus", "queries", "top_k", "score_function"))
    _of_pairs(
        DenseRetrievalExactSearch,
        "encode",
        _no_files,
        ("corpus", "queries", "encode_output_path", "overwrite", "query_filename", "corpus_filename"),
    )
    _of_pairs(
        DenseRetrievalExactSearch,
        "search_from_files",
        _no_files,
        ("query_embeddings_file", "corpus_embeddings_files", "top_k"),
    )
    _of_pairs(Rerank, "rerank", rerank_both, ("corpus", "queries", "results", "top_k"))
    _of_pairs(EvaluateRetrieval, "retrieve", retrieve_both, ("corpus", "queries"), holder="retriever")
    judge = _expected(EvaluateRetrieval, "evaluate_custom", ("qrels", "results", "k_values", "metric"))
    if judge is not None:
        replace(EvaluateRetrieval, "evaluate_custom", _judging(judge), static=True)
    errors_in_one_line()


def _of_pairs(
    kind: type, name: str, ours: Callable[..., Any], parameters: tuple[str, ...], *, holder: str | None = None
) -> None:
    """Wrap a method, so that it is ours where the object keeps a pair.

    Args:
        kind: class of beir's.
        name: of its method.
        ours: called with the original method, the object and the arguments by name.
        parameters: that the method must have.
        holder: attribute of the object that keeps the pair, where it is not the object itself.
    """
    original = _expected(kind, name, parameters)
    if original is None:
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        pair = held_pair(self if holder is None else getattr(self, holder, None))
        if pair is None:
            return original(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        arguments = dict(given.arguments)
        arguments.pop("self")
        arguments |= arguments.pop("kwargs", {})
        return ours(original, self, pair, arguments)

    replace(kind, name, method)


def _no_files(_: Callable[..., Any], searcher: Any, *__: Any) -> Any:
    """Embeddings of a pair are of two models, and beir's files are of one."""
    raise UnsupportedError(
        f"{type(searcher).__name__} holds a pair: expected retrieve(corpus, queries); got a call "
        "that writes or reads beir's files of embeddings, which are of one model. Those of both "
        "arms are kept in quantdrift's cache anyway"
    )


def _judging(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def judge(qrels: Any, results: Any, k_values: Any, metric: str) -> Any:
        return evaluate_custom(original, qrels, results, k_values, metric)

    return judge


def _expected(kind: type, name: str, parameters: tuple[str, ...]) -> Any:
    """The function to wrap; None if it is wrapped already."""
    try:
        return expected(kind, name, *parameters)
    except TypeError as error:
        raise UnsupportedError(
            f"beir {version('beir')} is not as expected: {error}. quantdrift was written for beir "
            '2.2; install it with: pip install "beir>=2.2,<3"'
        ) from error
