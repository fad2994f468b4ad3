"""coverage, violation and joint violation as metrics of a run."""

from pathlib import Path

import numpy as np

from quantdrift.compare.two_runs import compare_runs
from quantdrift.metrics import parse_metric
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
    check = StabilityCheck.calibrate(part, alpha=0.2, guarantee="joint")
    accepted = check.accepts(candidate.astype(np.float32)[~chosen])
    changed = (reference.argmax(axis=1) != candidate.argmax(axis=1))[~chosen]
    assert 0 < (accepted & changed).sum() < accepted.sum() < 30
    coverage = parse_metric("coverage@0.2")(evidence)
    assert (coverage.value, coverage.n) == (accepted.mean(), 30)
    joint = parse_metric("joint_violation@0.2")(evidence)
    assert (joint.value, joint.n) == ((accepted & changed).mean(), 30)
    violation = parse_metric("violation@0.2")(evidence)
    assert (violation.value, violation.n) == (changed[accepted].mean(), accepted.sum())


def test_what_is_accepted_is_a_conditional_check_calibrated_on_that_half() -> None:
    rng = np.random.default_rng(1)
    reference = rng.normal(size=(60, 12))
    candidate = reference + rng.standard_t(2, reference.shape) * 0.05
    evidence, chosen = evidence_of(reference, candidate), calibrates(NAMES)
    check = StabilityCheck.calibrate(evidence.part(np.flatnonzero(chosen)), alpha=0.2)
    taken = check.accepts(candidate.astype(np.float32)[~chosen])
    changed = (reference.argmax(axis=1) != candidate.argmax(axis=1))[~chosen]
    assert taken.sum() > 0
    accepted, wrong = (parse_metric(f"{name}@0.2")(evidence) for name in ("accepted", "accepted_changed"))
    assert (accepted.value, accepted.n) == (taken.mean(), 30)
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
