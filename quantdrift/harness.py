"""What the harness plugins share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quantdrift.engine.scoring.streamed import Similarity, prepare, scores_from_products

_LONGEST = 16_384
"""As long as the embeddings of no model: a cosine of the first 256 numbers is not the cosine."""
_COSINES = (0.9, 0.6, 0.2, -0.4, -0.8)
"""Of the vectors that are asked about, about: a sine or a part of the cosine is not the cosine."""
_LENGTHS = ((0.5, 1.0, 2.0), (1.0, 2.0, 0.5, 1.5, 0.7))


def similarity_of(score: Callable[[Any, Any], Any], dimension: int | None = None) -> Similarity | None:
    """The similarity that a score function is, found by asking it; what it is called can mislead.

    Args:
        score: from embeddings [n, dim] and [m, dim] to scores [n, m].
        dimension: of the embeddings it is for, where that is known; it is asked about these too.

    Returns:
        None if it is none of those that are computed here, or takes no embeddings but its own.
    """
    found = {_at(score, length) for length in {_LONGEST, dimension or _LONGEST}}
    return found.pop() if len(found) == 1 else None


def _at(score: Callable[[Any, Any], Any], dimension: int) -> Similarity | None:
    left, right = _asked(dimension)
    try:
        own = torch.as_tensor(score(left.clone(), right.clone())).detach().float().cpu()
    except Exception:  # code of the user; the harness itself runs it on what it is for
        return None
    for similarity in Similarity:
        ours = torch.empty(len(left), len(right))
        prepared = [prepare(part, similarity, torch.device("cpu")) for part in (left, right)]
        scores_from_products(prepared[0], prepared[1], similarity, out=ours)
        if own.shape == ours.shape and torch.allclose(own, ours, atol=1e-5):
            return similarity
    return None


def _asked(dimension: int) -> tuple[Tensor, Tensor]:
    """Vectors of several lengths, at several angles, with nothing that is 0 in them."""
    rng = np.random.default_rng(0)
    lengths = [np.array(part)[:, None] for part in _LENGTHS]
    cosines = np.array(_COSINES)[:, None]
    units, others = (rng.normal(size=(len(part), dimension)) for part in lengths)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    others = cosines * units[np.arange(len(others)) % len(units)] + np.sqrt(1 - cosines**2) * others
    left, right = (
        torch.from_numpy((length * part).astype(np.float32))
        for length, part in zip(lengths, (units, others), strict=True)
    )
    return left, right
