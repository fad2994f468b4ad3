"""Every metric by hand: four queries with four documents, and three with five."""

import math
from dataclasses import replace

import numpy as np
import pytest

from quantdrift.evidence.record import Evidence, Noise
from quantdrift.metrics import MetricError, measure, parse_metric
from support.small_evidence import (
    CANDIDATE,
    CANDIDATE_OF_THREE,
    FOUR,
    INFINITE,
    QRELS,
    QRELS_OF_THREE,
    REFERENCE,
    REFERENCE_OF_THREE,
    THREE,
    evidence_of,
)

NAN = math.nan


def value(metric: str, evidence: Evidence = FOUR) -> float | None:
    return parse_metric(metric)(evidence).value


def reason(metric: str, evidence: Evidence) -> str | None:
    estimate = parse_metric(metric)(evidence)
    assert estimate.to_json() == {"value": None, "reason": estimate.reason}
    return estimate.reason


def dcg(*grades: float) -> float:
    return sum(grade / math.log2(rank + 2) for rank, grade in enumerate(grades))


OF_FOUR = [
    ("flip@1", [0, 0, 1, 1]),
    ("gap", [4, 4, 1, 0]),
    ("candidate_gap", [4, 2, 1, 1]),
    ("epsilon", [0, 1, 2, 1]),
    ("separation", [INFINITE, 2, 1 / 4, 0]),
    ("at_risk", [0, 0, 1, 1]),
    # delta of the candidate's top-1 minus the least delta
    ("S", [0, -1 - -1, 0 - -2, 0 - -1]),
    ("tied", [0, 0, 0, 1]),
    # q3: a and b tie in the reference, b is first in the candidate
    ("flip_least", [0, 0, 1, 0]),
    ("flip_expected", [0, 0, 1, 1 / 2]),
    ("flip_most", [0, 0, 1, 1]),
    ("gold_lost@1", [0, NAN, 1, 1]),
    ("gold_lost@5", [0, 0, 0, 0]),
    ("gold_lost@2", [0, NAN, 0, 0]),
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
]
OF_THREE = [
    ("set_kept@1", [1, 0, 0]),
    ("set_kept@2", [1, 1, 0]),  # q2: a and b become c and b
    ("set_kept@3", [0, 1, 1]),
    ("set_kept@5", [1, 1, 1]),
    ("set_kept@9", [1, 1, 1]),  # all there is
    ("flip_to_runner_up", [NAN, 1, 0]),
    ("new_top_rank", [NAN, 2, 3]),
    # epsilon is 1, 2 and 3
    ("cut_separation@1", [8 / 2, 1 / 4, 1 / 6]),
    ("cut_separation@2", [4 / 2, 7 / 4, 1 / 6]),
    ("cut_separation@3", [1 / 2, 5 / 4, 6 / 6]),
    ("cut_separation@4", [7 / 2, 7 / 4, 12 / 6]),
    ("cut_separation@5", [NAN, NAN, NAN]),
    ("contenders", [0, 1, 2]),
    ("stable", [1, 0, 0]),
    ("separation_quantile@25", [4, 1 / 4, 1 / 6]),
    ("gold_gained@1", [0, 1, NAN]),
    ("gold_gained@2", [0, 0, NAN]),
    ("flip_to_irrelevant", [NAN, 0, 1]),
    ("flip_among_relevant", [NAN, 1, 0]),
    ("flip_to_relevant", [NAN, 0, 0]),
    ("flip_among_unjudged", [NAN, 0, 0]),
    ("harm", [0, 0, 1]),
    ("benefit", [0, 0, 0]),
    ("served_relevance", [1, 1, 0]),
    ("reference.served_relevance", [1, 2, 1]),
    ("change.served_relevance", [0, -1, -1]),
    ("change.recall@1", [0, 0, -1]),
    ("change.mrr@10", [0, 0, 1 / 3 - 1]),
    # what is shared in the first 1, 2 and 3 ranks: 1 2 2, 0 2 3, 0 1 3
    ("rbo@1", [1, 0, 0]),
    ("rbo@3", [0.1 * (1 + 0.9 + 0.81 * 2 / 3) + 0.729 * 2 / 3, 0.9, 0.1 * 0.45 + 0.81]),
    # of the three pairs among a, b and c
    ("tau_b@3", [1, 1 / 3, -1]),
    ("tau_b@1", [NAN, NAN, NAN]),
]
CASES = [(FOUR, *case) for case in OF_FOUR] + [(THREE, *case) for case in OF_THREE]


