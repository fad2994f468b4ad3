"""Which score functions are computed here, and which are left to beir's own search."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("beir", reason="beir is not installed")

from beir.retrieval.search.dense.util import cos_sim, dot_score

from quantdrift.harness import similarity_of
from quantdrift.scoring.similarity import Similarity

Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.mark.parametrize(
    "bend", [lambda cosine: 20 * cosine, torch.sin, torch.tanh, torch.relu, lambda cosine: cosine.abs()]
)
@pytest.mark.parametrize("score", [cos_sim, dot_score])
def test_one_that_is_bent_or_a_multiple_is_another(score: Score, bend: Any) -> None:
    assert similarity_of(lambda left, right: bend(score(left, right))) is None


@pytest.mark.parametrize("dimension", [1, 2, 32, 384, 4096, 20_000])
def test_those_that_are_known_are_known_at_every_dimension(dimension: int) -> None:
    def euclidean(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return -torch.cdist(left.double(), right.double())

    assert similarity_of(cos_sim, dimension) is Similarity.COSINE
    assert similarity_of(dot_score, dimension) is Similarity.DOT
    assert similarity_of(euclidean, dimension) is Similarity.EUCLIDEAN
