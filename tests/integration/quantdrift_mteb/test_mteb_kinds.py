"""Classification, STS and pairs in mteb: the drift by numpy and others on stock embeddings."""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
from datasets import Dataset
from mteb.abstasks import AbsTaskClassification, AbsTaskPairClassification, AbsTaskSTS
from numpy.typing import NDArray
from scipy import stats
from sklearn.linear_model import LogisticRegression

from integration.quantdrift_mteb.mteb_samples import SCHEME, Model, as_splits, embed, labelled, made_task, pairs, scores
from quantdrift.runs.folder import Run, read_run
from support.candidate_samples import quantized, text

pytestmark = pytest.mark.usefixtures("cache")

OWN = {"drift_spec", "drift_reference_main_score"}
Floats = NDArray[np.float64]


def embedded(model: Model, texts: list[str]) -> Floats:
    return np.asarray(embed(model.stock, texts), dtype=np.float64)


def both_arms(model: Model, compute: Callable[[], Any]) -> list[Any]:
    reference = compute()
    with quantized(model.stock, SCHEME):
        return [reference, compute()]


def run_beside(entry: Mapping[str, Any], task: str, folder: Path) -> Run:
    (result,) = folder.rglob(f"{task}.json")
    return read_run(result.parent / entry["drift_evidence"])


def assert_figures(entry: Mapping[str, Any], expected: Mapping[str, Any], rel: float) -> None:
    for key, value in expected.items():
        assert entry[key] == pytest.approx(value, rel=rel, abs=1e-6), key


# --- classification: one probe, fitted on the reference, reads both arms ----------------------------


def drawn(task: Any, train: Mapping[str, list[Any]]) -> list[int]:
    """The training inputs that mteb's experiments use, as mteb draws them."""
    rows, order = set(), None
    for number in range(task.n_experiments):
        _, order, chosen = task._undersample_data(Dataset.from_dict(dict(train)), number, order)
        rows |= set(chosen)
    return sorted(rows)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_drift_of_classes_is_what_one_frozen_probe_finds(n_classes: int, model: Model, tmp_path: Path) -> None:
    train, test = labelled(90, 100, n_classes), labelled(70, 300, n_classes)

    def task() -> Any:
        given = {"kind": "Classification", "main_score": "accuracy", "n_experiments": 3}
        return made_task(AbsTaskClassification, lambda: as_splits({"train": train, "test": test}), **given)

    (entry,) = scores(model.pair, task(), cache=mteb.ResultCache(tmp_path))["test"]
    rows = drawn(task(), train)
    assert len(rows) > 8 * n_classes  # more than one experiment drew
    probe = LogisticRegression(max_iter=1000)
    probe.fit(embedded(model, [train["text"][row] for row in rows]), [train["label"][row] for row in rows])
    vectors = both_arms(model, lambda: embedded(model, test["text"]))
    chosen, decisions = [probe.predict(arm) for arm in vectors], probe.decision_function(vectors[0])
    flips = chosen[0] != chosen[1]
    assert flips.any()
    gaps = np.abs(decisions) if n_classes == 2 else np.diff(np.sort(decisions, axis=1))[:, -1]
    expected = {
        "drift_n_inputs": 70,
        "drift_probe_n_train": len(rows),
        "drift_flip_at_1": flips.mean(),
        "drift_reference_accuracy": np.mean(chosen[0] == np.array(test["label"])),
        "drift_accuracy": np.mean(chosen[1] == np.array(test["label"])),
    }
    assert_figures(entry, expected, rel=1e-6)
    assert_figures(entry, {"drift_gap_median": np.median(gaps)}, rel=1e-3)
    run = run_beside(entry, "TinyClassification", tmp_path)
    evidence = run.evidence()
    for top, arm in zip((evidence.reference_top, evidence.candidate_top), chosen, strict=True):
        assert evidence.item_ids[top.items[:, 0]].tolist() == [str(label) for label in arm]
    settings = run.record["settings"]
    assert (settings["reading"], settings["probe"]["n_train"]) == ("linear probe", len(rows))


# --- STS and pairs: the order of all pairs, and decisions by a frozen threshold ---------------------


SHARED = [row % 8 for row in range(60)]
PAIRS = {**pairs(60), "score": SHARED, "labels": [int(k >= 4) if n % 7 else n % 2 for n, k in enumerate(SHARED)]}
"""Pairs that share more or fewer words; those that share most are mostly the same."""


