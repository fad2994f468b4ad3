"""Which score functions are computed here, and which are left to beir's own search."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("beir", reason="beir is not installed")

from beir.retrieval.search.dense.util import cos_sim, dot_score

from quantdrift.scoring import Similarity
from quantdrift_beir.search import similarity_of

Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.mark.parametrize(
    ("score", "expected"), [(cos_sim, Similarity.COSINE), (dot_score, Similarity.DOT)]
)
def test_those_of_beir_are_known(score: Score, expected: Similarity) -> None:
    assert similarity_of(score) is expected


@pytest.mark.parametrize("length", [64, 256, 1024, 4096])
@pytest.mark.parametrize("score", [cos_sim, dot_score])
def test_of_embeddings_that_are_cut_short_it_is_another(score: Score, length: int) -> None:
    assert similarity_of(lambda one, other: score(one[:, :length], other[:, :length])) is None


def test_one_that_takes_embeddings_of_its_model_only_is_another() -> None:
    def score(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        assert one.shape[1] == 384
        return cos_sim(one, other)

    assert similarity_of(score) is None


def test_a_multiple_is_another() -> None:
    assert similarity_of(lambda one, other: 20 * cos_sim(one, other)) is None
