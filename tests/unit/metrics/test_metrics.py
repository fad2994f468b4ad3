"""Every metric by hand, on four queries and four documents."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from quantdrift.evidence import Evidence, Noise
from quantdrift.metrics import MetricError, default_metrics, measure, parse_metric
from quantdrift.statistics import Estimate
from support.small_evidence import CANDIDATE, FOUR, INFINITE, QRELS, REFERENCE, evidence_of

#       documents  a   b   c   d


def value(metric: str, evidence: Evidence = FOUR) -> float | None:
    return parse_metric(metric)(evidence).value


def dcg(*grades: float) -> float:
    return sum(grade / math.log2(rank + 2) for rank, grade in enumerate(grades))


@pytest.mark.parametrize(
    ("metric", "per_input"),
    [
        ("flip@1", [0, 0, 1, 1]),
        ("gap", [4, 4, 1, 0]),
        ("candidate_gap", [4, 2, 1, 1]),
        ("epsilon", [0, 1, 2, 1]),
        ("separation", [INFINITE, 2, 1 / 4, 0]),
        ("at_risk", [0, 0, 1, 1]),
        # delta of the candidate's top-1 minus the least delta
        ("S", [0, -1 - -1, 0 - -2, 0 - -1]),
        ("tied", [0, 0, 0, 1]),
        ("gold_lost@1", [0, math.nan, 1, 1]),
        ("gold_lost@5", [0, 0, 0, 0]),
        ("gold_lost@2", [0, math.nan, 0, 0]),
        ("recall@1", [1 / 2, 0, 0, 0]),
        ("reference.recall@1", [1 / 2, 0, 1, 1 / 2]),
        ("recall@2", [1 / 2, 0, 1, 1 / 2]),
        ("mrr@10", [1, 1 / 4, 1 / 2, 1 / 2]),
        ("reference.mrr@10", [1, 1 / 4, 1, 1]),
        ("mrr@1", [1, 0, 0, 0]),
        (
            "ndcg@10",
            [
                dcg(1, 0, 2) / dcg(2, 1),
                dcg(0, 0, 0, 1) / dcg(1),
                dcg(0, 1) / dcg(1),
                dcg(0, 1) / dcg(1, 1),  # the document outside the corpus is in the ideal ranking
            ],
        ),
        ("reference.ndcg@10", [dcg(1, 0, 2) / dcg(2, 1), dcg(0, 0, 0, 1), 1, 1 / dcg(1, 1)]),
        ("ndcg@1", [1 / 2, 0, 0, 0]),
    ],
)
def test_per_input(metric: str, per_input: list[float]) -> None:
    found = parse_metric(metric).per_input(FOUR)
    np.testing.assert_allclose(found, per_input, rtol=1e-12)


def test_over_all_inputs() -> None:
    assert value("flip@1") == 0.5
    assert value("gold_lost@1") == pytest.approx(2 / 3)  # q1 had no relevant document on top
    assert value("separation") == (2 + 1 / 4) / 2
    assert value("epsilon") == 1
    assert value("ndcg@1") == 1 / 8
    estimate = parse_metric("gold_lost@1")(FOUR)
    assert estimate.n == 3
    assert estimate.low is not None
    assert estimate.high is not None
    assert 0 < estimate.low < 2 / 3 < estimate.high < 1


def test_at_a_separation_of_one_nothing_is_at_risk() -> None:
    """gap 2, epsilon 1: the runner-up can draw level, no more."""
    edge = evidence_of([[3, 1], [3, 1]], [[2, 2], [2.5, 2]])
    assert parse_metric("separation").per_input(edge).tolist() == [1, 1]
    assert parse_metric("at_risk").per_input(edge).tolist() == [0, 0]


def test_one_of_two_relevant_documents_lost_is_a_loss() -> None:
    swapped = evidence_of([[4, 3, 2, 1]], [[4, 1, 2, 3]], qrels={"q0": {"a": 1, "b": 1, "c": 0}})
    assert value("gold_lost@2", swapped) == 1  # b left the first two, a did not
    assert value("gold_lost@4", swapped) == 0


def test_measure_keeps_the_order_asked_for() -> None:
    asked = [parse_metric(name) for name in ("S", "flip@1")]
    assert list(measure(FOUR, asked)) == ["S", "flip@1"]
    assert list(measure(FOUR)) == [str(metric) for metric in default_metrics()]


# --- undefined, and why ----------------------------------------------------------------------


def reason(metric: str, evidence: Evidence) -> str | None:
    estimate = parse_metric(metric)(evidence)
    assert estimate.value is None
    assert estimate.to_json() == {"value": None, "reason": estimate.reason}
    return estimate.reason


@pytest.mark.parametrize("metric", ["gap", "candidate_gap", "separation", "at_risk", "tied"])
def test_one_document_has_no_runner_up(metric: str) -> None:
    one = evidence_of([[3], [3]], [[4], [3]])
    assert reason(metric, one) == "no input has two items to compare"
    assert value("flip@1", one) == 0
    assert value("epsilon", one) == 0.5


@pytest.mark.parametrize("metric", ["flip@1", "epsilon", "S", "noise_floor", "gap", "tied"])
def test_queries_without_a_document_do_not_count(metric: str) -> None:
    noise = Noise(flips=np.zeros(2, dtype=bool), epsilon=np.zeros(2, dtype=np.float32))
    plain = evidence_of([[1, 2], [1, 2]], [[1, 2], [1, 2]], noise=noise)
    some = Evidence(
        input_ids=plain.input_ids,
        item_ids=plain.item_ids,
        reference_top=plain.reference_top,
        candidate_top=plain.candidate_top,
        delta_min=plain.delta_min,
        delta_max=plain.delta_max,
        n_items=np.array([2, 0]),
        noise=noise,
    )
    some.reference_top.reference_scores[1] = some.candidate_top.candidate_scores[1] = np.nan
    assert parse_metric(metric)(some).n == 1


def test_no_relevant_document_anywhere() -> None:
    irrelevant = evidence_of(REFERENCE, CANDIDATE, qrels={"q0": {"a": 0, "b": -1}})
    for metric in ("ndcg@10", "reference.ndcg@10", "recall@1", "mrr@10"):
        assert reason(metric, irrelevant) == "no input has a relevant item"
    assert reason("gold_lost@1", irrelevant) == ("no input has a relevant item in the reference top-k")


def test_no_labels() -> None:
    unlabelled = evidence_of(REFERENCE, CANDIDATE)
    for metric in ("ndcg@10", "gold_lost@5", "recall@1", "mrr@10"):
        assert reason(metric, unlabelled) == "no relevance labels"


def test_the_noise_floor() -> None:
    assert reason("noise_floor", FOUR) == "the noise floor was not measured"
    flips = np.array([True, False, False, False])
    noise = Noise(flips=flips, epsilon=np.zeros(4, dtype=np.float32))
    assert value("noise_floor", evidence_of(REFERENCE, CANDIDATE, noise=noise)) == 0.25


def test_an_exact_copy_is_stable_ties_included() -> None:
    tied = [[5.0, 5, 2], [4, 4, 4]]
    copy = evidence_of(tied, tied)
    estimate = parse_metric("separation")(copy)
    assert estimate.value == INFINITE
    reason = "+infinity: the typical input did not change at all (epsilon 0)"
    assert estimate.to_json() == {"value": None, "reason": reason}
    assert value("at_risk", copy) == 0
    assert value("tied", copy) == 1


def test_a_cut_off_beyond_what_was_stored() -> None:
    cut = evidence_of(REFERENCE, CANDIDATE, k=3, qrels=QRELS)
    with pytest.raises(MetricError, match=r"ndcg@10 looks at 10 ranks, but .* stored 3; .*--k 4"):
        value("ndcg@10", cut)
    with pytest.raises(MetricError, match="gold_lost@4 looks at 4 ranks"):
        value("gold_lost@4", cut)
    assert value("gold_lost@3", cut) == pytest.approx(0)
    assert value("ndcg@1000") == value("ndcg@4")  # there are only four documents, all stored


def test_results_are_json() -> None:
    noise = Noise(flips=np.zeros(4, dtype=bool), epsilon=np.zeros(4, dtype=np.float32))
    for evidence in (FOUR, evidence_of(REFERENCE, REFERENCE, noise=noise)):
        results = {name: estimate.to_json() for name, estimate in measure(evidence).items()}
        again = json.loads(json.dumps(results, allow_nan=False))
        for result in again.values():
            assert set(result) in ({"value", "low", "high", "n"}, {"value", "reason"})


def test_an_estimate_with_an_open_end() -> None:
    estimate = Estimate(value=1.0, low=0.5, high=INFINITE, n=7)
    assert estimate.to_json() == {"value": 1.0, "low": 0.5, "high": None, "n": 7}
