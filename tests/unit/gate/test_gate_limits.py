"""Limits: on what is observed, and on what is only known to be bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.finished.diff import diff_runs
from quantdrift.finished.readers import read_finished
from quantdrift.gate.judge import Judgement, gate, snapshot_for
from quantdrift.gate.target import Target, target_of_diff
from quantdrift.metrics import FAMILIES, MetricError, members
from support.comparison_samples import evidence_of
from support.finished_samples import A, B, write_trec
from support.gate_samples import evidence, reference, rules, target

EXACT = pytest.approx


def limit(judged: Target, rule: str, **asked: Any) -> Judgement:
    (found,) = gate(judged, rules(rule), **asked).judgements
    return found


@pytest.mark.parametrize(
    ("rule", "outcome", "reason"),
    [
        ("flip@1 <= 0.25", "pass", "within the limit"),
        ("flip@1 <= 0.2499", "fail", "above the limit"),
        ("flip@1 >= 0.25", "pass", "within the limit"),
        ("flip@1 >= 0.2501", "fail", "below the limit"),
        ("flip@1 <= 1", "pass", "within the limit"),
        ("flip@1 <= 0", "fail", "above the limit"),
        ("reference.ndcg@10 >= 1", "pass", "within the limit"),
        ("ndcg@10 >= 0.95", "fail", "below the limit"),
        ("recall@10 >= 1", "pass", "within the limit"),
        ("gold_lost@1 <= 25 %", "pass", "within the limit"),
    ],
)
def test_what_is_observed_decides(rule: str, outcome: str, reason: str) -> None:
    """15 of 60 inputs flip, so that nDCG@10 is 0.75 + 0.25 / log2(3), 0.908."""
    found = limit(target(evidence(range(15))), rule)
    assert (found.outcome, found.reason) == (outcome, reason)
    assert (found.n, found.before, found.p_worse, found.difference) == (60, None, None, None)


def test_a_change_and_a_ratio_of_means() -> None:
    here = target(evidence(range(15)))
    loss = 0.25 * (1 - 1 / np.log2(3))
    for arm in ("change", "relative"):  # the reference's mean is 1
        found = limit(here, f"{arm}.ndcg@10 >= -0.1")
        assert found.outcome == "pass"
        assert found.now is not None
        assert found.now.value == EXACT(-loss)
        assert limit(here, f"{arm}.ndcg@10 >= -0.09").outcome == "fail"


def test_a_limit_that_is_met_exactly_holds_in_any_order_of_inputs() -> None:
    """0.1 + 0.2 + 0.3 is not 0.6 to the last bit, and 0.3 + 0.2 + 0.1 is."""
    shuffled = np.random.default_rng(0).permuted(reference(), axis=1)
    whole = evidence_of(reference(), shuffled)  # the relevant item at any rank
    here = [target(whole.part(np.random.default_rng(n).permutation(60))) for n in range(30)]
    (metric,) = (rule.metric for rule in rules("ndcg@10 <= 1"))
    values = {float(each.values(metric).mean()) for each in here}
    assert len(values) > 1
    for value in values:
        for each in here:
            assert limit(each, f"ndcg@10 <= {value!r}").outcome == "pass"
            assert limit(each, f"ndcg@10 >= {value!r}").outcome == "pass"


def test_medians_and_infinity() -> None:
    """No delta at all: every separation ratio is infinite, and above any limit."""
    exact = target(evidence([]))
    assert limit(exact, "separation >= 1").outcome == "pass"
    assert limit(exact, "separation <= 1000").outcome == "fail"
    flipped = target(evidence(range(60)))
    assert limit(flipped, "separation >= 0.5").outcome == "pass"
    assert limit(flipped, "separation >= 0.51").outcome == "fail"


def test_noise_that_was_not_measured() -> None:
    found = limit(target(evidence(range(15))), "noise_floor <= 0.01")
    assert (found.outcome, found.reason) == ("error", "undefined: the noise floor was not measured")


def test_undefined_is_an_error_and_says_why() -> None:
    unlabelled = target(evidence(range(15), labels=False))
    found = limit(unlabelled, "gold_lost@10 <= 0.5")
    assert (found.outcome, found.reason) == ("error", "undefined: no relevance labels")
    assert limit(unlabelled, "relative.ndcg@10 >= -0.5").outcome == "error"
    none = limit(target(evidence([])), "flip_to_irrelevant <= 0.5")
    assert none.reason == "undefined: no input with a judgement flipped"
    sliced = limit(target(evidence([40])), "flip_to_irrelevant [first] <= 0.5", slices={"first": ["q?"]})
    assert (sliced.outcome, sliced.reason) == ("error", none.reason)


def test_a_run_that_stored_too_few_ranks() -> None:
    here = target(evidence(range(3), k=5))
    with pytest.raises(MetricError, match=r"run again with --k 10"):
        gate(here, rules("ndcg@10 >= 0.5"))
    assert limit(here, "ndcg@5 >= 0.5").outcome == "pass"


def test_a_slice_of_all_inputs_is_no_slice() -> None:
    """Values of a slice are not rounded, and estimated as those of the whole."""
    here = target(evidence(range(7), noise=range(3, 9)))
    for family in FAMILIES.values():
        for metric in members(family):
            low, high = metric.low, metric.high
            number = low if np.isfinite(low) else min(high, 0.0)
            whole = limit(here, f"{metric} >= {number!r}")
            part = limit(here, f"{metric} [all] >= {number!r}", slices={"all": ["*"]})
            assert (whole.outcome, whole.n) == (part.outcome, part.n), str(metric)
            if whole.now is not None:
                assert part.now is not None
                assert part.now.value == EXACT(whole.now.value, abs=1e-15), str(metric)


def test_scores_of_the_size_of_rounding_are_not_rounded_in_a_slice() -> None:
    found = evidence([])
    tiny = np.full(60, 4e-7, dtype=np.float32)
    small = target(type(found)(**{**fields(found), "delta_max": tiny}))
    for rule in ("epsilon <= 1e-7", "epsilon [all] <= 1e-7"):
        assert limit(small, rule, slices={"all": ["*"]}).outcome == "fail"


def fields(of: Any) -> dict[str, Any]:
    return {name: getattr(of, name) for name in of.__slots__}


@pytest.fixture
def listed(tmp_path: Path) -> Target:
    """Two TREC runs: q1 flips and q2 does not; epsilon is at least 0.1 and 0.05."""
    paths = [write_trec(tmp_path / f"{name}.trec", held) for name, held in (("a", A), ("b", B))]
    return target_of_diff(diff_runs(*(read_finished(path) for path in paths)))


@pytest.mark.parametrize(
    ("rule", "outcome", "reason"),
    [
        ("flip@1 <= 0.5", "pass", "within the limit"),
        ("at_risk <= 0.3", "fail", "above the limit"),
        ("epsilon <= 0.01", "fail", "above the limit"),
        ("separation >= 2", "fail", "below the limit"),
        ("at_risk <= 0.9", "error", "undefined: only a bound is known"),
        ("at_risk >= 0.3", "error", "undefined: only a bound is known"),
        ("at_risk >= 0.9", "error", "undefined: only a bound is known"),
        ("separation >= 1", "error", "undefined: only a bound is known"),
        ("separation <= 2", "error", "undefined: only a bound is known"),
        ("at_risk [all] <= 0.3", "error", "undefined: only a bound is known"),
        ("coverage@0.1 >= 0.5", "error", "undefined: needs every item's score in both arms"),
        ("tau_b@10 >= 0.5", "error", "undefined: needs every item's score in both arms"),
        ("rbo@10 >= 0.5", "error", "these lists are 3 deep"),
        ("separation >= 0.5", "error", "undefined: only a bound is known"),
    ],
)
def test_a_bound_decides_one_way_only(listed: Target, rule: str, outcome: str, reason: str) -> None:
    """at_risk is at least 0.5 and the separation ratio at most 1.75, epsilon at least 0.075."""
    found = limit(listed, rule, slices={"all": ["*"]})
    assert found.outcome == outcome
    assert reason in found.reason


def test_bounds_are_not_compared(listed: Target) -> None:
    """Two lower bounds say nothing of which is the larger."""
    asked = rules("at_risk no worse", "tau_b@10 no worse", "flip@1 no worse")
    baseline = snapshot_for(listed, asked)
    assert "at_risk" not in baseline.values
    found = gate(listed, asked, baseline).judgements
    assert [each.outcome for each in found] == ["error", "error", "pass"]
    assert found[0].reason.startswith("undefined: only a bound is known")
    assert found[1].reason.startswith("undefined: needs every item's score in both arms")