@pytest.mark.parametrize(("evidence", "metric", "per_input"), CASES, ids=[case[1] for case in CASES])
def test_per_input(evidence: Evidence, metric: str, per_input: list[float]) -> None:
    np.testing.assert_allclose(parse_metric(metric).per_input(evidence), per_input, rtol=1e-12)


def test_over_all_inputs() -> None:
    estimate = parse_metric("gold_lost@1")(FOUR)
    assert (estimate.value, estimate.n) == (pytest.approx(2 / 3), 3)  # q1 had no relevant document on top
    assert (value("flip@1"), value("separation"), value("epsilon"), value("ndcg@1")) == (0.5, (2 + 1 / 4) / 2, 1, 1 / 8)


def test_at_a_separation_of_one_nothing_is_at_risk() -> None:
    edge = evidence_of([[3, 1]], [[2, 1]])
    assert (value("separation", edge), value("at_risk", edge), value("contenders", edge)) == (1, 0, 0)
    near = evidence_of([[3, 1]], [[2, 2.5]])  # a lead of 2, and an epsilon of 1.5
    assert (value("at_risk", near), value("contenders", near)) == (1, 1)


def test_one_of_two_relevant_documents_lost_is_a_loss() -> None:
    swapped = evidence_of([[4, 3, 2, 1]], [[4, 1, 2, 3]], qrels={"q0": {"a": 1, "b": 1, "c": 0}})
    assert value("gold_lost@2", swapped) == 1  # b left the first two, a did not
    assert value("gold_lost@4", swapped) == 0


@pytest.mark.parametrize("metric", ["gap", "candidate_gap", "separation", "at_risk", "tied"])
def test_one_document_has_no_runner_up(metric: str) -> None:
    lone = evidence_of([[3], [3]], [[4], [3]])
    assert (reason(metric, lone), value("flip@1", lone)) == ("no input has two items to compare", 0)
    assert value("epsilon", lone) == 0.5
    assert value("epsilon", evidence_of([[3, 1]], [[2, 4]])) == 3  # the rise, which is more than the fall


@pytest.mark.parametrize("metric", ["flip@1", "epsilon", "S", "noise_floor", "gap", "tied"])
def test_queries_without_a_document_do_not_count(metric: str) -> None:
    noise = Noise(flips=np.zeros(2, dtype=bool), epsilon=np.zeros(2, dtype=np.float32))
    plain = evidence_of([[1, 2], [1, 2]], [[1, 2], [1, 2]], noise=noise)
    some = replace(plain, n_items=np.array([2, 0]))
    some.reference_top.reference_scores[1] = some.candidate_top.candidate_scores[1] = np.nan
    assert parse_metric(metric)(some).n == 1


def test_the_noise_floor_and_what_lacks_labels() -> None:
    assert reason("noise_floor", FOUR) == "the noise floor was not measured"
    noise = Noise(flips=np.array([True, False, False, False]), epsilon=np.zeros(4, dtype=np.float32))
    unlabelled = evidence_of(REFERENCE, CANDIDATE, noise=noise)
    assert value("noise_floor", unlabelled) == 0.25
    irrelevant = evidence_of(REFERENCE, CANDIDATE, qrels={"q0": {"a": 0, "b": -1}})
    for metric in ("ndcg@10", "recall@1", "mrr@10"):
        assert reason(metric, unlabelled) == "no relevance labels"
        assert reason(metric, irrelevant) == "no input has a relevant item"


