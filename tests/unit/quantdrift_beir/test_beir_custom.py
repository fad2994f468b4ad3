"""Metrics by name on results with and without drift, and what becomes of copies of results."""

import copy
import pickle
from typing import Any

import pytest

pytest.importorskip("beir")

from beir.retrieval.evaluation import EvaluateRetrieval

from quantdrift.base.errors import UnknownNameError, UnsupportedError
from quantdrift.finished.rankings import evidence_of_rankings
from quantdrift.metrics.base import MetricError
from quantdrift_beir import Drift, PairedResults
from quantdrift_beir.results import BEIR_METRICS

QUERIES = {"p": "?", "q": "?"}
RECORD = {"spec": "model@W4-g128-rtn", "data": {"fingerprint": "1"}, "settings": {}, "model": {}}
QRELS = {"p": {"a": 1}, "q": {"b": 2, "d": 1}}


REFERENCE = {"p": {"a": 0.9, "b": 0.8, "c": 0.2, "d": 0.1}, "q": {"b": 0.7, "a": 0.3, "c": 0.2, "d": 0.1}}
CANDIDATE = {
    "p": {"a": 0.6, "b": 0.8, "c": 0.2, "d": 0.1},  # a fell behind b: delta -0.3
    "q": {"b": 0.7, "a": 0.4, "c": 0.2, "d": 0.1},
}


def paired(reference: Any = REFERENCE, candidate: Any = CANDIDATE, *, complete: bool = True) -> PairedResults:
    evidence = evidence_of_rankings(reference, candidate, complete=complete)
    drift = Drift(evidence=evidence, reference=reference, record=RECORD)
    return PairedResults({query: candidate.get(query, {}) for query in QUERIES}, drift)


def judged(metric: str, results: Any = None, k_values: Any = (1, 2, 4)) -> dict[str, float | None]:
    given = paired() if results is None else results
    values: dict[str, float | None]
    values = EvaluateRetrieval.evaluate_custom(QRELS, given, list(k_values), metric=metric)
    return values


def test_a_family_of_ranks_is_computed_at_beirs_cutoffs() -> None:
    assert judged("gold_lost") == {"gold_lost@1": 0.5, "gold_lost@2": 0.0, "gold_lost@4": 0.0}
    assert judged("change.ndcg", k_values=[1]) == {"change.ndcg@1": -0.5}
    assert judged("set_kept", k_values=[2]) == {"set_kept@2": 1.0}


def test_beirs_own_metrics_are_beirs() -> None:
    results = {query: dict(scores) for query, scores in CANDIDATE.items()}
    for name in BEIR_METRICS:
        stock = EvaluateRetrieval.evaluate_custom(QRELS, results, [1, 2], metric=name)
        assert stock is not None
        assert judged(name, k_values=[1, 2]) == stock
    assert judged("mrr", k_values=[2]) == {"MRR@2": 0.75}
    assert judged("mrr@2") == {"mrr@2": 0.75}  # with its cut-off it is ours
    assert judged("accuracy", k_values=[1]) == {"Accuracy@1": 0.5}
    assert judged("reference.accuracy") == {"reference.accuracy": 1.0}


@pytest.mark.parametrize("results", [CANDIDATE, None])
def test_an_unknown_name_is_an_error_whatever_the_results_are(results: Any) -> None:
    with pytest.raises(UnknownNameError, match="mean flip") as error:
        judged("flipp", results)
    assert error.value.suggestions[0] == "flip"
    with pytest.raises(UnknownNameError, match="top_k_acc"):
        judged("top_k_ac", results)


def test_results_of_one_model_have_no_drift() -> None:
    with pytest.raises(UnsupportedError, match="results are of one"):
        judged("flip", CANDIDATE)


def test_what_looks_deeper_than_the_lists_is_undefined_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    cut = [{q: dict(list(r.items())[:2]) for q, r in arm.items()} for arm in (REFERENCE, CANDIDATE)]
    results = paired(*cut, complete=False)
    assert judged("gold_lost", results) == {"gold_lost@1": 0.5, "gold_lost@2": 0.0, "gold_lost@4": None}
    assert "gold_lost@4 is undefined" in capsys.readouterr().err
    assert results.drift["set_kept@5"].value is None
    assert {name: value.n for name, value in results.drift.items()}["flip@1"] == 2
    with pytest.raises(MetricError, match="names a family"):
        results.drift["set_kept"]


@pytest.mark.parametrize(
    "copied", [PairedResults.copy, copy.copy, copy.deepcopy, lambda results: pickle.loads(pickle.dumps(results))]
)
def test_copies_keep_the_drift(copied: Any) -> None:
    results = paired()
    again = copied(results)
    assert type(again) is PairedResults
    assert again == results
    assert again is not results
    assert (judged("flip", again), again.reference) == ({"flip@1": 0.5}, REFERENCE)
