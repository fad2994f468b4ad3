"""How sure a model looks, and the least of it that is accepted: by hand, and against scipy."""

import math
from typing import Any, get_args

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import entropy

from quantdrift.base.errors import ScoreError, UnknownNameError
from quantdrift.statistics import conformal
from quantdrift.statistics.conformal import CONFIDENCES, STATISTICS, ConfidenceName, StabilityError, Statistic
from support.comparison_samples import evidence_of, scores

INF = math.inf
SCORES = np.array([[1.0, 4.0, 2.5], [0.0, 0.0, -1.0]])
# an exact copy; a flip; a tie that position decides; a flip out of a tie
REFERENCE = np.array([[3, 1, 0], [3, 2, 0], [2, 1, 0], [5, 5, 0]], dtype=np.float32)
CANDIDATE = np.array([[3, 1, 0], [2, 3, 0], [1.5, 1.5, 0], [4, 6, 1]], dtype=np.float32)


def test_the_gap_is_first_minus_second_in_any_order_and_changes_nothing() -> None:
    served = SCORES.copy()
    assert (
        conformal.confidence_of(served).tolist() == conformal.confidence_of(served[:, [2, 0, 1]]).tolist() == [1.5, 0.0]
    )
    assert conformal.confidence_of(served[:, :2]).tolist() == [3.0, 0.0]
    assert (served.tolist(), conformal.confidence_of(np.zeros((0, 3))).tolist()) == (SCORES.tolist(), [])


@pytest.mark.parametrize("n_items", [2, 3, 77])
def test_softmax_confidences_are_scipys(n_items: int) -> None:
    logits = np.random.default_rng(0).normal(scale=4, size=(50, n_items))
    p = softmax(logits, axis=1)
    assert np.allclose(conformal.confidence_of(logits, "msp"), p.max(axis=1))
    assert np.allclose(conformal.confidence_of(logits, "entropy"), -entropy(p, axis=1), atol=1e-12)
    far = conformal.softmax_confidence([[2000.0, 0.0, -2000.0]])
    assert (far.msp[0], far.entropy[0]) == (1.0, 0.0)


@pytest.mark.parametrize("name", CONFIDENCES)
@pytest.mark.parametrize("wrong", [[1.0, 2.0], [[1.0], [2.0]], [[1.0, math.nan]], [[1.0, INF]], [[1.0, 2.0], [3.0]]])
def test_scores_that_have_no_lead_are_refused(wrong: Any, name: ConfidenceName) -> None:
    with pytest.raises(ScoreError, match="expected"):
        conformal.confidence_of(wrong, name)


def test_s_and_twice_epsilon_by_hand() -> None:
    seen = conformal.observe((REFERENCE, CANDIDATE), "S")
    assert (seen.flipped.tolist(), seen.confidence.tolist()) == ([False, True, False, True], [2, 1, 0, 2])
    # delta: 0 0 0; -1 1 0; -.5 .5 0 with the first item leading; -1 1 1 with the second leading
    assert seen.values is not None
    assert seen.values.tolist() == [0, 2, 0, np.nextafter(2, INF)]
    twice = conformal.observe((REFERENCE, CANDIDATE), "2epsilon").values
    assert twice is not None
    assert twice.tolist() == [0, 2, 1, np.nextafter(2, INF)]


def test_what_cannot_be_observed_is_refused() -> None:
    assert get_args(Statistic) == STATISTICS
    unknown: Any = "2epsilons"
    with pytest.raises(UnknownNameError, match="2epsilon"):
        conformal.observe((REFERENCE, CANDIDATE), unknown)
    with pytest.raises(ScoreError, match="shapes"):
        conformal.observe((REFERENCE, CANDIDATE[:, :2]))
    with pytest.raises(ScoreError, match="finite"):
        conformal.observe((REFERENCE, np.full_like(REFERENCE, np.nan)))
    with pytest.raises(StabilityError, match="keep more \\(k"):
        conformal.observe(evidence_of(scores(), scores(), k=1))


def test_the_level_and_how_many_inputs_it_takes() -> None:
    assert [conformal.least_inputs(alpha) for alpha in (0.1, 0.05, 0.01, 0.3, 0.5)] == [9, 19, 99, 3, 1]
    # 100 * (1 - 0.99) and the like are not whole in floating point
    for alpha in (0.1, 0.05, 0.01, 0.001, 0.3, 0.7):
        n = conformal.least_inputs(alpha)
        assert conformal.conformal_rank(n, alpha) <= n
        assert conformal.conformal_rank(n - 1, alpha) == n


def test_the_threshold_is_a_smallest_value_not_a_largest_one() -> None:
    values = np.arange(1.0, 20.0)  # 19 of them: the 18th smallest at level 0.1
    assert conformal.split_conformal_threshold(values, 0.1) == 18
    assert conformal.split_conformal_threshold(values[::-1], 0.05) == 19
    assert conformal.split_conformal_threshold(values, 0.04) == INF
    for alpha in (0, 1, -0.1, 1.5, math.nan):
        with pytest.raises(StabilityError, match="above 0 and below 1"):
            conformal.split_conformal_threshold(np.ones(3), alpha)


def test_the_generic_threshold_is_a_quantile_of_the_inputs_that_flipped() -> None:
    confidence = np.arange(1.0, 11.0)
    flipped = confidence <= 3
    assert conformal.generic_threshold(confidence, flipped, 0.1) == 3  # the third of three, as ceil(4 * 0.9) is 4
    assert conformal.generic_threshold(confidence, flipped, 0.5) == 2
    assert conformal.generic_threshold(confidence, confidence > 99, 0.1) == -math.inf
    assert conformal.generic_threshold(confidence[:8], flipped[:8], 0.1) == math.inf  # nine inputs are the least
