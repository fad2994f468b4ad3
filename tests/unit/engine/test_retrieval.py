"""The job on a model of one layer: what is encoded by which arm, what is kept, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from quantdrift import perturbation
from quantdrift.engine.inputs import Inputs
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.quantizers.rtn import quantize_rtn
from quantdrift.engine.scoring.streamed import Similarity
from quantdrift.engine.search import Measured, Settings, measure_retrieval
from quantdrift.engine.store import EmbeddingStore
from quantdrift.errors import DataError, ScoreError
from quantdrift.progress import Silent
from quantdrift.spec import parse_scheme

N_QUERIES, N_DOCS = 6, 30


class World:
    """A linear encoder, its inputs, and a record of what it was asked to encode."""

    def __init__(self, scheme: str = "W2") -> None:
        generator = torch.Generator().manual_seed(0)
        self.layer = nn.Linear(8, 4, bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(4, 8, generator=generator))
        self.texts = {
            "query": torch.randn(N_QUERIES, 8, generator=generator),
            "document": torch.randn(N_DOCS, 8, generator=generator),
        }
        self.full = self.layer.weight.detach().clone()
        self.pair = QuantizedPair([self.layer], parse_scheme(scheme))
        self.fingerprint = "of the texts"
        self.calls: list[tuple[str, str, list[int], int]] = []
        self.after: Callable[[str, str, NDArray[np.float32]], None] = lambda *_: None

    def inputs(self, role: str, *, key: bool = True, lengths: Any = None) -> Inputs:
        def encode(rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
            arm = "reference" if torch.equal(self.layer.weight, self.full) else "candidate"
            self.calls.append((arm, role, rows.tolist(), batch_size))
            vectors = self.layer(self.texts[role][rows]).detach().numpy().copy()
            self.after(arm, role, vectors)
            return np.asarray(vectors)

        ids = [f"{role[0]}{number}" for number in range(len(self.texts[role]))]
        return Inputs(
            role=role, ids=ids, encode=encode, key={"texts": self.fingerprint} if key else None, lengths=lengths
        )

    def measure(self, *, key: bool = True, store: Path | None = None, **options: Any) -> Measured:
        settings = options.pop("settings", Settings(k=5, batch_size=4))
        return measure_retrieval(
            self.pair,
            self.inputs("query", key=key),
            self.inputs("document", key=key),
            similarity=Similarity.DOT,
            settings=settings,
            store=EmbeddingStore(store),
            progress=Silent(),
            **options,
        )

    def encoded(self, arm: str, role: str) -> int:
        """How many inputs went through, beside the two that are tried out on either side."""
        probes = {"reference": 2, "candidate": 0}[arm]
        return sum(len(rows) for a, r, rows, _ in self.calls if (a, r) == (arm, role)) - probes


def dense(world: World, *, query_only: bool) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    low = quantize_rtn(world.full, bits=2, group_size=128).dequantize(torch.float32)
    queries, documents = world.texts["query"], world.texts["document"]
    candidate_documents = documents @ (world.full if query_only else low).T
    reference = (queries @ world.full.T) @ (documents @ world.full.T).T
    return reference.numpy(), ((queries @ low.T) @ candidate_documents.T).numpy()


@pytest.mark.parametrize("scheme", ["W2", "W2+query"])
def test_the_evidence_is_that_of_the_whole_matrices(scheme: str) -> None:
    world = World(scheme)
    evidence = world.measure(settings=Settings(k=5, noise_floor=False)).evidence
    reference, candidate = dense(world, query_only="query" in scheme)
    found = perturbation.epsilon(evidence)
    np.testing.assert_allclose(found, np.abs(candidate - reference).max(axis=1), rtol=1e-4)
    for top, scores in ((evidence.reference_top, reference), (evidence.candidate_top, candidate)):
        names = [[evidence.item_ids[item] for item in row] for row in top.items.tolist()]
        wanted = np.argsort(-scores, axis=1)[:, :5]
        assert names == [[f"d{item}" for item in row] for row in wanted.tolist()]
    assert perturbation.flips(evidence).any()
    assert torch.equal(world.layer.weight, world.full)


def test_the_digest_of_the_measured_candidate_comes_with_the_evidence() -> None:
    world = World("W2")
    found = world.measure()
    with world.pair.candidate():
        assert found.candidate_fingerprint == world.pair.candidate_fingerprint()
    assert found.candidate_fingerprint != found.fingerprint
    assert World("W3").measure().candidate_fingerprint != found.candidate_fingerprint


def test_each_arm_encodes_each_input_once() -> None:
    world = World()
    world.measure(settings=Settings(k=5, batch_size=4, noise_floor=False))
    for arm in ("reference", "candidate"):
        assert world.encoded(arm, "query") == N_QUERIES
        assert world.encoded(arm, "document") == N_DOCS
    assert {size for *_, size in world.calls} == {4}
    assert world.pair.never_reached == []


def test_with_query_only_the_index_stays_at_the_reference() -> None:
    world = World("W2+query")
    world.measure()
    assert world.encoded("candidate", "query") == N_QUERIES
    assert world.encoded("candidate", "document") == 0
    assert world.encoded("reference", "document") == N_DOCS  # the noise floor has no share in it


def test_the_longest_inputs_come_first() -> None:
    lengths = np.array([3, 9, 3, 7])
    side = World().inputs("query", lengths=lengths)
    assert side.order().tolist() == [1, 3, 0, 2]
    assert World().inputs("query").order().tolist() == list(range(N_QUERIES))


def test_a_part_of_a_side_is_a_side() -> None:
    world = World()
    side = world.inputs("document")
    part = side.part(np.array([7, 3]))
    assert part.ids == ["d7", "d3"]
    np.testing.assert_array_equal(part.encode(np.array([1]), 4), side.encode(np.array([3]), 4))
    assert part.key != side.key
    assert part.key != side.part(np.array([3, 7])).key
    assert world.inputs("document", key=False).part(np.array([1])).key is None


# --- what is kept ------------------------------------------------------------------------------


def test_the_second_run_encodes_nothing_but_the_probe(tmp_path: Path) -> None:
    first, second, other = World(), World(), World("W3")
    one, two = first.measure(store=tmp_path), second.measure(store=tmp_path)
    assert [len(rows) for *_, rows, _ in second.calls] == [2, 2]
    assert one.evidence.delta_max.tolist() == two.evidence.delta_max.tolist()
    other.measure(store=tmp_path)  # another scheme shares the reference
    assert other.encoded("reference", "document") == 0
    assert other.encoded("candidate", "document") == N_DOCS


def test_other_weights_inputs_or_batches_are_encoded_anew(tmp_path: Path) -> None:
    World().measure(store=tmp_path)
    changed = World()
    with torch.no_grad():
        changed.layer.weight[0, 0] += 1
    changed.full = changed.layer.weight.detach().clone()
    changed.measure(store=tmp_path)
    batches = World()
    batches.measure(store=tmp_path, settings=Settings(k=5, batch_size=8))
    texts = World()
    texts.fingerprint = "of other texts"
    texts.measure(store=tmp_path)
    for world in (changed, batches, texts):
        assert world.encoded("reference", "query") >= N_QUERIES


def test_what_cannot_be_told_apart_is_not_kept(tmp_path: Path) -> None:
    World().measure(key=False, store=tmp_path)
    assert not list(tmp_path.iterdir())


# --- noise floor -------------------------------------------------------------------------------


def test_a_model_without_noise_has_a_floor_of_zero() -> None:
    noise = World().measure().evidence.noise
    assert noise is not None
    assert not noise.flips.any()
    assert noise.epsilon.max() < 1e-5


def test_noise_of_batching_is_found() -> None:
    """Documents come out differently when they are run in batches of another size."""
    world, rng = World(), np.random.default_rng(0)

    def noisy(arm: str, role: str, vectors: NDArray[np.float32]) -> None:
        if role == "document" and world.calls[-1][3] != 4:
            vectors += rng.standard_normal(vectors.shape).astype(np.float32)

    world.after = noisy
    noise = world.measure(settings=Settings(k=5, batch_size=4, seed=1)).evidence.noise
    assert noise is not None
    assert noise.flips.any()
    assert noise.epsilon.min() > 0
    assert all(arm == "reference" for arm, _, _, size in world.calls if size != 4)


def test_the_noise_floor_can_be_left_out() -> None:
    world = World()
    assert world.measure(settings=Settings(k=5, noise_floor=False)).evidence.noise is None


# --- self-matches, depth, bad input ------------------------------------------------------------


def test_excluded_documents_and_depth() -> None:
    plain = World().measure().evidence
    first = [int(plain.item_ids[item][1:]) for item in plain.reference_top.items[:, 0]]
    measured = World().measure(excluded=np.array(first), depth=2)
    again = measured.evidence
    names = [again.item_ids[item] for item in again.reference_top.items[:, 0]]
    seconds = [plain.item_ids[item] for item in plain.reference_top.items[:, 1]]
    assert names == seconds
    assert again.n_items.tolist() == [N_DOCS - 1] * N_QUERIES
    assert again.depth == 2
    assert measured.state.reference_keys.shape == (N_QUERIES, 5)


@pytest.mark.parametrize("role", ["query", "document"])
def test_nothing_to_rank(role: str) -> None:
    world = World()
    world.texts[role] = world.texts[role][:0]
    with pytest.raises(DataError, match="nothing to rank"):
        world.measure()


@pytest.mark.parametrize("arm", ["reference", "candidate"])
def test_an_embedding_that_is_not_finite(arm: str, tmp_path: Path) -> None:
    world = World()

    def broken(now: str, role: str, vectors: NDArray[np.float32]) -> None:
        if (now, role) == (arm, "document") and len(vectors) > 2:
            vectors[3, 1] = np.nan

    world.after = broken
    with pytest.raises(ScoreError, match=f"the {arm} model's embedding of document 'd3' holds NaN"):
        world.measure(store=tmp_path)
    assert torch.equal(world.layer.weight, world.full)  # also out of the candidate


def test_one_query_and_one_document() -> None:
    world = World()
    world.texts = {role: texts[:1] for role, texts in world.texts.items()}
    evidence = world.measure().evidence
    assert evidence.n_items.tolist() == [1]
    assert evidence.noise is not None
    assert np.isnan(perturbation.gap(evidence)).all()
