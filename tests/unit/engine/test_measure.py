"""One flow on a model of one layer: what is encoded by which arm, what is kept, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.engine.inputs import text_inputs
from quantdrift.engine.measure import Measured
from quantdrift.engine.readings import Search
from quantdrift.engine.scoring.streamed import Similarity
from quantdrift.errors import DataError, ScoreError
from support.worlds import World, rows_of

N_QUERIES, N_DOCS = 6, 30


def world(scheme: str = "W2") -> World:
    generator = torch.Generator().manual_seed(1)
    return World(scheme, {role: torch.randn(n, 8, generator=generator) for role, n in sizes().items()})


def sizes() -> dict[str, int]:
    return {"query": N_QUERIES, "document": N_DOCS}


def measure(one: World, store: Path | None = None, settings: Any = None, **reading: Any) -> Measured:
    search = Search(queries=one.inputs("query"), documents=one.inputs("document"), similarity=Similarity.DOT, **reading)
    return one.measure(search, store=store, **(settings or {}))[0]


@pytest.mark.parametrize("scheme", ["W2", "W2+query"])
def test_the_evidence_is_that_of_the_whole_matrices(scheme: str) -> None:
    one = world(scheme)
    evidence = measure(one, settings={"noise_floor": False}).evidence
    (queries, low_queries), (documents, low_documents) = one.arms("query"), one.arms("document")
    reference = queries @ documents.T
    candidate = low_queries @ (documents if "query" in scheme else low_documents).T
    np.testing.assert_allclose(perturbation.epsilon(evidence), np.abs(candidate - reference).max(axis=1), rtol=1e-4)
    for top, scores in ((evidence.reference_top, reference), (evidence.candidate_top, candidate)):
        names = [[evidence.item_ids[item] for item in row] for row in top.items.tolist()]
        wanted = np.argsort(-scores, axis=1)[:, :5]
        assert names == [[f"d{item}" for item in row] for row in wanted.tolist()]
    assert perturbation.flips(evidence).any()
    assert torch.equal(one.layer.weight, one.full)
    assert evidence.noise is None


def test_each_arm_encodes_each_input_once_and_two_are_tried_out() -> None:
    one = world()
    measured = measure(one, settings={"noise_floor": False})
    for role, n in sizes().items():
        assert one.encoded("reference", role) == n + 2
        assert one.encoded("candidate", role) == n
    assert {size for *_, size in one.calls} == {4}
    assert one.pair.never_reached == []
    with one.pair.candidate():
        assert measured.candidate_fingerprint == one.pair.candidate_fingerprint()
    assert measured.candidate_fingerprint != measured.fingerprint == one.pair.fingerprint


def test_with_query_only_the_index_stays_at_the_reference() -> None:
    one = world("W2+query")
    measure(one)
    assert one.encoded("candidate", "query") == N_QUERIES
    assert one.encoded("candidate", "document") == 0
    assert one.encoded("reference", "document") == N_DOCS + 2  # the noise floor has no share in it


def test_the_longest_inputs_come_first_and_a_part_is_a_side() -> None:
    side = text_inputs(["aaa", "a" * 9, "aab", "a" * 7], role="query")
    assert side.order().tolist() == [1, 3, 0, 2]
    assert rows_of("query", 3).order().tolist() == [0, 1, 2]
    part = side.part(np.array([3, 1])).part(np.array([1]))
    assert (list(part.items), part.ids) == (["a" * 9], ["1"])
    assert part.digest == side.part(np.array([1])).digest
    others = [side, side.part(np.array([1, 3])), side.part(np.array([3, 1])), part]
    assert len({str(one.digest) for one in others}) == len(others)
    assert rows_of("query", 3).part(np.array([1])).digest is None


# --- what is kept -----------------------------------------------------------------------------------


def test_the_second_run_encodes_nothing_but_what_is_tried_out(tmp_path: Path) -> None:
    first, second, other = world(), world(), world("W3")
    one, two = measure(first, tmp_path), measure(second, tmp_path)
    assert [len(rows) for *_, rows, _ in second.calls] == [2, 2]
    assert one.evidence.delta_max.tolist() == two.evidence.delta_max.tolist()
    measure(other, tmp_path)  # another scheme shares the reference
    assert other.encoded("reference", "document") == 2
    assert other.encoded("candidate", "document") == N_DOCS


def test_other_weights_inputs_or_batches_are_encoded_anew(tmp_path: Path) -> None:
    measure(world(), tmp_path)
    weights, texts, settings, known = world(), world(), world(), world()
    with torch.no_grad():
        weights.layer.weight[0, 0] += 1
    weights.full = weights.layer.weight.detach().clone()
    texts.fingerprint = "of other texts"
    known.encoder.known = {"prompt": "another"}
    for one in (weights, texts, known):
        measure(one, tmp_path)
    measure(settings, tmp_path, settings={"batch_size": 8})
    for one in (weights, texts, settings, known):
        assert one.encoded("reference", "query") >= N_QUERIES


def test_what_cannot_be_told_apart_is_not_kept(tmp_path: Path) -> None:
    one = world()
    one.encoder.known = None
    measure(one, tmp_path)
    assert not list(tmp_path.iterdir())


# --- the noise floor --------------------------------------------------------------------------------


def test_a_model_without_noise_has_a_floor_of_zero() -> None:
    noise = measure(world()).evidence.noise
    assert noise is not None
    assert not noise.flips.any()
    assert noise.epsilon.max() < 1e-5


def test_noise_of_batching_is_found_and_is_the_references() -> None:
    """Documents come out differently when they are run in batches of another size."""
    one, rng = world(), np.random.default_rng(0)

    def noisy(arm: str, role: str, vectors: NDArray[np.float32]) -> None:
        if role == "document" and one.calls[-1][3] != 4:
            vectors += rng.standard_normal(vectors.shape).astype(np.float32)

    one.after = noisy
    noise = measure(one, settings={"seed": 1}).evidence.noise
    assert noise is not None
    assert noise.flips.any()
    assert noise.epsilon.min() > 0
    assert all(arm == "reference" for arm, _, _, size in one.calls if size != 4)


# --- self-matches, depth, bad input -----------------------------------------------------------------


def test_excluded_documents_and_depth() -> None:
    plain = measure(world()).evidence
    first = [int(plain.item_ids[item][1:]) for item in plain.reference_top.items[:, 0]]
    measured = measure(world(), excluded=np.array(first), depth=2)
    again = measured.evidence
    names = [again.item_ids[item] for item in again.reference_top.items[:, 0]]
    assert names == [plain.item_ids[item] for item in plain.reference_top.items[:, 1]]
    assert again.n_items.tolist() == [N_DOCS - 1] * N_QUERIES
    assert again.depth == 2
    assert measured.state.reference_keys.shape == (N_QUERIES, 5)


@pytest.mark.parametrize("role", ["query", "document"])
def test_nothing_to_rank(role: str) -> None:
    one = world()
    one.texts[role] = one.texts[role][:0]
    with pytest.raises(DataError, match="nothing to rank"):
        measure(one)


@pytest.mark.parametrize("arm", ["reference", "candidate"])
def test_an_embedding_that_is_not_finite(arm: str, tmp_path: Path) -> None:
    one = world()

    def broken(now: str, role: str, vectors: NDArray[np.float32]) -> None:
        if (now, role) == (arm, "document") and len(vectors) > 2:
            vectors[3, 1] = np.nan

    one.after = broken
    with pytest.raises(ScoreError, match=f"the {arm} model's embedding of document 'd3' holds NaN"):
        measure(one, tmp_path)
    assert torch.equal(one.layer.weight, one.full)  # also out of the candidate


def test_one_query_and_one_document() -> None:
    one = world()
    one.texts = {role: texts[:1] for role, texts in one.texts.items()}
    evidence = measure(one).evidence
    assert evidence.n_items.tolist() == [1]
    assert evidence.noise is not None
    assert np.isnan(perturbation.gap(evidence)).all()
