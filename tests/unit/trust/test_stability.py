"""The stability check on examples small enough to do by hand."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest

from quantdrift.conformal import (
    STATISTICS,
    ExchangeabilityWarning,
    StabilityError,
    Statistic,
    conformal_rank,
    generic_threshold,
    least_inputs,
    observe,
    split_conformal_threshold,
)
from quantdrift.errors import RunError, ScoreError, UnknownNameError
from quantdrift.trust.certify import certify
from quantdrift.trust.check import StabilityCheck
from support.comparison_samples import RECORD, evidence_of, flipped, scores

INF = math.inf


def rows(*values: list[float]) -> Any:
    return np.array(values, dtype=np.float32)


REFERENCE = rows([3, 1, 0], [3, 2, 0], [2, 1, 0], [5, 5, 0])
CANDIDATE = rows([3, 1, 0], [2, 3, 0], [1.5, 1.5, 0], [4, 6, 1])
"""An exact copy; a flip; a tie that position decides; a flip out of a tie."""


def test_the_level_and_how_many_inputs_it_takes() -> None:
    assert [least_inputs(alpha) for alpha in (0.1, 0.05, 0.01, 0.3, 0.5)] == [9, 19, 99, 3, 1]
    # 100 * (1 - 0.99) and the like are not whole in floating point
    for alpha in (0.1, 0.05, 0.01, 0.001, 0.3, 0.7):
        n = least_inputs(alpha)
        assert conformal_rank(n, alpha) <= n
        assert conformal_rank(n - 1, alpha) == n


def test_the_threshold_is_a_smallest_value_not_a_largest_one() -> None:
    values = np.arange(1.0, 20.0)  # 19 of them: the 18th smallest at level 0.1
    assert split_conformal_threshold(values, 0.1) == 18
    assert split_conformal_threshold(values[::-1], 0.05) == 19
    assert split_conformal_threshold(values, 0.04) == INF


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, math.nan])
def test_a_level_that_is_none_is_refused(alpha: float) -> None:
    with pytest.raises(StabilityError, match="a level above 0 and below 1"):
        split_conformal_threshold(np.ones(3), alpha)


def test_the_generic_threshold_is_a_quantile_of_the_flipped() -> None:
    confidence = np.arange(30.0)
    wrong = np.isin(confidence, [2, 3, 5, 7])
    assert generic_threshold(confidence, wrong, 0.5) == 5  # ceil(5 * 0.5) = 3rd of 4
    assert generic_threshold(confidence, wrong, 0.1) == 7  # rank 5 of 4: the last
    assert generic_threshold(confidence, np.zeros(30, dtype=bool), 0.1) == -INF
    assert generic_threshold(confidence, wrong, 0.01) == INF  # 30 inputs, 99 needed


def test_s_and_twice_epsilon_by_hand() -> None:
    seen = observe((REFERENCE, CANDIDATE), "S")
    assert seen.flipped.tolist() == [False, True, False, True]
    assert seen.confidence.tolist() == [2, 1, 0, 2]
    # delta: 0 0 0; -1 1 0; -.5 .5 0 with the first item leading; -1 1 1 with the second leading
    assert seen.values is not None
    assert seen.values.tolist() == [0, 2, 0, np.nextafter(2, INF)]
    twice = observe((REFERENCE, CANDIDATE), "2epsilon").values
    assert twice is not None
    assert twice.tolist() == [0, 2, 1, np.nextafter(2, INF)]


def test_arrays_and_evidence_say_the_same() -> None:
    reference = scores().astype(np.float32)
    candidate = (flipped(reference, range(5, 30)) * 1.1).astype(np.float32)
    evidence = evidence_of(reference, candidate)
    for name in ("S", "2epsilon", "gap"):
        one, other = observe(evidence, name), observe((reference, candidate), name)
        np.testing.assert_array_equal(one.flipped, other.flipped)
        np.testing.assert_array_equal(one.confidence, other.confidence)
        assert one.n_items == other.n_items == (12, 12)
        if one.values is not None and other.values is not None:
            # evidence rounds delta to float32
            np.testing.assert_allclose(one.values, other.values, atol=1e-6)


def test_an_exact_copy_is_accepted_ties_included() -> None:
    tied = np.ones((20, 4))
    check = StabilityCheck.calibrate((tied, tied), alpha=0.1)
    assert check.threshold == 0
    assert check.expected_coverage == 1
    assert check.accepts(tied).all()


def test_a_flip_at_a_tie_is_not_let_through() -> None:
    """All inputs flip with gap = S; were the threshold S itself, all would be accepted."""
    reference, candidate = np.tile([5.0, 5.0, 0.0], (9, 1)), np.tile([4.0, 6.0, 1.0], (9, 1))
    check = StabilityCheck.calibrate((reference, candidate), alpha=0.1)
    assert not check.accepts(candidate).any()


def test_too_few_inputs_accept_nothing_and_say_how_many_it_takes() -> None:
    check = StabilityCheck.calibrate((REFERENCE, CANDIDATE), alpha=0.1)
    assert check.threshold == INF
    assert not check.accepts([[1e30, 0.0]]).any()
    assert not check.accepts_confidence([INF, 1e308, np.nan]).any()  # inf reaches inf
    assert check.reason is not None
    assert "takes 9 calibration inputs, and there are 4" in check.reason


def test_a_confidence_must_exceed_its_threshold() -> None:
    reference = np.tile([2.0, 0.0], (9, 1))
    candidate = reference.copy()
    candidate[0] = [0.0, 1.0]
    check = StabilityCheck.calibrate((reference, candidate), alpha=0.1, statistic="gap")
    assert (check.threshold, check.n_flipped) == (1, 1)
    served = [1, np.nextafter(1, 2), np.nan]
    assert check.accepts_confidence(served).tolist() == [False, True, False]
    assert not check.accepts_confidence([INF, -INF]).any()
    everything = StabilityCheck.calibrate((reference, reference), alpha=0.1, statistic="gap")
    assert everything.threshold == -INF
    assert everything.accepts([[1.0, 1.0]]).all()
    assert everything.reason == ("no calibration input changed its top-1, so that everything is accepted")


def test_msp_and_entropy_look_at_all_items() -> None:
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(50, 4))
    candidate = reference + rng.normal(size=(50, 4))
    names: tuple[Statistic, ...] = ("msp", "entropy")
    for name in names:
        check = StabilityCheck.calibrate((reference, candidate), alpha=0.2, statistic=name)
        accepted = check.accepts(candidate)
        assert 0 < accepted.sum() < 50
        assert accepted.mean() == check.expected_coverage
        with pytest.raises(ScoreError, match="calibrated on 4 to 4 items; got 3"):
            check.accepts(candidate[:, :3])


def test_similarities_have_no_softmax() -> None:
    evidence = evidence_of(scores(), scores())
    with pytest.raises(RunError, match="similarities"):
        StabilityCheck.calibrate(evidence, statistic="msp")


def test_the_names_of_the_statistics() -> None:
    assert get_args(Statistic) == STATISTICS
    unknown: Any = "2epsilons"
    with pytest.raises(UnknownNameError, match="2epsilon"):
        observe((REFERENCE, CANDIDATE), unknown)


def test_pairs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ScoreError, match="shapes"):
        observe((REFERENCE, CANDIDATE[:, :2]))
    with pytest.raises(ScoreError, match="finite"):
        observe((REFERENCE, np.full_like(REFERENCE, np.nan)))
    with pytest.raises(StabilityError, match="nothing to calibrate on"):
        StabilityCheck.calibrate((np.empty((0, 3)), np.empty((0, 3))))


def test_inputs_with_one_item_take_no_part() -> None:
    evidence = evidence_of(scores(), flipped(scores(), range(30)))
    evidence.n_items[:10] = 1
    evidence.candidate_top.candidate_scores[:10, 1] = np.nan
    seen = observe(evidence)
    assert seen.defined.tolist() == [False] * 10 + [True] * 50
    assert StabilityCheck.calibrate(evidence).n_calibration == 50


def test_one_stored_rank_is_too_few() -> None:
    with pytest.raises(StabilityError, match="--k 2"):
        observe(evidence_of(scores(), scores(), k=1))


def test_a_check_knows_what_it_was_calibrated_on() -> None:
    evidence = evidence_of(scores(), scores())
    check = StabilityCheck.calibrate(evidence, on=RECORD)
    assert check.origin.spec == "minilm@W4-g64-rtn"
    assert check.origin.data == "corpus"
    assert (check.n_items_min, check.n_items_max) == (12, 12)
    with pytest.raises(RunError, match=r"minilm@W3; got one of minilm@W4-g64-rtn"):
        StabilityCheck.calibrate(evidence, on=RECORD, spec="minilm@W3")
    named = StabilityCheck.calibrate(evidence, spec="minilm@W4", on="clicks")
    assert (named.origin.spec, named.origin.data) == ("minilm@W4-g128-rtn", "clicks")


def test_served_inputs_that_differ_are_warned_of() -> None:
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(400, 6))
    check = StabilityCheck.calibrate((whole[:200], whole[:200]), alpha=0.1)
    same = check.resembles(whole[200:])
    assert same.alike
    assert "show no difference" in same.sentence
    with pytest.warns(ExchangeabilityWarning, match="Calibrate again"):
        other = check.resembles(whole[200:] * 0.2)
    assert not other.alike
    assert other.p_value < 1e-3
    with pytest.raises(ScoreError, match="at least one served input"):
        check.resembles(np.empty((0, 6)))


def test_scores_and_confidences_are_never_taken_for_each_other() -> None:
    whole = np.random.default_rng(0).normal(size=(200, 6))
    check = StabilityCheck.calibrate((whole, whole), alpha=0.1)
    gaps = check.confidence(whole[:50])
    assert check.resembles_confidence(gaps) == check.resembles(whole[:50])
    with pytest.raises(ScoreError, match="One input is a batch of one"):
        check.resembles(whole[0])  # six scores of one input are no six confidences
    with pytest.raises(ScoreError, match=r"are what resembles\(\) takes"):
        check.resembles_confidence(whole)
    with pytest.raises(ScoreError, match="got 2 of which 1 are NaN or infinite"):
        check.resembles_confidence([1.0, INF])


def test_a_large_calibration_set_is_sampled_at_random() -> None:
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(5_000, 2))
    check = StabilityCheck.calibrate((whole, whole))
    gaps = set(np.abs(whole[:, 0] - whole[:, 1]).tolist())
    assert len(check.sample) == len(set(check.sample)) == 1_000
    assert set(check.sample) <= gaps
    assert list(check.sample) == sorted(check.sample)


def test_a_split_by_hand() -> None:
    """Nine of ten calibrate at level 0.1; whichever they are, their largest S is the threshold."""
    reference = np.tile([10.0, 0.0], (10, 1))
    candidate = reference + np.array([[0.0, size] for size in range(10)])  # S = 0, gap = 10 - size
    found = certify((reference, candidate), [0.1, 0.01], n_splits=50, share=0.9)
    (one, other) = found.certificates
    assert (found.n_inputs, found.n_calibration, found.flip_rate) == (10, 9, 0)
    assert one.coverage is not None
    assert (one.coverage.mean, one.coverage.sd, one.threshold) == (1, 0, 0)
    assert one.violation is not None
    assert one.violation.mean == 0
    assert other.coverage is other.violation is other.joint_violation is None
    assert other.threshold == INF
    assert other.reason is not None
    assert "99" in other.reason
    listed = other.to_json()
    assert listed["coverage"] == {"value": None, "reason": other.reason}
    assert listed["threshold"]["value"] is None


def test_nothing_accepted_has_no_violation() -> None:
    reference, candidate = np.tile([1.0, 0.0], (20, 1)), np.tile([0.0, 1.0], (20, 1))
    (found,) = certify((reference, candidate), [0.2]).certificates
    assert found.coverage is not None
    assert found.joint_violation is not None
    assert (found.coverage.mean, found.joint_violation.mean) == (0, 0)
    assert found.violation is None
    assert found.reason == "no split accepts any input"


@pytest.mark.parametrize("wrong", [{"n_splits": 0}, {"share": 0}, {"share": 1.0}])
def test_splits_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(StabilityError, match="at least one split"):
        certify((REFERENCE, CANDIDATE), [0.1], **wrong)
    with pytest.raises(StabilityError, match="at least two inputs"):
        certify((REFERENCE[:1], CANDIDATE[:1]), [0.1])
