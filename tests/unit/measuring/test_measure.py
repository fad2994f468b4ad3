"""One flow on a model of one layer: what is encoded by which arm, what is kept, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from quantdrift.base.errors import UnsupportedError
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Noise
from quantdrift.measuring.flow import Measured, noise_of_scores
from quantdrift.measuring.readings import Search
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.streamed import score_matrix
from support.worlds import Rower, World

N_QUERIES, N_DOCS = 6, 30


def world(scheme: str = "W2") -> World:
    generator = torch.Generator().manual_seed(1)
    return World(scheme, {role: torch.randn(n, 8, generator=generator) for role, n in sizes().items()})


def sizes() -> dict[str, int]:
    return {"query": N_QUERIES, "document": N_DOCS}


def measure(toy: World, store: Path | None = None, settings: Any = None, **reading: Any) -> Measured:
    search = Search(queries=toy.inputs("query"), documents=toy.inputs("document"), similarity=Similarity.DOT, **reading)
    return toy.measure(search, store=store, **(settings or {}))[0]


@pytest.mark.parametrize("scheme", ["W2", "W2+query"])
def test_the_evidence_is_that_of_the_whole_matrices(scheme: str) -> None:
    toy = world(scheme)
    evidence = measure(toy, settings={"noise_floor": False}).evidence
    (queries, low_queries), (documents, low_documents) = toy.arms("query"), toy.arms("document")
    reference = queries @ documents.T
    candidate = low_queries @ (documents if "query" in scheme else low_documents).T
    np.testing.assert_allclose(perturbation.epsilon(evidence), np.abs(candidate - reference).max(axis=1), rtol=1e-4)
    for top, scores in ((evidence.reference_top, reference), (evidence.candidate_top, candidate)):
        names = [[evidence.item_ids[item] for item in row] for row in top.items.tolist()]
        wanted = np.argsort(-scores, axis=1)[:, :5]
        assert names == [[f"d{item}" for item in row] for row in wanted.tolist()]
    assert perturbation.flips(evidence).any()
    assert torch.equal(toy.layer.weight, toy.full)
    assert evidence.noise is None


def test_the_second_run_encodes_nothing_but_what_is_tried_out(tmp_path: Path) -> None:
    first, second, other = world(), world(), world("W3")
    before, after = measure(first, tmp_path), measure(second, tmp_path)
    assert [len(rows) for *_, rows, _ in second.calls] == [2, 2]
    assert before.evidence.delta_max.tolist() == after.evidence.delta_max.tolist()
    measure(other, tmp_path)  # another scheme shares the reference
    assert (other.encoded("reference", "document"), other.encoded("candidate", "document")) == (2, N_DOCS)


def test_a_candidate_that_no_output_depends_on_is_refused() -> None:
    """Its changes would be 0.0 %, with an interval, of a model that nothing was done to."""
    toy = world()
    toy.pair.encoder = Rower(lambda role, rows, _: toy.texts[role][rows].numpy())
    with pytest.raises(UnsupportedError, match=r"model .*W2-g128-rtn"):
        measure(toy)


def test_noise_of_batching_is_found_and_is_the_references() -> None:
    """Documents come out differently when they are run in batches of another size."""
    toy, rng = world(), np.random.default_rng(0)

    def noisy(arm: str, role: str, vectors: NDArray[np.float32]) -> None:
        if role == "document" and toy.calls[-1][3] != 4:
            vectors += rng.standard_normal(vectors.shape).astype(np.float32)

    toy.after = noisy
    noise = measure(toy, settings={"seed": 1}).evidence.noise
    assert noise is not None
    assert noise.flips.any()
    assert noise.epsilon.min() > 0
    assert all(arm == "reference" for arm, _, _, size in toy.calls if size != 4)


def test_a_sample_and_what_is_within_its_reach_is_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every score moves by 0.005 in the second run, which swaps exactly the close pairs of documents."""
    n = 300
    gaps = np.where(np.arange(n) % 3 == 0, 0.005, 0.5).astype(np.float32)
    toy = World("W2", {"query": torch.eye(8)[:1].repeat(n, 1), "document": torch.zeros(2, 8)})
    scores = np.stack([gaps, np.zeros(n, dtype=np.float32)], axis=1)
    reading = Search(queries=toy.inputs("query"), documents=toy.inputs("document"), similarity=Similarity.DOT)
    state = score_matrix(scores, scores, k=2)
    asked: list[tuple[list[int], int]] = []

    def moved(_: Any, state: Any, once: Any, again: Any, rows: Any, depth: int) -> Noise:
        del once, again
        asked.append((rows.tolist(), depth))
        second = scores[rows] + np.array([-0.005, 0.005])
        return noise_of_scores(scores[rows].astype(np.float64), second, state.reference_top()[0][rows])

    monkeypatch.setattr(Search, "noise", moved)
    flow = toy.flow()
    noise, record = flow._noise(reading, state, toy.arms("query"), "")
    assert [(len(rows), depth) for rows, depth in asked] == [(64, 2), (record["within_reach"], 10)]
    assert asked[1][0] == [row for row in range(n) if gaps[row] < 0.04]
    assert record["reach"] == pytest.approx(0.02, rel=1e-4)
    assert noise.flips.tolist() == (gaps < 0.01).tolist()
    assert noise.epsilon.min() > 0
