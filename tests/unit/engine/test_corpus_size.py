"""Corpus sizes: which are taken, which documents they hold, and what is measured at each."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from quantdrift.compare.corpus_size import SizeEffect, compare_sizes
from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.engine.inputs import Inputs
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.scoring.streamed import Similarity, score_matrix
from quantdrift.engine.search import Job, Settings, assemble, measure_retrieval
from quantdrift.engine.sizes import (
    check_sizes,
    default_sizes,
    folder_of,
    measure_sizes,
    nested_subsets,
    parse_sizes,
    relevant_inside,
)
from quantdrift.engine.store import EmbeddingStore
from quantdrift.errors import DataError, RunError
from quantdrift.evidence import Evidence
from quantdrift.progress import Silent
from quantdrift.spec import parse_scheme
from quantdrift.statistics import Estimate

# --- which sizes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("250,1000,all", (250, 1000, 1400)), (" 250 , all ", (250, 1400)), ("1,2", (1, 2)), ("7,1400", (7, 1400))],
)
def test_sizes_as_typed(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text, 1400) == sizes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("250,1401", "the corpus has 1400 documents; got size 1401"),
        ("0,10", "at least 1 document; got sizes 0, 10"),
        ("-5,10", "expected numbers of documents or 'all'.* got '-5'"),
        ("1e3,all", "got '1e3'"),
        ("250,,all", "got ''"),
        ("250,ALL", "got 'ALL'"),
        ("250,250,all", "rise, each once.*got 250, 250, 1400"),
        ("1000,250", "rise"),
        ("all,250", r"\('all' is 1400 here\)"),
        ("1400,all", "each once"),
        ("all", "at least two sizes of the corpus of 1400; got 1400"),
        ("²,all", "got '²'"),
    ],
)
def test_sizes_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        parse_sizes(text, 1400)


def test_no_sizes_at_all() -> None:
    with pytest.raises(DataError, match="got none"):
        check_sizes([], 10)


@pytest.mark.parametrize(
    ("n_documents", "sizes"),
    [
        (1400, (180, 350, 700, 1400)),  # 175 rounds half to even, to two digits
        (57638, (7200, 14000, 29000, 57638)),
        (300, (50, 75, 150, 300)),
        (100, (50, 100)),
        (60, (50, 60)),
        (51, (50, 51)),
    ],
)
def test_default_sizes(n_documents: int, sizes: tuple[int, ...]) -> None:
    assert default_sizes(n_documents) == sizes


def test_a_corpus_too_small_for_default_sizes() -> None:
    with pytest.raises(DataError, match=r"a corpus of 50 .* too small .* --sizes 25,all"):
        default_sizes(50)


# --- which documents ---------------------------------------------------------------------------


def test_subsets_are_seeded_and_not_the_first_documents() -> None:
    small, large = nested_subsets(1000, [100, 1000], seed=0)
    assert large.tolist() == list(range(1000))
    assert small.tolist() == nested_subsets(1000, [100, 500], seed=0)[0].tolist()
    assert small.tolist() != nested_subsets(1000, [100, 500], seed=1)[0].tolist()
    assert 300 < small.mean() < 700  # from everywhere


def test_folders_sort_as_sizes_do() -> None:
    names = [folder_of(size, 1_000_000) for size in (5, 1000, 1_000_000)]
    assert names == sorted(names) == ["docs-0000005", "docs-0001000", "docs-1000000"]


def test_relevant_documents_inside() -> None:
    dataset = RetrievalDataset(
        name="five",
        query_ids=("both", "one", "none", "unlabelled", "stray"),
        queries=("a", "b", "c", "d", "e"),
        document_ids=("d0", "d1", "d2", "d3"),
        documents=("w", "x", "y", "z"),
        qrels={
            "both": {"d0": 1, "d2": 2, "d1": 0},  # grade 0 is not relevant
            "one": {"d0": 1, "d3": 1},
            "none": {"d1": 1},
            "stray": {"elsewhere": 1},
        },
        split="test",
    )
    assert relevant_inside(dataset, np.array([0, 2])) == {"all": 1, "some": 1, "none": 1}
    assert relevant_inside(dataset, np.arange(4)) == {"all": 3, "some": 0, "none": 0}


# --- what is measured --------------------------------------------------------------------------

N_QUERIES, N_DOCS, DIM = 7, 2600, 24  # more documents than two tiles hold


class World:
    """A linear encoder over random inputs, some of them twice, and a count of what it encoded."""

    def __init__(self, scheme: str = "W3", similarity: Similarity = Similarity.COSINE) -> None:
        rng = np.random.default_rng(5)
        layer = nn.Linear(16, DIM, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(rng.standard_normal((DIM, 16))))
        documents = rng.standard_normal((N_DOCS, 16)).astype(np.float32)
        documents[1::5] = documents[rng.integers(0, N_DOCS, len(documents[1::5]))]
        # near some documents, so that those and their copies tie at the top
        queries = documents[1 : 5 * N_QUERIES : 5] * 2
        self.layer, self.similarity = layer, similarity
        self.inputs = {"query": queries, "document": documents}
        self.pair = QuantizedPair([layer], parse_scheme(scheme))
        self.encoded: dict[tuple[str, int], int] = {}

    def side(self, role: str) -> Inputs:
        def encode(rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
            key = role, batch_size
            self.encoded[key] = self.encoded.get(key, 0) + len(rows)
            found = self.layer(torch.from_numpy(self.inputs[role][rows]))
            return np.asarray(found.detach().numpy())

        ids = [f"{role[0]}{number}" for number in range(len(self.inputs[role]))]
        return Inputs(role=role, ids=ids, encode=encode, key=None)

    def job(self, settings: Settings) -> Job:
        return Job(
            pair=self.pair,
            queries=self.side("query"),
            documents=self.side("document"),
            similarity=self.similarity,
            settings=settings,
            store=EmbeddingStore(None),
            progress=Silent(),
        )


def flat(evidence: Any) -> dict[str, Any]:
    """Every array of the evidence by name."""
    found: dict[str, Any] = {}
    for field in fields(evidence):
        value = getattr(evidence, field.name)
        if hasattr(value, "__dataclass_fields__"):
            found |= {f"{field.name}.{name}": part for name, part in flat(value).items()}
        else:
            found[field.name] = value
    return found


def assert_same(one: Evidence, other: Evidence) -> None:
    left, right = flat(one), flat(other)
    assert left.keys() == right.keys()
    for name, values in left.items():
        if isinstance(values, np.ndarray):
            assert values.dtype == right[name].dtype, name
            np.testing.assert_array_equal(values, right[name], err_msg=name)
        else:
            assert not isinstance(right[name], np.ndarray), name
            assert values == right[name], name


@pytest.mark.parametrize("noise_floor", [False, True])
@pytest.mark.parametrize("similarity", list(Similarity))
@pytest.mark.parametrize("scheme", ["W3", "W3+query"])
def test_all_is_the_plain_run_bit_for_bit(scheme: str, similarity: Similarity, noise_floor: bool) -> None:
    settings = Settings(k=20, batch_size=64, noise_floor=noise_floor)
    qrels = {"q0": {"d1": 1, "elsewhere": 2}, "q3": {"d2599": 1}}
    job = World(scheme, similarity).job(settings)
    *_, whole = measure_sizes(job, nested_subsets(N_DOCS, [9, 30, 1500, N_DOCS], seed=3), qrels=qrels)
    plain = World(scheme, similarity).job(settings)
    expected = measure_retrieval(
        plain.pair,
        plain.queries,
        plain.documents,
        similarity=similarity,
        settings=settings,
        store=plain.store,
        progress=plain.progress,
        qrels=qrels,
    )
    top = expected.evidence.reference_top.reference_scores
    assert (top[:, 0] == top[:, 1]).any()  # ties are in it
    assert (whole.evidence.noise is not None) == noise_floor
    assert_same(whole.evidence, expected.evidence)
    assert whole.fingerprint == expected.fingerprint


def test_every_document_is_encoded_once_by_each_arm() -> None:
    world = World()
    settings = Settings(k=20, batch_size=64, noise_floor=False)
    measure_sizes(world.job(settings), nested_subsets(N_DOCS, [10, 100, 1000], seed=0))
    assert world.encoded == {("query", 64): 2 * N_QUERIES + 2, ("document", 64): 2 * N_DOCS + 2}


def test_what_a_size_adds_is_all_that_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[int] = []
    score = Job.score

    def counted(self: Job, arms: Any, **rest: Any) -> Any:
        assert len(arms.reference[1]) == len(arms.candidate[1])
        scored.append(len(arms.reference[1]))
        return score(self, arms, **rest)

    monkeypatch.setattr(Job, "score", counted)
    job = World().job(Settings(k=20, batch_size=64, noise_floor=False))
    found = measure_sizes(job, nested_subsets(N_DOCS, [10, 100, 1000], seed=0))
    assert scored == [10, 90, 900]
    assert [one.evidence.n_items.tolist() for one in found] == [[size] * N_QUERIES for size in (10, 100, 1000)]
    assert [one.evidence.depth for one in found] == [10, 20, 20]


def test_the_noise_floor_is_that_of_the_largest_size() -> None:
    world = World()
    job = world.job(Settings(k=20, batch_size=64))
    small, large = measure_sizes(job, nested_subsets(N_DOCS, [10, 100], seed=0))
    assert small.evidence.noise is None
    assert large.evidence.noise is not None
    again = {key: count for key, count in world.encoded.items() if key[1] != 64}
    assert {role for role, _ in again} == {"query", "document"}
    assert sum(again.values()) <= N_QUERIES + 100


# --- what it says ------------------------------------------------------------------------------


def evidence_of(reference: list[list[float]], candidate: list[list[float]], ids: str = "abcdefgh") -> Evidence:
    scores = [np.array(rows, dtype=np.float32) for rows in (reference, candidate)]
    names = [f"d{number}" for number in range(scores[0].shape[1])]
    state = score_matrix(*scores, k=5)
    return assemble(state, input_ids=list(ids)[: len(reference)], item_ids=names)


def test_two_sizes_by_hand() -> None:
    """Queries a and e flip only in the larger corpus, b only in the smaller, c in both, d never."""
    near = [9, 1, 8.75], [8, 2, 9]
    small = evidence_of([[9, 1], [2, 1], [2, 1], [9, 1], [9, 1]], [[8, 2], [1, 2], [1, 2], [8, 1], [8, 2]])
    large = evidence_of(
        [near[0], [2, 1, 9], [2, 1, 0], [9, 1, 0], near[0]], [near[1], [1, 2, 9], [1, 2, 0], [8, 1, 0], near[1]]
    )
    effect = compare_sizes(small, large)
    assert (effect.small, effect.large, effect.n) == (2, 3, 5)
    assert (effect.flip_small, effect.flip_large) == (2, 3)
    assert (effect.only_small, effect.only_large, effect.p_flip) == (1, 2, 1.0)
    assert effect.change.value == pytest.approx(1 / 5)
    # gaps 8, 1, 1, 8, 8 and then 0.25, 7, 1, 8, 0.25; epsilon is 1 for every query at both sizes
    assert (effect.fell, effect.rose, effect.p_separation) == (2, 1, 1.0)
    assert effect.separation_small == 4
    assert effect.separation_large == 0.5
    assert effect.follows_separation is None


def test_what_the_separation_alone_would_give() -> None:
    """Of four queries with a ratio of 0.3 one flips, of two with a ratio of 2 none."""
    low, high = [10, 9.4], [10, 6]  # gaps of 0.6 and 4, and epsilon is 1
    kept, flipped = [10, 8.4], [9, 9.4]
    small = evidence_of([low] * 4 + [high] * 2, [flipped] + [kept] * 3 + [[9, 6]] * 2)
    large = evidence_of([low] * 3 + [high] * 3, [flipped] * 3 + [[9, 6]] * 3)
    effect = compare_sizes(small, large)
    assert effect.expected_large == pytest.approx(3 / 6 * 1 / 4)
    assert effect.change.value == pytest.approx(3 / 6 - 1 / 6)
    # the other way round, a query of the smaller has its like in the larger: three of three flip
    assert compare_sizes(large, small).expected_large == pytest.approx(4 / 6)
    alike = evidence_of([low] * 6, [kept] * 6)  # none of them tells how often a ratio of 2 flips
    assert compare_sizes(alike, large).expected_large is None


def test_one_document_has_no_separation_to_compare() -> None:
    effect = compare_sizes(evidence_of([[1], [1]], [[2], [1]]), evidence_of([[1, 0], [1, 0]], [[2, 0], [1, 0]]))
    assert (effect.fell, effect.rose, effect.p_separation) == (0, 0, 1.0)
    assert effect.separation_small is None
    assert effect.expected_large is None
    assert "from undefined to" in effect.explain()[1]


def test_other_queries_are_not_compared() -> None:
    one = evidence_of([[2, 1]], [[2, 1]], "a")
    with pytest.raises(RunError, match="same queries"):
        compare_sizes(one, evidence_of([[2, 1]], [[2, 1]], "b"))


def effect_of(only: tuple[int, int], p_flip: float, moved: tuple[int, int], p: float) -> SizeEffect:
    return SizeEffect(
        small=250,
        large=1400,
        n=200,
        flip_small=40 + only[0],
        flip_large=40 + only[1],
        only_small=only[0],
        only_large=only[1],
        p_flip=p_flip,
        change=Estimate(value=0.01, low=-0.02, high=0.04, n=200),
        expected_large=0.3,
        separation_small=0.2,
        separation_large=0.1,
        fell=moved[0],
        rose=moved[1],
        p_separation=p,
    )


@pytest.mark.parametrize(
    ("effect", "follows", "said"),
    [
        (effect_of((5, 30), 0.001, (150, 50), 0.001), True, "rises with the corpus, from 22.5 %"),
        (effect_of((30, 5), 0.001, (50, 150), 0.001), True, "is in line with the sep"),
        (effect_of((5, 30), 0.001, (50, 150), 0.001), False, "separation: it rose"),
        (effect_of((5, 30), 0.001, (90, 100), 0.5), False, "separation: it did not move"),
        (effect_of((5, 7), 0.7, (150, 50), 0.001), None, "The separation fell, but the flips"),
        (effect_of((5, 7), 0.7, (90, 100), 0.5), None, "Nor is the separation seen to move"),
    ],
)
def test_what_is_said(effect: SizeEffect, follows: bool | None, said: str) -> None:
    assert effect.follows_separation is follows
    assert said in effect.explain()[2]
    assert (
        f"{effect.only_small} flip only at 250 documents, {effect.only_large} only at 1,400: p = {effect.p_flip:g} "
    ) in effect.explain()[0]
    assert "those of like separation did at 250, 30.0 % would" in effect.explain()[3]
    if not effect.flip_moved:
        assert "+1.0 points (95 % interval -2.0 to +4.0)" in effect.explain()[2]
    assert effect.to_json()["says"] == effect.explain()
    assert effect.to_json()["change"]["low"] == -0.02
