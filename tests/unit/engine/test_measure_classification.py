"""Labelled inputs on a model of one layer: what is read how, by which arm, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from quantdrift import perturbation
from quantdrift.datasets.labelled import match_labels, told_apart
from quantdrift.engine.classes import Classified, ClassReading, LabelledJob, by_logits, by_probe, measure_classes
from quantdrift.engine.inputs import Inputs
from quantdrift.engine.neighbours import measure_neighbours
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.quantizers.rtn import quantize_rtn
from quantdrift.engine.readers import check_scheme
from quantdrift.engine.search import Settings
from quantdrift.engine.store import EmbeddingStore
from quantdrift.errors import DataError, UnsupportedError
from quantdrift.metrics import parse_metric
from quantdrift.progress import Silent
from quantdrift.spec import parse, parse_scheme

N_TEST, N_TRAIN = 12, 20
CLASSES = ("red", "green", "blue")


class World:
    """A linear model of three outputs, its inputs, and a record of what went through it."""

    def __init__(self, scheme: str = "W2", *, train: bool = True) -> None:
        generator = torch.Generator().manual_seed(3)
        self.layer = nn.Linear(8, len(CLASSES), bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(len(CLASSES), 8, generator=generator))
        self.full = self.layer.weight.detach().clone()
        self.data = {
            "test": torch.randn(N_TEST, 8, generator=generator),
            "train": torch.randn(N_TRAIN, 8, generator=generator),
        }
        self.pair = QuantizedPair([self.layer], parse_scheme(scheme))
        self.train = train
        self.calls: list[tuple[str, str, int]] = []

    def inputs(self, part: str) -> Inputs:
        def encode(rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
            arm = "reference" if torch.equal(self.layer.weight, self.full) else "candidate"
            self.calls.append((arm, part, len(rows)))
            return np.asarray(self.layer(self.data[part][rows]).detach().numpy().copy())

        ids = [f"{part}-{number}" for number in range(len(self.data[part]))]
        return Inputs(role="document", ids=ids, encode=encode, key={"texts": part})

    def job(self, store: Path | None = None, **options: Any) -> LabelledJob:
        return LabelledJob(
            pair=self.pair,
            settings=options.pop("settings", Settings(k=5, batch_size=4)),
            store=EmbeddingStore(store),
            progress=Silent(),
            test=self.inputs("test"),
            train=self.inputs("train") if self.train else None,
            dataset="colours",
            **options,
        )

    def outputs(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What either arm puts out for the test part, computed the plain way."""
        low = quantize_rtn(self.full, bits=2, group_size=128).dequantize(torch.float32)
        test = self.data["test"].double()
        return (test @ self.full.double().T).numpy(), (test @ low.double().T).numpy()

    def went_through(self, arm: str, part: str) -> int:
        return sum(n for a, p, n in self.calls if (a, p) == (arm, part))


def labels_of(n: int) -> list[str]:
    return [CLASSES[number % len(CLASSES)] for number in range(n)]


def measured(job: LabelledJob, reading: ClassReading, labels: list[str] | None) -> Classified:
    return measure_classes(job, job.run(reading), reading, labels=labels)


def test_logits_are_read_as_they_are() -> None:
    world = World()
    labels = labels_of(N_TEST)
    evidence = measured(world.job(), by_logits(CLASSES), labels).evidence
    reference, candidate = world.outputs()
    np.testing.assert_allclose(perturbation.epsilon(evidence), np.abs(candidate - reference).max(axis=1), rtol=1e-4)
    flips = reference.argmax(axis=1) != candidate.argmax(axis=1)
    assert perturbation.flips(evidence).tolist() == flips.tolist()
    assert 0 < flips.sum() < N_TEST
    right = {
        arm: np.mean([CLASSES[best] == label for best, label in zip(of, labels, strict=True)])
        for arm, of in (("reference.accuracy", reference.argmax(axis=1)), ("accuracy", candidate.argmax(axis=1)))
    }
    for name, value in right.items():
        assert parse_metric(name)(evidence).value == pytest.approx(value)
    assert evidence.confidence is not None
    assert evidence.noise is not None
    assert not evidence.noise.flips.any()
    assert torch.equal(world.layer.weight, world.full)


def test_the_digest_of_the_measured_candidate_comes_with_both_readings() -> None:
    world = World()
    job = world.job()
    side = job.run()
    classes = measure_classes(job, side, by_logits(("a", "b", "c")), labels=None)
    with world.pair.candidate():
        digest = world.pair.candidate_fingerprint()
    assert digest != side.fingerprint
    found = (side, classes, measure_neighbours(job, side))
    assert [each.candidate_fingerprint for each in found] == [digest] * 3


def test_a_probe_is_fitted_on_the_reference_and_reads_both_arms() -> None:
    linear = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
    world = World()
    job = world.job()
    train = labels_of(N_TRAIN)
    fitted = job.probe(train)
    found = measured(job, by_probe(fitted), None)
    assert world.went_through("candidate", "train") == 0
    embeddings = (world.data["train"].double() @ world.full.double().T).numpy()
    model = linear.LogisticRegression(max_iter=1000).fit(embeddings, train)
    reference, candidate = (model.decision_function(part) for part in world.outputs())
    np.testing.assert_allclose(
        perturbation.epsilon(found.evidence), np.abs(candidate - reference).max(axis=1), atol=1e-4
    )
    flips = reference.argmax(axis=1) != candidate.argmax(axis=1)
    assert perturbation.flips(found.evidence).tolist() == flips.tolist()
    assert found.evidence.judgements is None
    assert found.reading.record["probe"]["train_accuracy"] == pytest.approx(model.score(embeddings, train))


