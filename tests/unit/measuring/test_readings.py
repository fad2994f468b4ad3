"""Readings on a model of one layer: classes and shortlists; parts of a corpus are in property/, probes in cli/."""

import numpy as np
import pytest
import torch

from quantdrift.base.errors import DataError
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.evidence import perturbation
from quantdrift.measuring.readings import Classes, Head, shortlist_of
from quantdrift.metrics import parse_metric
from support.worlds import World

N_TEST, N_TRAIN = 12, 20
CLASSES = ("red", "green", "blue")
LOGITS = Head(classes=CLASSES, record={"reading": "logits"})


def world(scheme: str = "W2") -> World:
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
    toy, labels = world(), labels_of(N_TEST)
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
    toy = world("W2A8+calib=8")
    toy.measure(classes(toy), noise_floor=False)
    assert (toy.encoded("reference", "train"), toy.encoded("reference", "test")) == (8, N_TEST + 2)
    calibration = toy.pair.describe()["calibration"]
    assert (calibration["source"], calibration["of"]) == ("the train part", N_TRAIN)
    with pytest.raises(DataError, match="evaluated on"):
        toy.measure(classes(world("W2A8"), train=False))
    without = world("W2A8+act=token")
    assert without.measure(classes(without, train=False))[0].evidence.n_items.tolist() == [len(CLASSES)] * N_TEST


DATASET = RetrievalDataset.of(
    {"q0": "xx", "q1": "x", "q2": "xxx"}, {"a": "1", "b": "22", "c": "333", "d": "4444"}, name="letters"
)
LISTS = {"q1": ("d", "a"), "q0": ("b",), "q2": ("c", "b", "a")}


def test_every_query_ranks_its_own_shortlist_and_its_noise_is_of_the_same_pairs() -> None:
    shortlist = shortlist_of(DATASET, LISTS, record={})
    toy = world()
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
