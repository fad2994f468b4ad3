"""Widths chosen by the gaps between classes: the problem by hand, and what it chooses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift import perturbation
from quantdrift.datasets.labelled import ClassificationDataset, Labelled
from quantdrift.engine.classes import LabelledJob, by_linear, by_logits, measure_classes
from quantdrift.engine.inputs import Inputs
from quantdrift.engine.neighbours import Places, run_contrast
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.search import Settings
from quantdrift.engine.sensitivity.problem import classification_problem
from quantdrift.engine.store import EmbeddingStore
from quantdrift.errors import DataError, UnsupportedError
from quantdrift.probe import LinearProbe
from quantdrift.progress import Silent
from quantdrift.spec import parse, parse_scheme

N_TEST, N_TRAIN, WIDTH = 30, 40, 16
CLASSES = ("red", "green", "blue")


def side(role: str, outputs: NDArray[np.float32]) -> Inputs:
    ids = [f"{role}-{number}" for number in range(len(outputs))]
    return Inputs(role=role, ids=ids, encode=lambda rows, _: outputs[rows], key=None)


def test_gaps_by_hand() -> None:
    outputs = np.array([[1, 5, 3], [7, 0, 2]], dtype=np.float32)
    problem = classification_problem(side("train", outputs), outputs, logits=lambda x: x, batch_size=1, n_contenders=2)
    assert problem.gaps(problem.outputs()).tolist() == [[2, 4], [5, 7]]
    moved = outputs + np.array([[0, 0, 3], [0, 6, 0]], dtype=np.float32)
    # the classes stay those of the reference: 3 is ahead of 5 by 1 now, 0 ahead of 6 by 1
    assert problem.gaps(moved).tolist() == [[-1, 4], [5, 1]]


def test_there_are_no_more_contenders_than_other_classes() -> None:
    outputs = np.array([[1, 5]], dtype=np.float32)
    problem = classification_problem(side("train", outputs), outputs, logits=lambda x: x, batch_size=1, n_contenders=4)
    assert problem.valid.shape == (1, 1)
    with pytest.raises(DataError, match="only one class"):
        classification_problem(side("train", outputs), outputs, logits=lambda x: x[..., :1], batch_size=1)


def test_a_probe_reads_tensors_as_it_reads_arrays() -> None:
    rng = np.random.default_rng(0)
    probe = LinearProbe(classes=CLASSES, weight=rng.normal(size=(3, 5)), bias=rng.normal(size=3))
    outputs = rng.normal(size=(7, 5)).astype(np.float32)
    reading = by_linear(probe, {})
    np.testing.assert_allclose(reading.graph(torch.from_numpy(outputs)).numpy(), reading.logits(outputs), atol=1e-5)


class TwoBranches(nn.Module):
    """Logits are the sum of two layers, of which one hardly counts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.loud = nn.Linear(WIDTH, len(CLASSES), bias=False)
        self.quiet = nn.Linear(WIDTH, len(CLASSES), bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        loud: Tensor = self.loud(inputs)
        return loud + 1e-3 * self.quiet(inputs)


def job_of(scheme: str, *, train: bool = True) -> LabelledJob:
    module = TwoBranches().eval()
    generator = torch.Generator().manual_seed(2)
    data = {part: torch.randn(n, WIDTH, generator=generator) for part, n in (("test", N_TEST), ("train", N_TRAIN))}

    def inputs(part: str) -> Inputs:
        def encode(rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
            batches = torch.from_numpy(rows).split(batch_size)
            with torch.inference_mode():
                return np.concatenate([module(data[part][batch]).numpy() for batch in batches])

        ids = [str(number) for number in range(len(data[part]))]  # the same in both parts
        return Inputs(role="input", ids=ids, encode=encode, key={"texts": part})

    return LabelledJob(
        pair=QuantizedPair([module], parse_scheme(scheme)),
        settings=Settings(batch_size=8),
        store=EmbeddingStore(None),
        progress=Silent(),
        test=inputs("test"),
        train=inputs("train") if train else None,
        dataset="colours",
    )


@pytest.mark.parametrize("criterion", ["gap", "gap_exact"])
def test_the_layer_that_moves_the_gaps_gets_the_bits(criterion: str) -> None:
    job = job_of(f"W2.5+{criterion}")
    measured = measure_classes(job, job.run(by_logits(CLASSES)), by_logits(CLASSES), labels=None)
    assert isinstance(job.pair, QuantizedPair)
    allocation = job.pair.allocation
    assert allocation is not None
    assert allocation.width_of == {"loud": 3, "quiet": 2}
    assert measured.left_out == 0  # it was measured on training inputs
    assert all(name.startswith("train part: ") for name in allocation.input_ids)
    uniform = job_of("W2")
    plain = measure_classes(uniform, uniform.run(by_logits(CLASSES)), by_logits(CLASSES), labels=None)
    epsilons = [np.median(perturbation.epsilon(one.evidence)) for one in (measured, plain)]
    assert epsilons[0] < epsilons[1]


def test_evaluated_inputs_are_not_measured_on() -> None:
    job = job_of("W2.5+gap", train=False)
    with pytest.raises(DataError, match="never on those that are evaluated"):
        job.run(by_logits(CLASSES))


def test_a_criterion_without_inputs_needs_no_train_part() -> None:
    job = job_of("W2.5+sqnr", train=False)
    job.run(by_logits(CLASSES))
    assert isinstance(job.pair, QuantizedPair)
    assert job.pair.allocation is not None


def test_a_contrast_has_two_readings_and_refuses_a_criterion(tmp_path: Path) -> None:
    part = Labelled(ids=("a", "b", "c"), inputs=("x", "y", "z"), labels=("0", "1", "0"))
    dataset = ClassificationDataset(name="abc", kind="text", split="test", test=part, train=part, notes=())
    with pytest.raises(UnsupportedError, match="by the gaps of classes or by those of a search"):
        run_contrast(
            [parse("minilm@W3.5+gap")],
            [dataset],
            place=lambda spec, data: Places(classification=tmp_path / "classes", retrieval=tmp_path / "search"),
            settings=Settings(),
            store=EmbeddingStore(None),
            progress=Silent(),
        )