def test_a_second_scheme_shares_what_the_reference_gave(tmp_path: Path) -> None:
    world = World()
    job = world.job(tmp_path)
    first = measured(job, by_probe(job.probe(labels_of(N_TRAIN))), None)
    world.pair, world.calls = QuantizedPair([world.layer], parse_scheme("W3")), []
    job = world.job(tmp_path)
    second = measured(job, by_probe(job.probe(labels_of(N_TRAIN))), None)
    assert world.calls == [("reference", "test", 2), ("candidate", "test", N_TEST)]
    tops = [one.evidence.reference_top.reference_scores for one in (first, second)]
    assert np.array_equal(*tops)


def test_every_input_searches_the_others_and_never_itself() -> None:
    world = World()
    job = world.job(settings=Settings(k=N_TEST, batch_size=4))
    evidence = measure_neighbours(job, job.run()).evidence
    for arm, top in zip(world.outputs(), (evidence.reference_top, evidence.candidate_top), strict=True):
        unit = arm / np.linalg.norm(arm, axis=1, keepdims=True)
        cosine = unit @ unit.T
        np.fill_diagonal(cosine, -np.inf)
        names = [evidence.item_ids[item] for item in top.items[:, 0]]
        assert names == [f"test-{best}" for best in cosine.argmax(axis=1)]
    assert set(evidence.n_items.tolist()) == {N_TEST - 1}
    assert evidence.noise is not None
    assert not evidence.noise.flips.any()


def test_two_inputs_are_too_few_to_search() -> None:
    world = World()
    world.data["test"] = world.data["test"][:2]
    job = world.job()
    with pytest.raises(DataError, match="colours has 2 inputs"):
        measure_neighbours(job, job.run())


def test_calibration_is_on_the_train_part_and_never_on_the_other() -> None:
    world = World("W2A8+calib=8")
    job = world.job(settings=Settings(k=5, batch_size=4, noise_floor=False))
    job.check()
    job.run()
    assert world.went_through("reference", "train") == 8
    assert world.went_through("reference", "test") == N_TEST + 2
    calibration = world.pair.describe()["calibration"]
    assert (calibration["source"], calibration["of"]) == ("the train part", N_TRAIN)


def test_without_a_train_part_there_is_no_calibration() -> None:
    with pytest.raises(DataError, match="never on those it is evaluated on"):
        World("W2A8", train=False).job().check()
    World("W2", train=False).job().check()


@pytest.mark.parametrize(
    ("labels", "classes", "meant"),
    [
        (["b", "a"], ["a", "b"], ("b", "a")),
        (["B", "a"], ["A", "b"], ("b", "A")),
        (["1", "0"], ["x", "y"], ("y", "x")),
        (["1", "0"], ["1", "0"], ("1", "0")),  # names before positions
        (["2", "0"], ["x", "y"], None),
        (["c", "d"], ["a", "b"], None),
    ],
)
def test_labels_mean_classes_by_name_else_by_position(
    labels: list[str], classes: list[str], meant: tuple[str, ...] | None
) -> None:
    found, note = match_labels(labels, classes)
    assert found == meant
    assert (note is None) == (meant is not None)


def test_a_label_that_is_no_class_counts_as_wrong_and_is_told() -> None:
    labels = ["red"] * (N_TEST - 2) + ["pink", "grey"]
    found = measured(World().job(), by_logits(CLASSES), labels)
    assert found.notes == ("2 inputs have labels that the model has no class for, which counts as wrong: pink, grey",)
    assert parse_metric("accuracy")(found.evidence).n == N_TEST


def test_labels_of_something_else_leave_accuracy_unmeasured() -> None:
    found = measured(World().job(), by_logits(CLASSES), ["yes", "no"] * (N_TEST // 2))
    assert found.evidence.judgements is None
    assert "accuracy is not measured" in found.notes[0]


def test_a_scheme_for_the_query_side_alone_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="classification has no index"):
        check_scheme(parse("minilm@W4+query"), "text")


def test_texts_to_calibrate_on_are_refused_for_images(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a\nb\n")
    spec = parse(f"vit@W4-gptq+calib={tmp_path / 'texts.txt'}")
    check_scheme(spec, "text")
    with pytest.raises(UnsupportedError, match="the data are images"):
        check_scheme(spec, "image")


def test_numbers_mean_positions_of_a_models_own_classes_only() -> None:
    assert match_labels(["0", "1"], ["neg", "pos"]) == (("neg", "pos"), None)
    found, note = match_labels(["0", "1"], ["neg", "pos"], positions=False)
    assert found is None
    assert "none of the model's classes" in (note or "")


def test_numbers_that_start_elsewhere_are_not_read_by_name() -> None:
    """Labels 0, 1, 2 of classes called 1, 2, 3 would all be off by one."""
    found, note = match_labels(["0", "1", "2"], ["1", "2", "3"])
    assert found is None
    assert "counted from another start" in (note or "")


def test_classes_of_one_name_are_told_apart() -> None:
    classes = told_apart(["crane", "heron", "crane"])
    assert len(set(classes)) == 3
    assert match_labels(["0", "2"], classes)[0] == ("crane (0)", "crane (2)")
