"""Classification in mteb: one probe, fitted on the reference, reads both arms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from mteb._create_dataloaders import _create_dataloader_from_texts
from mteb.abstasks import AbsTaskClassification, AbsTaskMultilabelClassification, AbsTaskRegression
from mteb.abstasks.task_metadata import TaskMetadata
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from quantdrift.runs import read_run
from support.mteb_samples import QUIET, quantized, save_encoder, scores, stock, text

SCHEME = "W2-rtn"
Data = Mapping[str, Mapping[str, list[Any]]]


@dataclass(frozen=True)
class Model:
    """One model as a pair, and as mteb loads it."""

    pair: Any
    stock: Any


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Model]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUANTDRIFT_CACHE", "off")
        yield Model(pair=mteb.get_model(f"quantdrift:{folder}@{SCHEME}"), stock=stock(folder))


def labelled(number: int, seed: int, n_classes: int = 3) -> dict[str, list[Any]]:
    """Texts that share some words with the others of their class."""
    labels = [row % n_classes for row in range(number)]
    texts = [f"{text(7 + label, 3)} {text(seed + row, 6)}" for row, label in enumerate(labels)]
    return {"text": texts, "label": labels}


THREE: Data = {"train": labelled(90, 100), "test": labelled(70, 300)}
OWN = {"drift_spec", "drift_reference_main_score"}


def make(
    data: Any = None,
    *,
    base: Any = AbsTaskClassification,
    languages: Mapping[str, list[str]] | None = None,
    splits: tuple[str, ...] = ("test",),
    **attributes: Any,
) -> Any:
    """A task whose data are those given, split to columns, or subset to split to columns."""
    kind = {
        AbsTaskClassification: "Classification",
        AbsTaskMultilabelClassification: "MultilabelClassification",
        AbsTaskRegression: "Regression",
    }[base]
    metadata = TaskMetadata(
        name=f"Tiny{kind}",
        description="made for a test",
        dataset={"path": "none", "revision": "1"},
        type=kind,
        category="t2c",
        modalities=["text"],
        eval_splits=list(splits),
        eval_langs=dict(languages) if languages else ["eng-Latn"],
        main_score="kendalltau" if base is AbsTaskRegression else "accuracy",
    )

    def as_splits(parts: Data) -> DatasetDict:
        return DatasetDict({name: Dataset.from_dict(dict(part)) for name, part in parts.items()})

    def load_data(self: Any, *_: Any, **__: Any) -> None:
        given = THREE if data is None else data
        self.dataset = {name: as_splits(part) for name, part in given.items()} if languages else as_splits(given)
        self.data_loaded = True

    body = {"metadata": metadata, "load_data": load_data, "n_experiments": 3, **attributes}
    return type(metadata.name, (base,), body)()


def embed(model: Any, texts: list[str]) -> NDArray[np.float32]:
    loader = _create_dataloader_from_texts(texts, batch_size=8)
    asked = {"task_metadata": make().metadata, "hf_split": "test", "hf_subset": "default"}
    return np.asarray(model.encode(loader, **asked, **QUIET))


def drawn(task: Any, train: Mapping[str, list[Any]]) -> list[int]:
    """The training inputs that mteb's experiments use, as mteb draws them."""
    rows, order = set(), None
    for number in range(task.n_experiments):
        _, order, chosen = task._undersample_data(Dataset.from_dict(dict(train)), number, order)
        rows |= set(chosen)
    return sorted(rows)


@dataclass(frozen=True)
class ByHand:
    """What scikit-learn's own classifier says of both arms."""

    reference: NDArray[np.int64]
    candidate: NDArray[np.int64]
    decisions: NDArray[np.float64]


def by_hand(
    model: Model, train: Mapping[str, list[Any]], rows: list[int], tests: list[str], scheme: str = SCHEME
) -> ByHand:
    """Fit on the reference's embeddings, and read the tests of both arms."""
    training = embed(model.stock, [train["text"][row] for row in rows])
    classifier = LogisticRegression(max_iter=1000)
    classifier.fit(training.astype(np.float64), [train["label"][row] for row in rows])
    full = embed(model.stock, tests)
    with quantized(model.stock, scheme):
        low = embed(model.stock, tests)
    return ByHand(
        reference=classifier.predict(full),
        candidate=classifier.predict(low),
        decisions=classifier.decision_function(full),
    )


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_drift_is_what_one_frozen_probe_finds(n_classes: int, model: Model, tmp_path: Path) -> None:
    data = {"train": labelled(90, 100, n_classes), "test": labelled(70, 300, n_classes)}
    task = make(data)
    (found,) = scores(model.pair, task, cache=mteb.ResultCache(tmp_path))["test"]
    rows = drawn(make(data), data["train"])
    expected = by_hand(model, data["train"], rows, data["test"]["text"])
    labels = np.array(data["test"]["label"])
    flips = expected.reference != expected.candidate
    assert flips.any()
    assert found["drift_n_inputs"] == 70
    assert found["drift_probe_n_train"] == len(rows)
    assert len(rows) > 8 * n_classes  # more than one experiment drew
    assert found["drift_flip_at_1"] == pytest.approx(flips.mean())
    assert found["drift_reference_accuracy"] == pytest.approx(np.mean(expected.reference == labels))
    assert found["drift_accuracy"] == pytest.approx(np.mean(expected.candidate == labels))
    gaps = np.abs(expected.decisions) if n_classes == 2 else np.diff(np.sort(expected.decisions, axis=1))[:, -1]
    assert found["drift_gap_median"] == pytest.approx(np.median(gaps), rel=1e-3)
    assert found["drift_noise_floor"] is None
    # input by input, from the evidence beside the result
    (result,) = tmp_path.rglob("TinyClassification.json")
    run = read_run(result.parent / found["drift_evidence"])
    evidence = run.evidence()
    assert evidence.input_ids.tolist() == [f"test-{number}" for number in range(70)]
    tops = (evidence.reference_top, evidence.candidate_top)
    for top, chosen in zip(tops, (expected.reference, expected.candidate), strict=True):
        assert evidence.item_ids[top.items[:, 0]].tolist() == [str(label) for label in chosen]
    assert evidence.confidence is not None
    settings = run.record["settings"]
    assert (settings["reading"], settings["probe"]["n_train"]) == ("linear probe", len(rows))
    assert run.record["model"]["layers_never_reached"] == ["0.model.pooler.dense"]


LABELS = [[[row % 3], [3, row % 3]][row % 2] for row in range(90)]
MANY = {
    "train": {"text": THREE["train"]["text"], "label": LABELS},
    "test": {"text": THREE["test"]["text"], "label": LABELS[:70]},
}
VALUES = {
    split: {"text": part["text"], "value": [float(n % 7) for n in range(len(part["text"]))]}
    for split, part in THREE.items()
}


@pytest.mark.parametrize(("base", "data"), [(AbsTaskMultilabelClassification, MANY), (AbsTaskRegression, VALUES)])
def test_several_labels_an_input_or_none_have_no_first_class(
    base: Any, data: Data, model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = scores(model.pair, make(data, base=base))["test"]
    assert {key for key in found if key.startswith("drift_")} == OWN
    assert "quantdrift" not in capsys.readouterr().err