def test_flips_that_noise_could_make_are_interchangeable() -> None:
    """q2 flips over a gap of 1, q3 over a tie."""
    assert reason("interchangeable", FOUR) == "the noise floor was not measured"
    for epsilon, wanted in ((0.25, [NAN, NAN, 0, 1]), (0.5, [NAN, NAN, 1, 1])):
        noise = Noise(flips=np.zeros(4, dtype=bool), epsilon=np.full(4, epsilon, dtype=np.float32))
        noisy = evidence_of(REFERENCE, CANDIDATE, noise=noise)
        np.testing.assert_array_equal(parse_metric("interchangeable").per_input(noisy), wanted)
    copy = evidence_of(REFERENCE, REFERENCE, noise=noise)
    assert reason("interchangeable", copy) == "no input flipped"


def test_ties_beyond_the_stored_ranks_are_not_guessed() -> None:
    """All four tie in the reference; d is first in the candidate, but only two ranks are stored."""
    cut = evidence_of([[1, 1, 1, 1]], [[1, 1, 1, 2]], k=2)
    for name in ("flip_least", "flip_expected"):
        with pytest.raises(MetricError, match=r"^.*\b1 of the inputs"):
            parse_metric(name)(cut)
    assert value("flip_most", cut) == 1
    whole = evidence_of([[1, 1, 1, 1]], [[1, 1, 1, 2]])
    assert (value("flip_least", whole), value("flip_expected", whole)) == (0, 3 / 4)
    assert value("flip_least", evidence_of([[1, 1, 1]], [[1, 2, 0]], k=2)) == 0  # b is in both: that is known
    just = evidence_of([[1, 1, 0]], [[1, 2, 0]], k=3)
    assert value("flip_expected", just) == 1 / 2


def test_a_cut_off_beyond_what_was_stored() -> None:
    cut = evidence_of(REFERENCE, CANDIDATE, k=3, qrels=QRELS)
    with pytest.raises(MetricError, match=r"ndcg@10 .* stored 3; .*keep 4"):
        value("ndcg@10", cut)
    with pytest.raises(MetricError, match="gold_lost@4"):
        value("gold_lost@4", cut)
    assert value("gold_lost@3", cut) == pytest.approx(0)
    assert value("ndcg@1000") == value("ndcg@4")  # there are only four documents, all stored


def test_quantiles_of_the_separation() -> None:
    values = {q: parse_metric(f"separation_quantile@{q}")(THREE).value for q in (10, 50, 75)}
    assert (values, values[50]) == ({10: 1 / 6, 50: 1 / 4, 75: 4}, parse_metric("separation")(THREE).value)


def test_a_relative_change_is_of_the_means() -> None:
    """Means 1/3 and 2/3, not the mean of three ratios."""
    estimate = parse_metric("relative.recall@1")(THREE)
    assert (estimate.value, estimate.n) == (pytest.approx((1 + 0.5) / (1 + 0.5 + 1) - 1), 3)
    with pytest.raises(MetricError, match=r"change\.recall@1"):
        parse_metric("relative.recall@1").per_input(THREE)
    none = evidence_of([[1, 2]], [[1, 2]], qrels={"q0": {"a": 1}})
    assert parse_metric("relative.recall@1")(none).reason == "the reference's mean is 0"


def test_what_lies_below_the_stored_ranks_is_not_guessed() -> None:
    cut = evidence_of(REFERENCE_OF_THREE, CANDIDATE_OF_THREE, k=2)
    assert parse_metric("new_top_rank").per_input(cut).tolist()[1:] == [2, INFINITE]
    assert parse_metric("contenders").per_input(cut).tolist() == [0, INFINITE, INFINITE]
    reason = parse_metric("contenders")(cut).to_json()["reason"]
    assert reason == "+infinity: more contenders than stored ranks; measure again and keep more (k)"
    with pytest.raises(MetricError, match=r"cut_separation@2 .*keep 3"):
        parse_metric("cut_separation@2")(cut)
    assert parse_metric("set_kept@2")(cut).value == pytest.approx(2 / 3)