def pair_task(base: Any, main_score: str, **changes: Any) -> Any:
    kind = "STS" if base is AbsTaskSTS else "PairClassification"
    return made_task(base, lambda: as_splits({"test": {**PAIRS, **changes}}), kind=kind, main_score=main_score)


def similarities(model: Model, kind: str) -> list[Floats]:
    """Compute the similarities of the pairs in both arms."""

    def of_one_arm() -> Floats:
        left, right = (embedded(model, PAIRS[side]) for side in ("sentence1", "sentence2"))
        if kind == "manhattan":
            return -np.abs(left - right).sum(axis=1)
        norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        return (left * right).sum(axis=1) / (norms if kind == "cosine" else 1)

    return both_arms(model, of_one_arm)


def assert_order(entry: Mapping[str, Any], reference: Floats, candidate: Floats) -> None:
    two_by_two = itertools.combinations(range(len(reference)), 2)
    reversals = [(reference[i] - reference[j]) * (candidate[i] - candidate[j]) < 0 for i, j in two_by_two]
    assert any(reversals)
    delta = np.abs(candidate - reference)
    expected = {
        "drift_n_inputs": 60,
        "drift_order_flip": np.mean(reversals),
        "drift_order_kendall_tau": stats.kendalltau(reference, candidate).statistic,
        "drift_order_spearman": stats.spearmanr(reference, candidate).statistic,
        "drift_order_epsilon": delta.max(),
        "drift_order_delta_median": np.median(delta),
    }
    assert_figures(entry, expected, rel=1e-5)


# the model's own similarity, that of `spearman`, is the cosine
@pytest.mark.parametrize(("main_score", "kind"), [("spearman", "cosine"), ("manhattan_spearman", "manhattan")])
def test_sts_compares_the_order_that_its_main_score_is_of(main_score: str, kind: str, model: Model) -> None:
    (entry,) = scores(model.pair, pair_task(AbsTaskSTS, main_score))["test"]
    assert_order(entry, *similarities(model, kind))
    assert not {"drift_evidence", "drift_flip_at_1"} & entry.keys()


@pytest.mark.parametrize(("main_score", "kind"), [("dot_ap", "dot"), ("manhattan_accuracy", "manhattan")])
def test_a_pair_flips_across_the_threshold(main_score: str, kind: str, model: Model, tmp_path: Path) -> None:
    task = pair_task(AbsTaskPairClassification, main_score)
    (entry,) = scores(model.pair, task, cache=mteb.ResultCache(tmp_path))["test"]
    reference, candidate = similarities(model, kind)
    labels = np.array(PAIRS["labels"])
    # the highest middle between two neighbours that tells most pairs right
    ranked = np.sort(reference)[::-1]
    middles = (ranked[1:] + ranked[:-1]) / 2
    threshold = middles[np.argmax([np.mean((reference > middle) == (labels == 1)) for middle in middles])]
    flips = (reference > threshold) != (candidate > threshold)
    assert flips.any()
    (full,) = scores(model.stock, pair_task(AbsTaskPairClassification, main_score))["test"]
    gaps, changes = np.abs(reference - threshold), np.abs(candidate - reference)
    expected = {
        "drift_flip_at_1": flips.mean(),
        "drift_reference_accuracy": full[f"{kind}_accuracy"],
        "drift_accuracy": np.mean((candidate > threshold) == labels),
        "drift_at_risk": np.mean(gaps < changes),
    }
    assert_figures(entry, expected, rel=1e-6)
    medians = {"gap": np.median(gaps), "epsilon": np.median(changes) / 2, "separation": np.median(gaps / changes)}
    assert_figures(entry, {f"drift_{name}_median": value for name, value in medians.items()}, rel=1e-3)
    assert_order(entry, reference, candidate)
    run = run_beside(entry, "TinyPairClassification", tmp_path)
    top = run.evidence().candidate_top.items[:, 0]
    decided = np.where(candidate > threshold, "same", "different")
    assert run.evidence().item_ids[top].tolist() == decided.tolist()
    assert run.record["settings"]["similarity"] == kind
    assert abs(run.record["settings"]["threshold"]) == pytest.approx(abs(threshold), rel=1e-4)


def test_where_no_threshold_tells_pairs_apart(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    task = pair_task(AbsTaskPairClassification, "max_ap", sentence1=[text(1)] * 60, sentence2=[text(2)] * 60)
    (entry,) = scores(model.pair, task)["test"]
    assert {key for key in entry if key.startswith("drift_")} == OWN
    assert entry["main_score"] > 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("quantdrift: no drift is measured on TinyPairClassification")
