"""Sets, cuts, contenders, outcomes of flips and whole rankings by hand, on three queries."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantdrift.metrics import MetricError, Slice, measure, parse_metric
from support.small_evidence import CANDIDATE_OF_THREE as CANDIDATE
from support.small_evidence import QRELS_OF_THREE as QRELS
from support.small_evidence import REFERENCE_OF_THREE as REFERENCE
from support.small_evidence import THREE, evidence_of

#       documents    a   b   c  d  e
NAN, INFINITE = math.nan, math.inf


@pytest.mark.parametrize(
    ("metric", "per_input"),
    [
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
    ],
)
def test_per_input(metric: str, per_input: list[float]) -> None:
    found = parse_metric(metric).per_input(THREE)
    np.testing.assert_allclose(found, per_input, rtol=1e-12)


def test_a_relevant_document_comes_first() -> None:
    won = evidence_of([[4, 3, 2]], [[3, 4, 2]], qrels={"q0": {"b": 1}})
    values = {name: estimate.value for name, estimate in measure(won).items()}
    assert values["flip_to_relevant"] == values["benefit"] == values["gold_gained@1"] == 1
    assert values["harm"] == 0
    assert values["gold_lost@1"] is None
    neither = evidence_of([[4, 3, 2]], [[3, 4, 2]], qrels={"q0": {"a": 0, "c": 1}})
    assert parse_metric("flip_among_unjudged")(neither).value == 1


def test_quantiles_of_the_separation() -> None:
    values = {q: parse_metric(f"separation_quantile@{q}")(THREE).value for q in (10, 50, 75)}
    assert values == {10: 1 / 6, 50: 1 / 4, 75: 4}
    assert values[50] == parse_metric("separation")(THREE).value


def test_a_relative_change_is_of_the_means() -> None:
    """Means 1/3 and 2/3, not the mean of three ratios."""
    estimate = parse_metric("relative.recall@1")(THREE)
    assert estimate.value == pytest.approx((1 + 0.5) / (1 + 0.5 + 1) - 1)
    assert estimate.n == 3
    with pytest.raises(MetricError, match=r"ratio of means: .* Ask for change\.recall@1"):
        parse_metric("relative.recall@1").per_input(THREE)
    none = evidence_of([[1, 2]], [[1, 2]], qrels={"q0": {"a": 1}})
    assert parse_metric("relative.recall@1")(none).reason == "the reference's mean is 0"


# --- lists that were cut -------------------------------------------------------------------------


def test_what_lies_below_the_stored_ranks_is_not_guessed() -> None:
    cut = evidence_of(REFERENCE, CANDIDATE, k=2)
    assert parse_metric("new_top_rank").per_input(cut).tolist()[1:] == [2, INFINITE]
    assert parse_metric("contenders").per_input(cut).tolist() == [0, INFINITE, INFINITE]
    reason = parse_metric("contenders")(cut).to_json()["reason"]
    assert reason == "+infinity: more contenders than stored ranks; run again with a larger --k"
    with pytest.raises(MetricError, match=r"cut_separation@2 looks at 3 ranks, .* --k 3"):
        parse_metric("cut_separation@2")(cut)
    assert parse_metric("set_kept@2")(cut).value == pytest.approx(2 / 3)


def test_slices_by_a_count_that_was_cut() -> None:
    cut = evidence_of(REFERENCE, CANDIDATE, k=2)
    assert parse_metric("flip@1:contenders=0..1")(cut).value == 0
    assert parse_metric("flip@1:contenders=1..")(cut).value == 1  # one or more: that is known
    for unknown in ("1..2", "2..", "0..5"):
        with pytest.raises(MetricError, match=r"with 2 stored ranks, .* larger --k"):
            parse_metric(f"flip@1:contenders={unknown}")(cut)


def test_one_stored_rank_tells_no_gap() -> None:
    """There are five items, but only the first is stored: unknown, not 0 and not "one item"."""
    one = evidence_of(REFERENCE, CANDIDATE, k=1, qrels=QRELS)
    needs_two = ("gap", "candidate_gap", "separation", "at_risk", "stable", "tied")
    for name in (*needs_two, "flip_to_runner_up", "separation_quantile@10", "cut_separation@1"):
        with pytest.raises(MetricError, match="looks at 2 ranks, but this run stored 1"):
            parse_metric(name)(one)
    assert parse_metric("flip@1")(one).value == pytest.approx(2 / 3)
    assert parse_metric("epsilon")(one).value == 2
    assert parse_metric("S").per_input(one).tolist() == [1 - 0, 0 - -2, 2 - -3]
    defaults = measure(one)
    assert "run again with --k 2" in str(defaults["separation"].reason)
    assert defaults["gold_lost@1"].value is not None


def test_runs_that_stored_different_depths_are_told_apart_as_far_as_the_shorter_can() -> None:
    """Contenders 0, 1 and 2; with two ranks stored, one or more."""
    whole, cut = THREE, evidence_of(REFERENCE, CANDIDATE, k=2, qrels=QRELS)
    contenders = parse_metric("contenders")
    assert contenders(whole).value == 1
    assert contenders.over([whole, cut]).value == INFINITE
    assert contenders.told_apart(np.array([0.0, 1, 2]), [whole, cut]).tolist() == [0, INFINITE, INFINITE]
    assert contenders.told_apart(np.array([0.0, 1, 2]), [whole]).tolist() == [0, 1, 2]


# --- slices and pooling --------------------------------------------------------------------------


def test_a_slice_leaves_the_other_inputs_out() -> None:
    sliced = parse_metric("flip@1:separation=0.2..1")
    np.testing.assert_array_equal(sliced.per_input(THREE), [NAN, 1, NAN])
    estimate = sliced(THREE)
    assert (estimate.value, estimate.n) == (1, 1)
    assert parse_metric("flip@1:separation=0.25..4")(THREE).n == 1  # the upper end is outside
    assert parse_metric("flip@1:separation=0.25..")(THREE).n == 2
    nobody = parse_metric("flip@1:separation=9..")(THREE)
    assert nobody.reason == "no input has separation=9.."
    labelled = parse_metric("gold_lost@1:separation=0.2..0.3")(
        evidence_of(REFERENCE, CANDIDATE, qrels={"q0": {"a": 1}})
    )
    assert labelled.reason == (
        "no input has a relevant item in the reference top-k (of those with separation=0.2..0.3)"
    )
    assert parse_metric("change.recall@1:reference.recall@1=1..")(THREE).value == -0.5


def test_an_exact_copy_is_in_the_open_slice() -> None:
    copy = evidence_of([[2, 1], [3, 1]], [[2, 1], [2, 1]])
    assert parse_metric("flip@1:separation=1..")(copy).n == 2
    assert parse_metric("flip@1:separation=0..1")(copy).n == 0
    assert parse_metric("flip@1:separation=1..1000")(copy).n == 1


def test_runs_are_pooled_input_by_input() -> None:
    more = evidence_of([[2, 1], [2, 1]], [[1, 2], [2, 1]])
    pooled = parse_metric("flip@1").over([THREE, more])
    assert (pooled.value, pooled.n) == (3 / 5, 5)
    labelled = parse_metric("harm").over([THREE, more])  # the other has no labels
    assert (labelled.value, labelled.n) == (1 / 3, 3)
    assert parse_metric("harm").over([more]).reason == "no relevance labels"
    relative = parse_metric("relative.recall@1").over([THREE, THREE])
    assert relative.value == pytest.approx(-0.4)
    assert relative.n == 6


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("flip@1:separation=0.05..0.1", "flip@1:separation=0.05..0.1"),
        ("harm:contenders=5.0..10", "harm:contenders=5..10"),
        ("candidate.ndcg@5:gap=1e-5..", "ndcg@5:gap=1e-05.."),
        ("change.ndcg@10:reference.ndcg@10=0..0.5", "change.ndcg@10:reference.ndcg@10=0..0.5"),
        ("relative.mrr@3", "relative.mrr@3"),
        ("flip@1:candidate_gap=-1..2", "flip@1:candidate_gap=-1..2"),
    ],
)
def test_slices_parse_back(text: str, canonical: str) -> None:
    metric = parse_metric(text)
    assert str(metric) == canonical
    assert parse_metric(canonical) == metric
    assert hash(parse_metric(canonical)) == hash(metric)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flip@1:separation", "expected a slice such as flip@1:separation="),
        ("flip@1:separation=1", "expected a slice"),
        ("flip@1:separation=..1", "expected a slice"),
        ("flip@1:separation=1..1", "a finite lower end below its upper end; got 1..1"),
        ("flip@1:separation=2..1", "a finite lower end below its upper end"),
        ("flip@1:relative.ndcg@10=0..1", "a value that every input has; got relative.ndcg@10"),
        ("flip@1:ndcg=0..1", "'ndcg' needs a cut-off"),
        ("change.flip@1", "it has no 'change.' form"),
        ("separation_quantile@100", "a percentile from 1 to 99"),
    ],
)
def test_forms_that_there_are_not(text: str, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        parse_metric(text)


def test_no_slice_of_a_slice() -> None:
    sliced = parse_metric("gap:separation=0..1")
    with pytest.raises(MetricError, match="a value that every input has"):
        Slice(by=sliced, low=0)
