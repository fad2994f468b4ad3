"""Tasks of mteb that score pairs: the order of all pairs, and decisions by a frozen threshold."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from mteb._create_dataloaders import _create_dataloader_from_texts
from mteb.abstasks import AbsTaskPairClassification, AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from numpy.typing import NDArray
from scipy import stats

from quantdrift.runs import read_run
from support.mteb_samples import QUIET, quantized, save_encoder, scores, stock, text

SCHEME = "W2-rtn"
N_PAIRS = 60


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


def pairs(seed: int = 0, number: int = N_PAIRS) -> dict[str, list[Any]]:
    """Pairs that share more or fewer words; those that share most are mostly the same."""
    ones = [text(seed + row) for row in range(number)]
    shared = [row % 8 for row in range(number)]
    others = [
        " ".join([*one.split()[:kept], text(seed + row + 500, 9 - kept)])
        for row, (one, kept) in enumerate(zip(ones, shared, strict=True))
    ]
    same = [int(kept >= 4) if row % 7 else row % 2 for row, kept in enumerate(shared)]
    return {"sentence1": ones, "sentence2": others, "score": shared, "labels": same}


def make(
    base: Any,
    data: Mapping[str, Any] | None = None,
    *,
    main_score: str = "cosine_spearman",
    languages: Mapping[str, list[str]] | None = None,
) -> Any:
    """A task whose test split is the data given, or subset to data."""
    kind = {AbsTaskSTS: "STS", AbsTaskPairClassification: "PairClassification"}[base]
    metadata = TaskMetadata(
        name=f"Tiny{kind}",
        description="made for a test",
        dataset={"path": "none", "revision": "1"},
        type=kind,
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=dict(languages) if languages else ["eng-Latn"],
        main_score=main_score,
    )

    def load_data(self: Any, *_: Any, **__: Any) -> None:
        given = pairs() if data is None else data
        self.dataset = (
            {name: DatasetDict(test=Dataset.from_dict(part)) for name, part in given.items()}
            if languages
            else DatasetDict(test=Dataset.from_dict(dict(given)))
        )
        self.data_loaded = True

    return type(metadata.name, (base,), {"metadata": metadata, "load_data": load_data})()


def similarities(
    model: Model, data: Mapping[str, list[Any]], kind: str = "cosine"
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of the pairs, by numpy on what the stock model embeds: the reference's, the candidate's."""

    def of_one_arm() -> NDArray[np.float64]:
        left, right = (
            np.asarray(
                model.stock.encode(
                    _create_dataloader_from_texts(data[side], batch_size=8),
                    task_metadata=make(AbsTaskSTS).metadata,
                    hf_split="test",
                    hf_subset="default",
                    **QUIET,
                ),
                dtype=np.float64,
            )
            for side in ("sentence1", "sentence2")
        )
        if kind == "manhattan":
            return -np.abs(left - right).sum(axis=1)
        norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        return (left * right).sum(axis=1) / (norms if kind == "cosine" else 1)

    reference = of_one_arm()
    with quantized(model.stock, SCHEME):
        return reference, of_one_arm()


def reversed_share(reference: NDArray[np.float64], candidate: NDArray[np.float64]) -> float:
    """Counted one comparison after another."""
    both = [
        (reference[i] - reference[j], candidate[i] - candidate[j])
        for i, j in itertools.combinations(range(len(reference)), 2)
    ]
    return float(np.mean([full * low < 0 for full, low in both]))


def assert_order(found: Mapping[str, Any], model: Model, kind: str = "cosine") -> None:
    reference, candidate = similarities(model, pairs(), kind)
    delta = np.abs(candidate - reference)
    expected = {
        "drift_n_inputs": N_PAIRS,
        "drift_order_flip": reversed_share(reference, candidate),
        "drift_order_kendall_tau": stats.kendalltau(reference, candidate).statistic,
        "drift_order_spearman": stats.spearmanr(reference, candidate).statistic,
        "drift_order_epsilon": delta.max(),
        "drift_order_delta_median": np.median(delta),
    }
    assert expected["drift_order_flip"] > 0
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-5), key


