"""The scores of a cross-encoder before its activation: a sigmoid makes probabilities of them.

Epsilon, gap and separation are of scores, never of probabilities. So both arms are searched without
the activation, and mteb gets what it would have got, by putting it on what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
def raw_scores(searcher: Any) -> Iterator[Callable[[Results], Results]]:
    """Inside, a cross-encoder of sentence-transformers gives raw scores.

    Of any other model, and of any other activation, scores are as the model gives them.

    Args:
        searcher: mteb's search model.

    Yields:
        From what was found inside to what the model would have given.

    Raises:
        UnsupportedError: the model gives a pair more than one score.
    """
    n_scores = getattr(getattr(getattr(searcher, "model", None), "model", None), "num_labels", 1)
    if isinstance(n_scores, int) and n_scores > 1:
        raise UnsupportedError(
            f"this cross-encoder gives a pair {n_scores} scores (as models of textual entailment "
            "do), which mteb cannot rank by; expected a reranker of one score"
        )
    activation = activation_of(searcher)
    if activation is None:
        yield lambda results: results
        return
    model = searcher.model.model

    def given(results: Results) -> Results:
        return {query: _through(activation, scores, model) for query, scores in results.items()}

    model.activation_fn = nn.Identity()
    try:
        yield given
    finally:
        model.activation_fn = activation


def activation_of(searcher: Any) -> nn.Module | None:
    """The activation that `raw_scores` takes off; None where there is none to take off.

    Args:
        searcher: mteb's search model.
    """
    model = getattr(getattr(searcher, "model", None), "model", None)
    activation = getattr(model, "activation_fn", None)
    if type(activation) not in _ONE_BY_ONE or getattr(model, "num_labels", None) != 1:
        return None
    return activation


def _through(activation: nn.Module, scores: dict[str, float], model: Any) -> dict[str, float]:
    """The scores of one query as sentence-transformers makes them, in float32 on its device."""
    raw = torch.tensor(list(scores.values()), dtype=torch.float32, device=model.device)
    return dict(zip(scores, activation(raw).cpu().tolist(), strict=True))
