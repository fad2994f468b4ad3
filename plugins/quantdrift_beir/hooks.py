"""Wraps three functions of beir when quantdrift_beir is imported.

Models and results other than a pair's are not affected. A beir that does not look as expected is an error.
"""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from beir.reranking import Rerank  # type: ignore[import-untyped]  # it ships no types
from beir.retrieval.evaluation import EvaluateRetrieval  # type: ignore[import-untyped]  # likewise
from beir.retrieval.search.dense import DenseRetrievalExactSearch  # type: ignore[import-untyped]  # likewise

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.patching import arguments_of, errors_in_one_line, wrap
from quantdrift_beir.pairs import held_pair, rerank_both, search_both
from quantdrift_beir.results import evaluate_custom


def wrap_beir() -> None:
    """Wrap beir's search, reranking and evaluation, once."""
    searched = ("corpus", "queries", "top_k", "score_function")
    judged = ("qrels", "results", "k_values", "metric")
    try:
        wrap(DenseRetrievalExactSearch, "search", searched, _if_pair(search_both))
        wrap(Rerank, "rerank", ("corpus", "queries", "results", "top_k"), _if_pair(rerank_both))
        wrap(EvaluateRetrieval, "evaluate_custom", judged, evaluate_custom, static=True)
    except TypeError as error:
        raise UnsupportedError(
            f"beir {version('beir')} is not as expected: {error}. quantdrift was written for beir 2.2; install it "
            'with: pip install "beir>=2.2,<3"'
        ) from error
    errors_in_one_line()


def _if_pair(ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls ours if the object holds a pair."""

    def method(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        pair = held_pair(self)
        if pair is None:
            return original(self, *args, **kwargs)
        given = arguments_of(original, self, *args, **kwargs)
        given.pop("self")
        return ours(original, self, pair, given | given.pop("kwargs", {}))

    return method
