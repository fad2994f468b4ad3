"""The scores of a cross-encoder before its activation: a sigmoid makes probabilities of them.

Epsilon, gap and separation are of scores, never of probabilities. So both arms score without the
activation, and a harness gets what it would have got, by putting it on what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from quantdrift.errors import UnsupportedError

__all__ = ["activation_of", "raw_scores"]

Results = dict[str, dict[str, float]]

_ONE_BY_ONE = (nn.Sigmoid, nn.Tanh)
"""Activations that are taken of every score for itself, and keep the order."""


@contextmanager
def raw_scores(modules: Sequence[Any], harness: str) -> Iterator[Callable[[Results], Results]]:
    """Inside, a cross-encoder of sentence-transformers gives raw scores.

    Of any other model, and of any other activation, scores are as the model gives them.

    Args:
        modules: the outermost torch modules of the model.
        harness: that ranks by the scores, for messages.

    Yields:
        From what was found inside (query to document to score) to what the model would have given.

    Raises:
        UnsupportedError: the model gives a pair more than one score.
    """
    for module in modules:
        n_scores = getattr(module, "num_labels", 1)
        if isinstance(n_scores, int) and n_scores > 1:
            raise UnsupportedError(
                f"this cross-encoder gives a pair {n_scores} scores (as models of textual "
                f"entailment do), which {harness} cannot rank by; expected a reranker of one score"
            )
    found = _with_activation(modules)
    if found is None:
        yield lambda results: results
        return
    model, activation = found

    def given(results: Results) -> Results:
        return {query: _through(activation, scores, model) for query, scores in results.items()}

    model.activation_fn = nn.Identity()
    try:
        yield given
    finally:
        model.activation_fn = activation


def activation_of(modules: Sequence[Any]) -> str | None:
    """Name of the activation that `raw_scores` takes off; None where there is none to take off.

    Args:
        modules: the outermost torch modules of the model.
    """
    found = _with_activation(modules)
    return None if found is None else type(found[1]).__name__.lower()


def _with_activation(modules: Sequence[Any]) -> tuple[Any, nn.Module] | None:
    for module in modules:
        activation = getattr(module, "activation_fn", None)
        if isinstance(activation, _ONE_BY_ONE) and getattr(module, "num_labels", None) == 1:
            return module, activation
    return None


def _through(activation: nn.Module, scores: dict[str, float], model: Any) -> dict[str, float]:
    """The scores of one query as sentence-transformers makes them, in float32 on its device."""
    raw = torch.tensor(list(scores.values()), dtype=torch.float32, device=model.device)
    return dict(zip(scores, activation(raw).cpu().tolist(), strict=True))
