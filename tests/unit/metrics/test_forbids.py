"""What forbids a verdict, by hand."""

from collections.abc import Mapping

import numpy as np
import pytest

from quantdrift.api import Embeddings, drift
from quantdrift.metrics.forbids import forbidding

N, N_DOCS = 40, 200
RNG = np.random.default_rng(0)
QUERIES, DOCUMENTS = RNG.normal(size=(N, 16)), RNG.normal(size=(N_DOCS, 16))
FULL = Embeddings(QUERIES, DOCUMENTS)
FOUND = {str(row): {str(best): 1} for row, best in enumerate((QUERIES @ DOCUMENTS.T).argmax(axis=1))}
"""The first answer of every query by inner product."""
ONES = np.ones((N, 16))


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize(
    ("candidate", "codes"),
    [
        (Embeddings(QUERIES + 0.01, DOCUMENTS), set()),
        (Embeddings(0 * QUERIES, 0 * DOCUMENTS), {"candidate_constant"}),
        (Embeddings(QUERIES, np.ones_like(DOCUMENTS)), {"candidate_constant"}),
        (Embeddings(ONES, DOCUMENTS), {"candidate_constant"}),
        (Embeddings(QUERIES, np.full(DOCUMENTS.shape, -128, dtype=np.int8)), {"candidate_constant"}),
    ],
)
def test_embeddings_that_are_all_the_same_are_said(candidate: Embeddings, codes: set[str], similarity: str) -> None:
    data = drift(FULL, candidate, similarity=similarity).record["data"]
    assert data.get("forbids", {}).keys() == codes
    assert set(data.get("forbids", {}).values()) <= set(data["warnings"])
    assert any("duplicates" in note for note in data["warnings"]) == bool(codes)


def test_the_reference_too_and_scores_and_logits() -> None:
    scores = QUERIES @ DOCUMENTS.T
    assert drift(0 * scores, scores).record["data"]["forbids"].keys() == {"reference_constant"}
    classes = [str(n) for n in range(N_DOCS)]
    assert drift(scores, 0 * scores, classes=classes).record["data"]["forbids"].keys() == {"candidate_constant"}


def test_few_inputs_may_have_the_same_answers() -> None:
    scores = np.tile(np.arange(5.0), (9, 1))
    assert not forbidding(drift(scores, scores).evidence())
    scores = np.tile(np.arange(5.0), (10, 1))
    assert forbidding(drift(scores, scores).evidence()).keys() == {"reference_constant", "candidate_constant"}


@pytest.mark.parametrize(
    ("qrels", "near"),
    [
        (FOUND, False),
        ({row: {str((int(item) + 1) % N_DOCS): 1} for row, (item,) in FOUND.items()}, True),
        (dict(list(FOUND.items())[:1]), False),  # one of one, where chance has one of 20
        ({row: {str(item): 1 for item in range(N_DOCS)} for row in FOUND}, False),  # nothing can be missed
        ({}, False),
    ],
)
def test_a_reference_near_chance_is_said(qrels: Mapping[str, Mapping[str, int]], near: bool) -> None:
    candidate = Embeddings(QUERIES + 0.01, DOCUMENTS)
    data = drift(FULL, candidate, qrels=qrels, similarity="dot").record["data"]
    assert ("reference_near_chance" in data.get("forbids", {})) == near


@pytest.mark.parametrize(("right", "near"), [(13, True), (14, False)])
def test_of_two_classes_half_is_chance(right: int, near: bool) -> None:
    """Of 20 inputs 10 by chance, with a standard deviation of sqrt(5): from 10 + 1.645 * 2.236 = 13.7 on it is more."""
    logits = RNG.normal(size=(20, 2))
    labels = [int(first) if row < right else 1 - int(first) for row, first in enumerate(logits.argmax(axis=1))]
    run = drift(logits, logits + 0.01, classes=["0", "1"], labels=labels)
    assert ("reference_near_chance" in run.record["data"].get("forbids", {})) == near
