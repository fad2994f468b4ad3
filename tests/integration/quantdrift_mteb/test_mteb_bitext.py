"""Bitext mining in mteb: a search between two lists of sentences, compared in both arms."""

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
from mteb.abstasks import AbsTaskBitextMining
from mteb.abstasks.task_metadata import TaskMetadata
from numpy.typing import NDArray

from quantdrift.runs import read_run
from support.mteb_samples import QUIET, quantized, save_encoder, scores, stock, text

SCHEME = "W2-rtn"


@dataclass(frozen=True)
class Model:
    """One model as a pair, and as mteb loads it."""

    pair: Any
    stock: Any


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = save_encoder(tmp_path_factory.mktemp("model"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUANTDRIFT_CACHE", "off")
        yield Model(pair=mteb.get_model(f"quantdrift:{folder}@{SCHEME}"), stock=stock(folder))


ONES = [text(row) for row in range(50)]
OTHERS = [" ".join([*one.split()[:5], text(row + 900, 4)]) for row, one in enumerate(ONES)]
THIRD = [" ".join([text(row + 600, 4), *one.split()[4:]]) for row, one in enumerate(ONES)]
PAIRS = {"sentence1": ONES, "sentence2": OTHERS}


def make(data: Any, *, languages: Mapping[str, list[str]] | None = None, **attributes: Any) -> Any:
    """A task whose test split is the data given."""
    metadata = TaskMetadata(
        name="TinyBitext",
        description="made for a test",
        dataset={"path": "none", "revision": "1"},
        type="BitextMining",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=dict(languages) if languages else ["eng-Latn"],
        main_score="f1",
    )

    def load_data(self: Any, *_: Any, **__: Any) -> None:
        self.dataset, self.data_loaded = data, True

    body = {"metadata": metadata, "load_data": load_data, **attributes}
    return type("TinyBitext", (AbsTaskBitextMining,), body)()


def plain() -> Any:
    return make(DatasetDict(test=Dataset.from_dict(PAIRS)))


def cosines(model: Model, ones: list[str], others: list[str]) -> list[NDArray[np.float64]]:
    """All against all, by numpy on what the stock model embeds: reference, candidate."""

    def of_one_arm() -> NDArray[np.float64]:
        sides = []
        for texts in (ones, others):
            vectors = model.stock.encode(
                _create_dataloader_from_texts(texts, batch_size=8),
                task_metadata=plain().metadata,
                hf_split="test",
                hf_subset="default",
                **QUIET,
            )
            vectors = np.asarray(vectors, dtype=np.float64)
            sides.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
        return sides[0] @ sides[1].T

    reference = of_one_arm()
    with quantized(model.stock, SCHEME):
        return [reference, of_one_arm()]


def assert_drift(found: Mapping[str, Any], arms: list[NDArray[np.float64]], gold: list[int]) -> None:
    first = [scores.argmax(axis=1) for scores in arms]
    right = [chosen == np.array(gold) for chosen in first]
    ranked = np.sort(arms[0], axis=1)
    assert (first[0] != first[1]).any()
    expected = {
        "drift_n_inputs": len(gold),
        "drift_flip_at_1": np.mean(first[0] != first[1]),
        "drift_reference_accuracy": np.mean(right[0]),
        "drift_change_accuracy": np.mean(right[1]) - np.mean(right[0]),
        "drift_harm": np.mean(right[0] & ~right[1]),
        "drift_gap_median": np.median(ranked[:, -1] - ranked[:, -2]),
        "drift_epsilon_median": np.median(np.abs(arms[1] - arms[0]).max(axis=1)),
    }
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-3, abs=1e-6), key
    assert found["accuracy"] == pytest.approx(np.mean(right[1]))  # mteb's own, of the candidate
    assert "drift_accuracy" not in found


def test_the_drift_is_that_of_the_search_and_mtebs_own_keys_are_untouched(model: Model, tmp_path: Path) -> None:
    (found,) = scores(model.pair, plain(), cache=mteb.ResultCache(tmp_path))["test"]
    assert_drift(found, cosines(model, ONES, OTHERS), list(range(50)))
    with quantized(model.stock, SCHEME):
        (low,) = scores(model.stock, plain())["test"]
    assert {key: value for key, value in found.items() if not key.startswith("drift_")} == low
    (result,) = tmp_path.rglob("TinyBitext.json")
    run = read_run(result.parent / found["drift_evidence"])
    assert run.evidence().input_ids[17] == "test-17"
    assert run.evidence().confidence is None
    assert run.record["settings"]["similarity"] == "cosine"
    assert run.record["data"]["n_documents"] == 50


def test_languages_side_by_side_are_searched_pair_by_pair(model: Model) -> None:
    languages = {"eng_Latn-fra_Latn": ["eng-Latn", "fra-Latn"], "fra_Latn-deu_Latn": ["fra-Latn", "deu-Latn"]}
    columns = {"deu_Latn": THIRD, "eng_Latn": ONES, "fra_Latn": OTHERS}
    data = DatasetDict(test=Dataset.from_dict(columns))
    task = make(data, languages=languages, parallel_subsets=True)
    found = {entry["hf_subset"]: entry for entry in scores(model.pair, task)["test"]}
    assert set(found) == set(languages)
    for name, entry in found.items():
        one, other = name.split("-")
        assert_drift(entry, cosines(model, columns[one], columns[other]), list(range(50)))
