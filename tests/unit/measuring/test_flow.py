"""One flow on a model of one layer: what is encoded, scored, kept and refused; names, noise, classes, shortlists."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Evidence, Noise, Top
from quantdrift.measuring.flow import Measured, assemble, compare_rankings, noise_of_scores
from quantdrift.measuring.readings import Classes, Head, Search, shortlist_of
from quantdrift.metrics import measure, parse_metric
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.state import ScoreState
from quantdrift.scoring.streamed import score_embeddings, score_matrix
from support.worlds import Rower, World

N_QUERIES, N_DOCS = 6, 30


def world(scheme: str = "W2") -> World:
    generator = torch.Generator().manual_seed(1)
    return World(scheme, {role: torch.randn(n, 8, generator=generator) for role, n in sizes().items()})


def sizes() -> dict[str, int]:
    return {"query": N_QUERIES, "document": N_DOCS}


def measured(toy: World, store: Path | None = None, settings: Any = None, **reading: Any) -> Measured:
    search = Search(queries=toy.inputs("query"), documents=toy.inputs("document"), similarity=Similarity.DOT, **reading)
    return toy.measure(search, store=store, **(settings or {}))[0]


@pytest.mark.parametrize("scheme", ["W2", "W2+query"])
def test_the_evidence_is_that_of_the_whole_matrices(scheme: str) -> None:
    toy = world(scheme)
    evidence = measured(toy, settings={"noise_floor": False}).evidence
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
    before, after = measured(first, tmp_path), measured(second, tmp_path)
    assert [len(rows) for *_, rows, _ in second.calls] == [2, 2]
    assert before.evidence.delta_max.tolist() == after.evidence.delta_max.tolist()
    measured(other, tmp_path)  # another scheme shares the reference
    assert (other.encoded("reference", "document"), other.encoded("candidate", "document")) == (2, N_DOCS)


def test_a_candidate_that_no_output_depends_on_is_refused() -> None:
    """Its changes would be 0.0 %, with an interval, of a model that nothing was done to."""
    toy = world()
    toy.pair.encoder = Rower(lambda role, rows, _: toy.texts[role][rows].numpy())
    with pytest.raises(UnsupportedError, match=r"model .*W2-g128-rtn"):
        measured(toy)


def test_noise_of_batching_is_found_and_is_the_references() -> None:
    """Documents come out differently when they are run in batches of another size."""
    toy, rng = world(), np.random.default_rng(0)

    def noisy(arm: str, role: str, vectors: NDArray[np.float32]) -> None:
        if role == "document" and toy.calls[-1][3] != 4:
            vectors += rng.standard_normal(vectors.shape).astype(np.float32)

    toy.after = noisy
    noise = measured(toy, settings={"seed": 1}).evidence.noise
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


# --- from a state to evidence ------------------------------------------------------------------------


ITEMS = [f"d{position}" for position in range(100)]


def state() -> ScoreState:
    reference, candidate = np.zeros((2, 100)), np.zeros((2, 100))
    reference[0, [40, 7]] = 9, 8
    reference[1, [99, 7]] = 9, 8
    candidate[0, [7, 41]] = 9, 8
    candidate[1, [99, 7]] = 9, 8
    return score_matrix(reference, candidate, k=5)


def names(evidence: Evidence, top: Top) -> list[list[str]]:
    return [[evidence.item_ids[item] for item in row] for row in top.items.tolist()]


def test_positions_become_names_and_only_those_needed_are_kept() -> None:
    evidence = assemble(state(), input_ids=["q0", "q1"], item_ids=ITEMS, depth=2)
    assert names(evidence, evidence.reference_top) == [["d40", "d7"], ["d99", "d7"]]
    assert names(evidence, evidence.candidate_top) == [["d7", "d41"], ["d99", "d7"]]
    assert sorted(evidence.item_ids) == ["d40", "d41", "d7", "d99"]
    assert evidence.reference_top.candidate_scores.tolist() == [[0, 9], [9, 8]]
    assert (evidence.n_items.tolist(), evidence.depth) == ([100, 100], 2)


def test_a_lone_document_that_is_the_query_itself() -> None:
    """Nothing was scored: every figure is undefined, none fails."""
    vector = np.ones((1, 2), dtype=np.float32)
    lone = score_embeddings(vector, vector, vector, vector, similarity=Similarity.DOT, k=3, excluded=np.array([0]))
    evidence = assemble(lone, input_ids=["d0"], item_ids=["d0"], qrels={"d0": {"d0": 1}})
    assert (evidence.depth, evidence.reference_top.items.tolist()) == (1, [[-1]])
    estimates = measure(evidence)
    for name in ("flip@1", "epsilon", "S", "gap", "separation", "at_risk", "tied", "gold_lost@1"):
        assert estimates[name].value is None
    assert estimates["ndcg@10"].value == 0  # the relevant document is not found


# --- noise by hand -----------------------------------------------------------------------------------


def floats(values: Any) -> Any:
    return np.array(values, dtype=np.float32)


ONE = floats([[1], [1]])  # with this query, the dot product is the document itself


def test_by_hand() -> None:
    first, second = floats([[1.0], [2.0], [3.0]]), floats([[1.0], [3.5], [3.0]])
    contenders = np.array([[2, 1], [1, 0]])  # the second query's best is document 1 in both runs
    noise = compare_rankings((ONE, first), (ONE, second), contenders, Similarity.DOT)
    assert noise.flips.tolist() == [True, False]
    assert noise.epsilon.tolist() == [1.5, 1.5]
    assert noise.epsilon.dtype == np.float32


def test_ties_go_to_the_lower_position_in_both_runs() -> None:
    """Rows of `contenders` stand in order of rank, not of position."""
    tied, parted = floats([[1.0], [1.0]]), floats([[1.0], [1.0 + 2**-20]])
    contenders = np.array([[1, 0]])
    same = compare_rankings((ONE[:1], tied), (ONE[:1], tied), contenders, Similarity.DOT)
    assert same.flips.tolist() == [False]
    noise = compare_rankings((ONE[:1], tied), (ONE[:1], parted), contenders, Similarity.DOT)
    assert noise.flips.tolist() == [True]  # document 0 was first of the tied ones


@pytest.mark.parametrize(
    ("similarity", "epsilon"),
    [
        (Similarity.DOT, 3),  # (1, 0).(3, 4) = 3 and (1, 0).(6, 8) = 6
        (Similarity.COSINE, 0),  # the same direction
        (Similarity.EUCLIDEAN, np.hypot(5, 8) - np.hypot(2, 4)),
    ],
)
def test_similarities(similarity: Similarity, epsilon: float) -> None:
    query = floats([[1, 0]])
    noise = compare_rankings((query, floats([[3, 4]])), (query, floats([[6, 8]])), np.array([[0]]), similarity)
    assert noise.epsilon[0] == pytest.approx(epsilon, abs=1e-6)


# --- classes and shortlists --------------------------------------------------------------------------


N_TEST, N_TRAIN = 12, 20
CLASSES = ("red", "green", "blue")
LOGITS = Head(classes=CLASSES, record={"reading": "logits"})


def classifier(scheme: str = "W2") -> World:
    generator = torch.Generator().manual_seed(3)
    texts = {part: torch.randn(n, 8, generator=generator) for part, n in (("test", N_TEST), ("train", N_TRAIN))}
    return World(scheme, texts, width=len(CLASSES), seed=3)


def labels_of(n: int) -> list[str]:
    return [CLASSES[number % len(CLASSES)] for number in range(n)]


def classes(toy: World, head: Head | None = LOGITS, labels: list[str] | None = None, *, train: bool = True) -> Classes:
    return Classes(
        inputs=toy.inputs("test"),
        head=head,
        train=toy.inputs("train") if train else None,
        train_labels=labels_of(N_TRAIN),
        labels=labels,
        calibration=(toy.inputs("train"),) if train else (),
        source="the train part",
        dataset="colours",
    )


def test_logits_are_read_as_they_are() -> None:
    toy, labels = classifier(), labels_of(N_TEST)
    evidence = toy.measure(classes(toy, labels=labels))[0].evidence
    reference, candidate = toy.arms("test")
    np.testing.assert_allclose(perturbation.epsilon(evidence), np.abs(candidate - reference).max(axis=1), rtol=1e-4)
    flips = reference.argmax(axis=1) != candidate.argmax(axis=1)
    assert perturbation.flips(evidence).tolist() == flips.tolist()
    assert 0 < flips.sum() < N_TEST
    for name, scores in (("reference.accuracy", reference), ("accuracy", candidate)):
        right = [CLASSES[best] == label for best, label in zip(scores.argmax(axis=1), labels, strict=True)]
        assert parse_metric(name)(evidence).value == pytest.approx(np.mean(right))
    assert evidence.confidence is not None
    assert evidence.noise is not None
    assert not evidence.noise.flips.any()


def test_calibration_is_on_the_train_part_and_never_on_the_other() -> None:
    toy = classifier("W2A8+calib=8")
    toy.measure(classes(toy), noise_floor=False)
    assert (toy.encoded("reference", "train"), toy.encoded("reference", "test")) == (8, N_TEST + 2)
    calibration = toy.pair.describe()["calibration"]
    assert (calibration["source"], calibration["of"]) == ("the train part", N_TRAIN)
    with pytest.raises(DataError, match="evaluated on"):
        toy.measure(classes(classifier("W2A8"), train=False))
    without = classifier("W2A8+act=token")
    assert without.measure(classes(without, train=False))[0].evidence.n_items.tolist() == [len(CLASSES)] * N_TEST


DATASET = RetrievalDataset.of(
    {"q0": "xx", "q1": "x", "q2": "xxx"}, {"a": "1", "b": "22", "c": "333", "d": "4444"}, name="letters"
)
LISTS = {"q1": ("d", "a"), "q0": ("b",), "q2": ("c", "b", "a")}


def test_every_query_ranks_its_own_shortlist_and_its_noise_is_of_the_same_pairs() -> None:
    shortlist = shortlist_of(DATASET, LISTS, record={})
    toy = classifier()
    once = np.array([[1], [2], [5], [1], [3], [2]], dtype=np.float32)
    low = np.array([[3], [2.5], [4], [1], [3], [4]], dtype=np.float32)
    state = shortlist.state(toy.flow(), [once], [low])
    assert state.reference_top()[0][:, :2].tolist() == [[3, 0], [1, -1], [1, 2]]
    assert state.candidate_top()[0][:, :2].tolist() == [[0, 3], [1, -1], [2, 1]]
    assert state.delta_max.tolist() == [2.0, -1.0, 2.0]
    every = np.arange(3)
    (needed,) = shortlist.rerun(state, every)
    assert needed.tolist() == [0, 1, 2, 3, 4, 5]
    again = once + np.array([[2], [0], [0], [0], [0], [0.5]], dtype=np.float32)
    noise = shortlist.noise(state, [once], [again], every)
    assert (noise.flips.tolist(), noise.epsilon.tolist()) == ([True, False, False], [2.0, 0.0, 0.5])
    (of_last,) = shortlist.rerun(state, every[2:])
    assert of_last.tolist() == [3, 4, 5]
    noise = shortlist.noise(state, [once], [again[of_last]], every[2:])
    assert (noise.flips.tolist(), noise.epsilon.tolist()) == ([False], [0.5])