@pytest.mark.parametrize(
    ("main_score", "kind"),
    [
        ("cosine_spearman", "cosine"),
        ("spearman", "cosine"),  # the model's own similarity is the cosine
        ("manhattan_spearman", "manhattan"),
    ],
)
def test_sts_compares_the_order_that_its_main_score_is_of(main_score: str, kind: str, model: Model) -> None:
    (found,) = scores(model.pair, make(AbsTaskSTS, main_score=main_score))["test"]
    assert_order(found, model, kind)
    assert "drift_evidence" not in found
    assert "drift_flip_at_1" not in found


def best_threshold(values: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """The highest middle between two neighbours that tells most pairs right."""
    ranked = np.sort(values)[::-1]
    middles = (ranked[1:] + ranked[:-1]) / 2
    right = [np.mean((values > middle) == (labels == 1)) for middle in middles]
    return float(middles[int(np.argmax(right))])


@pytest.mark.parametrize(
    ("main_score", "kind"), [("cosine_ap", "cosine"), ("dot_ap", "dot"), ("manhattan_accuracy", "manhattan")]
)
def test_a_pair_flips_where_its_similarity_crosses_the_references_threshold(
    main_score: str, kind: str, model: Model, tmp_path: Path
) -> None:
    task = make(AbsTaskPairClassification, main_score=main_score)
    (found,) = scores(model.pair, task, cache=mteb.ResultCache(tmp_path))["test"]
    reference, candidate = similarities(model, pairs(), kind)
    labels = np.array(pairs()["labels"])
    threshold = best_threshold(reference, labels)
    flips = (reference > threshold) != (candidate > threshold)
    assert flips.any()
    assert found["drift_flip_at_1"] == pytest.approx(flips.mean())
    (full,) = scores(model.stock, make(AbsTaskPairClassification, main_score=main_score))["test"]
    assert found["drift_reference_accuracy"] == pytest.approx(full[f"{kind}_accuracy"])
    assert found["drift_accuracy"] == pytest.approx(np.mean((candidate > threshold) == labels))
    gaps, changes = np.abs(reference - threshold), np.abs(candidate - reference)
    assert found["drift_gap_median"] == pytest.approx(np.median(gaps), rel=1e-3)
    assert found["drift_epsilon_median"] == pytest.approx(np.median(changes) / 2, rel=1e-3)
    assert found["drift_separation_median"] == pytest.approx(np.median(gaps / changes), rel=1e-3)
    # no pair moves so far that its separation would not say it can flip, nor less
    assert found["drift_at_risk"] == pytest.approx(np.mean(gaps < changes))
    assert_order(found, model, kind)
    (result,) = tmp_path.rglob("TinyPairClassification.json")
    run = read_run(result.parent / found["drift_evidence"])
    assert run.evidence().confidence is None
    top = run.evidence().candidate_top.items[:, 0]
    decided = np.where(candidate > threshold, "same", "different")
    assert run.evidence().item_ids[top].tolist() == decided.tolist()
    assert run.record["settings"]["similarity"] == kind
    sign = -1 if kind == "manhattan" else 1
    assert sign * run.record["settings"]["threshold"] == pytest.approx(sign * threshold, rel=1e-4)


OWN = {"drift_spec", "drift_reference_main_score"}
UNTOLD = "quantdrift: no drift is measured on TinyPairClassification test/default: "


def test_where_no_threshold_tells_pairs_apart_the_evaluation_stands_and_a_line_says_why(
    model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {**pairs(), "sentence1": [text(1)] * N_PAIRS, "sentence2": [text(2)] * N_PAIRS}
    task = make(AbsTaskPairClassification, data, main_score="max_ap")
    (found,) = scores(model.pair, task)["test"]
    assert {key for key in found if key.startswith("drift_")} == OWN
    assert found["main_score"] > 0
    assert capsys.readouterr().err == f"{UNTOLD}no threshold tells its pairs apart\n"
