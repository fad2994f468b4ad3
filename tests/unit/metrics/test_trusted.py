"""Metrics of the stability check, and what forbids a verdict, by hand."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from quantdrift.api import Embeddings, drift
from quantdrift.compare.two_runs import compare_runs
from quantdrift.metrics import parse_metric
from quantdrift.metrics.forbids import forbidding
from quantdrift.statistics.conformal import MOST, calibrates
from quantdrift.trust.check import StabilityCheck
from support.comparison_samples import evidence_of, flipped, run_of, scores

NAMES = np.array([f"q{row}" for row in range(60)], dtype=object)


def test_half_of_the_inputs_calibrate_whatever_their_order() -> None:
    chosen = calibrates(NAMES)
    assert chosen.sum() == 30
    order = np.random.default_rng(0).permutation(60)
    np.testing.assert_array_equal(calibrates(NAMES[order]), chosen[order])
    assert (calibrates(NAMES[:7]).sum(), calibrates(NAMES[:0]).sum()) == (3, 0)
    assert calibrates(np.arange(5_000).astype(str).astype(object)).sum() == MOST


def test_the_metrics_are_a_check_calibrated_on_that_half() -> None:
    rng = np.random.default_rng(1)
    reference = rng.normal(size=(60, 12))
    candidate = reference + rng.standard_t(2, reference.shape) * 0.05  # now and then a large change
    evidence, chosen = evidence_of(reference, candidate), calibrates(NAMES)
    part = evidence.part(np.flatnonzero(chosen))
    accepted, taken = (
        StabilityCheck.calibrate(part, alpha=0.2, guarantee=guarantee).accepts(candidate.astype(np.float32)[~chosen])
        for guarantee in ("joint", "conditional")
    )
    changed = (reference.argmax(axis=1) != candidate.argmax(axis=1))[~chosen]
    assert 0 < (accepted & changed).sum() < accepted.sum() < 30
    coverage = parse_metric("coverage@0.2")(evidence)
    assert (coverage.value, coverage.n) == (accepted.mean(), 30)
    joint = parse_metric("joint_violation@0.2")(evidence)
    assert (joint.value, joint.n) == ((accepted & changed).mean(), 30)
    violation = parse_metric("violation@0.2")(evidence)
    assert (violation.value, violation.n) == (changed[accepted].mean(), accepted.sum())
    assert taken.sum() > 0
    of_taken, wrong = (parse_metric(f"{name}@0.2")(evidence) for name in ("accepted", "accepted_changed"))
    assert (of_taken.value, of_taken.n) == (taken.mean(), 30)
    assert (wrong.value, wrong.n) == (changed[taken].mean(), taken.sum())
    few = parse_metric("accepted@0.01")(evidence)
    assert (few.value, "230 inputs" in str(few.reason)) == (None, True)


def test_too_few_inputs_are_null_and_say_how_many_it_takes() -> None:
    evidence = evidence_of(scores(), scores())
    for name in ("coverage", "violation", "joint_violation"):
        estimate = parse_metric(f"{name}@0.01")(evidence)
        assert estimate.value is None
        assert "needs 99 inputs to calibrate on, and there are 30" in str(estimate.reason)


def test_nothing_accepted_is_no_violation_of_zero() -> None:
    evidence = evidence_of(scores(), -scores())
    assert parse_metric("coverage@0.10")(evidence).value == 0
    estimate = parse_metric("violation@0.10")(evidence)
    assert estimate.value is None
    assert estimate.reason == "the stability check accepts no answer"


def test_two_runs_leave_out_the_same_inputs(tmp_path: Path) -> None:
    """Their coverage stands side by side, without a verdict: the threshold is of one draw."""
    reference = scores()
    candidates = (reference, flipped(reference, range(40)))
    a, b = (
        run_of(tmp_path / name, evidence_of(reference, candidate), spec=f"minilm@W{bits}")
        for name, candidate, bits in zip("ab", candidates, (8, 4), strict=True)
    )
    (coverage,) = compare_runs(a, b, [parse_metric("coverage@0.10")]).metrics
    assert (coverage.n, coverage.value_a, coverage.verdict) == (30, 1, None)
    assert (coverage.value_b or 0) < 1


# --- what forbids a verdict --------------------------------------------------------------------------


N, N_DOCS = 40, 200
RNG = np.random.default_rng(0)
QUERIES, DOCUMENTS = RNG.normal(size=(N, 16)), RNG.normal(size=(N_DOCS, 16))
FULL = Embeddings(QUERIES, DOCUMENTS)
FOUND = {str(row): {str(best): 1} for row, best in enumerate((QUERIES @ DOCUMENTS.T).argmax(axis=1))}
"""The first answer of every query by inner product."""
ONES = np.ones((N, 16))


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize(
    ("candidate", "codes"),
    [
        (Embeddings(QUERIES + 0.01, DOCUMENTS), set()),
        (Embeddings(0 * QUERIES, 0 * DOCUMENTS), {"candidate_constant"}),
        (Embeddings(QUERIES, np.ones_like(DOCUMENTS)), {"candidate_constant"}),
        (Embeddings(ONES, DOCUMENTS), {"candidate_constant"}),
        (Embeddings(QUERIES, np.full(DOCUMENTS.shape, -128, dtype=np.int8)), {"candidate_constant"}),
    ],
)
def test_embeddings_that_are_all_the_same_are_said(candidate: Embeddings, codes: set[str], similarity: str) -> None:
    data = drift(FULL, candidate, similarity=similarity).record["data"]
    assert data.get("forbids", {}).keys() == codes
    assert set(data.get("forbids", {}).values()) <= set(data["warnings"])
    assert any("duplicates" in note for note in data["warnings"]) == bool(codes)


def test_the_reference_too_and_scores_and_logits() -> None:
    scores = QUERIES @ DOCUMENTS.T
    assert drift(0 * scores, scores).record["data"]["forbids"].keys() == {"reference_constant"}
    classes = [str(n) for n in range(N_DOCS)]
    assert drift(scores, 0 * scores, classes=classes).record["data"]["forbids"].keys() == {"candidate_constant"}


def test_few_inputs_may_have_the_same_answers() -> None:
    scores = np.tile(np.arange(5.0), (9, 1))
    assert not forbidding(drift(scores, scores).evidence())
    scores = np.tile(np.arange(5.0), (10, 1))
    assert forbidding(drift(scores, scores).evidence()).keys() == {"reference_constant", "candidate_constant"}


@pytest.mark.parametrize(
    ("qrels", "near"),
    [
        (FOUND, False),
        ({row: {str((int(item) + 1) % N_DOCS): 1} for row, (item,) in FOUND.items()}, True),
        (dict(list(FOUND.items())[:1]), False),  # one of one, where chance has one of 20
        ({row: {str(item): 1 for item in range(N_DOCS)} for row in FOUND}, False),  # nothing can be missed
        ({}, False),
    ],
)
def test_a_reference_near_chance_is_said(qrels: Mapping[str, Mapping[str, int]], near: bool) -> None:
    candidate = Embeddings(QUERIES + 0.01, DOCUMENTS)
    data = drift(FULL, candidate, qrels=qrels, similarity="dot").record["data"]
    assert ("reference_near_chance" in data.get("forbids", {})) == near


@pytest.mark.parametrize(("right", "near"), [(13, True), (14, False)])
def test_of_two_classes_half_is_chance(right: int, near: bool) -> None:
    """Of 20 inputs 10 by chance, with a standard deviation of sqrt(5): from 10 + 1.645 * 2.236 = 13.7 on it is more."""
    logits = RNG.normal(size=(20, 2))
    labels = [int(first) if row < right else 1 - int(first) for row, first in enumerate(logits.argmax(axis=1))]
    run = drift(logits, logits + 0.01, classes=["0", "1"], labels=labels)
    assert ("reference_near_chance" in run.record["data"].get("forbids", {})) == near