def test_slices_by_a_count_that_was_cut() -> None:
    cut = evidence_of(REFERENCE_OF_THREE, CANDIDATE_OF_THREE, k=2)
    assert parse_metric("flip@1:contenders=0..1")(cut).value == 0
    assert parse_metric("flip@1:contenders=1..")(cut).value == 1  # one or more: that is known
    for unknown in ("1..2", "2..", "0..5"):
        with pytest.raises(MetricError, match="2 stored ranks"):
            parse_metric(f"flip@1:contenders={unknown}")(cut)


def test_one_stored_rank_tells_no_gap() -> None:
    """There are five items, but only the first is stored: unknown, not 0 and not "one item"."""
    shallow = evidence_of(REFERENCE_OF_THREE, CANDIDATE_OF_THREE, k=1, qrels=QRELS_OF_THREE)
    needs_two = ("gap", "candidate_gap", "separation", "at_risk", "stable", "tied", "flip_most")
    for name in (*needs_two, "flip_to_runner_up", "separation_quantile@10", "cut_separation@1"):
        with pytest.raises(MetricError, match=r"2 ranks.* stored 1"):
            parse_metric(name)(shallow)
    assert parse_metric("flip@1")(shallow).value == pytest.approx(2 / 3)
    assert parse_metric("epsilon")(shallow).value == 2
    assert parse_metric("S").per_input(shallow).tolist() == [1 - 0, 0 - -2, 2 - -3]
    defaults = measure(shallow)
    assert "keep 2 ranks (k)" in str(defaults["separation"].reason)
    assert defaults["gold_lost@1"].value is not None


def test_runs_that_stored_different_depths_are_told_apart_as_far_as_the_shorter_can() -> None:
    """Contenders 0, 1 and 2; with two ranks stored, one or more."""
    whole, cut = THREE, evidence_of(REFERENCE_OF_THREE, CANDIDATE_OF_THREE, k=2, qrels=QRELS_OF_THREE)
    contenders = parse_metric("contenders")
    assert (contenders(whole).value, contenders.over([whole, cut]).value) == (1, INFINITE)
    assert contenders.told_apart(np.array([0.0, 1, 2]), [whole, cut]).tolist() == [0, INFINITE, INFINITE]
    assert contenders.told_apart(np.array([0.0, 1, 2]), [whole]).tolist() == [0, 1, 2]


def test_a_slice_leaves_the_other_inputs_out() -> None:
    sliced = parse_metric("flip@1:separation=0.2..1")
    np.testing.assert_array_equal(sliced.per_input(THREE), [NAN, 1, NAN])
    estimate = sliced(THREE)
    assert (estimate.value, estimate.n) == (1, 1)
    assert parse_metric("flip@1:separation=0.25..4")(THREE).n == 1  # the upper end is outside
    assert parse_metric("flip@1:separation=0.25..")(THREE).n == 2
    assert parse_metric("flip@1:separation=9..")(THREE).reason == "no input has separation=9.."
    assert parse_metric("change.recall@1:reference.recall@1=1..")(THREE).value == -0.5
    copy = evidence_of([[2, 1], [3, 1]], [[2, 1], [2, 1]])  # an infinite value is in the open slice
    assert [parse_metric(f"flip@1:separation={ends}")(copy).n for ends in ("1..", "0..1", "1..1000")] == [2, 0, 1]


def test_runs_are_pooled_input_by_input() -> None:
    more = evidence_of([[2, 1], [2, 1]], [[1, 2], [2, 1]])
    pooled = parse_metric("flip@1").over([THREE, more])
    assert (pooled.value, pooled.n) == (3 / 5, 5)
    labelled = parse_metric("harm").over([THREE, more])  # the other has no labels
    assert (labelled.value, labelled.n) == (1 / 3, 3)
    assert parse_metric("harm").over([more]).reason == "no relevance labels"
    relative = parse_metric("relative.recall@1").over([THREE, THREE])
    assert (relative.value, relative.n) == (pytest.approx(-0.4), 6)
