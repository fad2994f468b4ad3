"""The effective scale, and predicted against measured flips per contender count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quantdrift.compare.contenders import fit_effective_scale, flip_probability, predicted_by_contender_count
from quantdrift.errors import TheoryError
from quantdrift.evidence import Evidence
from quantdrift.statistics import rate_estimate
from support.theory_samples import evidence


@pytest.mark.parametrize("scale", [1e-6, 0.02, 1.0, 350.0])
def test_the_scale_that_made_the_rate_is_found(scale: float) -> None:
    rng = np.random.default_rng(3)
    gaps = np.cumsum(rng.exponential(scale / 2, (200, 6)), axis=1)
    rate = float(flip_probability(gaps, scale).mean())
    fit = fit_effective_scale(gaps, rate)
    assert fit.scale == pytest.approx(scale, rel=1e-9)
    assert fit.predicted == pytest.approx(rate, abs=1e-12)
    assert (fit.observed, fit.n, fit.reason) == (rate, 200, None)


def test_gaps_and_scale_share_one_unit() -> None:
    gaps = np.array([[0.1, 0.4], [0.3, 0.5]])
    first, second = (fit_effective_scale(unit * gaps, 0.2).scale for unit in (1, 8))
    assert first is not None
    assert second == pytest.approx(8 * first)


def test_one_contender_by_hand() -> None:
    # (1 - 1 / (2 s))^2 / 2 = 1/32 where 1 / (2 s) = 3/4
    assert fit_effective_scale([[1.0]], 1 / 32).scale == pytest.approx(2 / 3, rel=1e-11)


def test_missing_and_infinite_gaps_are_no_contenders_at_any_scale() -> None:
    gaps = [[1.0, np.nan], [np.inf, np.inf], [1.0, np.inf]]
    fit = fit_effective_scale(gaps, 2 / 3 * 0.125)
    assert fit.scale == pytest.approx(1.0)
    assert fit.floor == 0
    assert fit.ceiling == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("gaps", "rate", "reason"),
    [
        ([[1.0, 2.0]], 2 / 3, "no scale predicts more than 0.6667"),
        ([[1.0, 2.0]], 0.9, "no scale predicts more than 0.6667"),
        ([[1.0, 2.0]], 0.0, "every scale up to 0.5 predicts the rate observed"),
        ([[0.0], [3.0]], 0.1, "exact ties alone predict 0.25"),
        ([[0.0], [3.0]], 0.25, "every scale up to 1.5 predicts"),
        ([[0.0]], 0.5, "every scale predicts"),
        ([[np.nan]], 0.0, "every scale predicts"),
        ([[np.nan]], 0.1, "no scale predicts more than 0 "),
        ([[1e-300, 1e-300, 1e-300, 1e300]], 0.78, "no scale up to"),
    ],
)
def test_a_rate_that_no_one_scale_gives_says_why(gaps: Any, rate: float, reason: str) -> None:
    fit = fit_effective_scale(gaps, rate)
    assert (fit.scale, fit.predicted) == (None, None)
    assert fit.reason is not None
    assert reason in fit.reason


def group(scale: float, *, n_inputs: int = 4000, seed: int = 5) -> Evidence:
    """Inputs whose scores move uniformly within scale * epsilon, from 1 to 4 ranks stored."""
    rng = np.random.default_rng(seed)
    gaps = np.sort(rng.uniform(0, 4, (n_inputs, 4)), axis=1)
    scores = np.concatenate([np.full((n_inputs, 1), 8.0), 8.0 - gaps], axis=1)
    moved = scores + rng.uniform(-scale, scale, scores.shape)
    return evidence(scores.tolist(), [1.0] * n_inputs, flips=(moved.argmax(axis=1) > 0).tolist())


def test_a_group_that_follows_the_model_is_predicted_per_contender_count() -> None:
    prediction = predicted_by_contender_count([group(0.8), group(0.8, seed=6)])
    assert prediction.fit.n == 8000
    assert prediction.fit.scale == pytest.approx(0.8, rel=0.1)  # 8000 inputs tell no more
    by_count = {bucket.low: bucket for bucket in prediction.buckets}
    assert [by_count[w].measured.n for w in (0, 1, 2, 3, 4)] == pytest.approx([500, 2000, 3000, 2000, 500], rel=0.15)
    assert by_count[0].predicted == 0
    for count in (1, 2, 3, 4):
        bucket = by_count[count]
        assert bucket.predicted is not None
        assert bucket.measured.value is not None
        error = np.sqrt(bucket.predicted * (1 - bucket.predicted) / bucket.measured.n)
        assert abs(bucket.predicted - bucket.measured.value) <= 4 * error


def test_the_predictions_average_to_the_rate_that_was_fitted() -> None:
    prediction = predicted_by_contender_count([group(0.5, n_inputs=300)])
    filled = [b for b in prediction.buckets if b.predicted is not None]
    total = sum((b.predicted or 0) * b.measured.n for b in filled)
    assert total / 300 == pytest.approx(prediction.fit.observed, abs=1e-12)


def test_a_table_by_hand() -> None:
    """Gap 1 at epsilon 1 and gap 2 at epsilon 2 are the same to the model."""
    record = evidence(
        [[np.nan] * 3, [5, 4, 1], [5, 3, -9], [5, 4, 1], [5, 4, 1], [9, 1, 0], [5, np.nan, np.nan]],
        [np.nan, 1, 2, 1, 1, 1, 1],
        flips=[False, True, False, False, False, False, False],
    )
    prediction = predicted_by_contender_count([record], buckets=[(0, 0), (1, 1), (2, None)])
    none, one, more = prediction.buckets
    # four inputs of one contender at ratio 1 / (2 s), one flip among the six with an item
    assert prediction.fit.scale == pytest.approx(1 / (2 - np.sqrt(2)), rel=1e-11)
    assert one.predicted == pytest.approx(0.25, abs=1e-12)
    assert one.measured == rate_estimate(np.array([1.0, 0, 0, 0]))
    assert (none.predicted, none.measured.value, none.measured.n) == (0, 0, 2)
    assert (more.predicted, more.measured.value) == (None, None)
    assert more.measured.reason == "no input has so many"


def test_contenders_count_at_the_full_epsilon_and_the_boundary_is_none() -> None:
    record = evidence([[4, 2, 1], [4, 2.5, 1]], [1, 1], flips=[False, True])
    prediction = predicted_by_contender_count([record], buckets=[(0, 0), (1, 1)])
    assert [bucket.measured.value for bucket in prediction.buckets] == [0, 1]


def test_runs_of_different_depth_and_unit_are_pooled() -> None:
    deep = evidence([[5, 4, 3.5]], [1], flips=[True])
    shallow = evidence([[500, 400], [500, 450]], [100, 100])
    joint = evidence([[5, 4, 3.5], [5, 4, np.nan], [5, 4.5, np.nan]], [1, 1, 1], flips=[True, False, False])
    pooled, wanted = (predicted_by_contender_count(g) for g in ([deep, shallow], [joint]))
    assert pooled == wanted


def test_lists_that_end_among_the_contenders_are_counted() -> None:
    record = evidence(
        [[5, 4.9, 4.8], [5, 4.9, 4.8], [5, 4.9, 4]], [1, 1, 1], flips=[True, False, False], n_items=[90, 3, 90]
    )
    prediction = predicted_by_contender_count([record], buckets=[(1, 1), (2, 2)])
    assert [bucket.measured.n for bucket in prediction.buckets] == [0, 3]
    assert prediction.fit.scale == pytest.approx(0.21, abs=0.03)  # far below the last one's 1
    assert [bucket.n_cut_short for bucket in prediction.buckets] == [0, 1]


def test_without_a_flip_there_is_no_scale_and_no_prediction() -> None:
    prediction = predicted_by_contender_count([evidence([[5, 4]], [1])], buckets=[(1, 1)])
    assert prediction.fit.scale is None
    assert prediction.buckets[0].predicted is None
    assert prediction.buckets[0].measured.value == 0


def test_an_exact_copy_is_predicted_not_to_flip_ties_included() -> None:
    record = evidence([[5, 5], [5, 4]], [0, 1], flips=[False, True])
    prediction = predicted_by_contender_count([record], buckets=[(0, 0)])
    assert (prediction.fit.floor, prediction.fit.ceiling) == (0, 0.25)
    assert prediction.buckets[0].measured.n == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_effective_scale([[1.0]], 1.5), "from 0 to 1; got 1.5"),
        (lambda: fit_effective_scale([[1.0]], float("nan")), "got nan"),
        (lambda: fit_effective_scale(np.empty((0, 3)), 0.1), "at least one input"),
        (lambda: fit_effective_scale([[-1.0]], 0.1), "negative"),
        (lambda: predicted_by_contender_count([]), "at least one input with an item"),
    ],
)
def test_what_cannot_be_used_is_said(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TheoryError, match=message):
        call()
