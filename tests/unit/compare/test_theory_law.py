"""The law over runs: points, rank correlation, line, and what it explains of unseen runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from quantdrift.compare.law import PREDICTORS, LawPoint, fit_line, hold_out, law_point, r_squared, spearman
from quantdrift.errors import TheoryError
from support.theory_samples import evidence


def point(separation: float, change_rate: float, *, label: str = "", **others: float) -> LawPoint:
    values = {"gap": 1.0, "epsilon": 1.0, "n_items": 100.0} | others
    name = label or f"{separation} {change_rate}"
    return LawPoint(label=name, separation=separation, change_rate=change_rate, **values)


def test_a_run_becomes_a_point() -> None:
    record = evidence(
        [[5, 4, 1], [5, 3, 1], [5, 2, 1], [5, np.nan, np.nan], [np.nan] * 3],
        [1, 2, 0.5, 4, np.nan],
        flips=[True, False, False, False, False],
        n_items=[30, 20, 10, 1, 0],
    )
    assert law_point(record, label="m@W4") == LawPoint(
        label="m@W4",
        separation=0.5,  # of 1/2, 2/4, 3/1
        gap=2.0,  # of 1, 2, 3
        epsilon=1.5,  # of 1, 2, 0.5, 4
        n_items=15.0,  # of 30, 20, 10, 1
        change_rate=0.25,  # of the four inputs with an item
    )


def test_ranks_by_hand() -> None:
    # ranks 1 2 3 4 against 4 2 3 1: 1 - 6 * (9 + 0 + 0 + 9) / (4 * 15)
    points = [point(0.01, 0.9), point(0.1, 0.3), point(1, 0.4), point(math.inf, 0.0)]
    assert spearman(points).value == pytest.approx(-0.8)
    assert spearman(points).n == 4


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ([point(1, 0.1), point(2, 0.2)], "needs 3 runs; got 2"),
        ([point(1, 0.1), point(1, 0.2), point(1, 0.3)], "separation is the same"),
        ([point(1, 0.1), point(2, 0.1), point(3, 0.1)], "change rate is the same"),
    ],
)
def test_ranks_that_say_nothing_are_undefined(points: list[LawPoint], reason: str) -> None:
    estimate = spearman(points)
    assert estimate.value is None
    assert reason in (estimate.reason or "")


def test_a_line_by_hand_and_what_it_predicts() -> None:
    line = fit_line([point(0.1, 0.4), point(1, 0.3), point(10, 0.2)])
    assert [line.slope, line.intercept, line.pearson] == pytest.approx([-0.1, 0.3, -1])
    assert line.n == 3
    assert line.predict([point(100, 0), point(0.001, 1)]) == pytest.approx([0.1, 0.6])


def test_scipy_draws_the_same_line() -> None:
    rng = np.random.default_rng(1)
    points = [point(x, y) for x, y in zip(rng.lognormal(size=30), rng.uniform(size=30), strict=True)]
    line = fit_line(points)
    oracle = stats.linregress(np.log10([p.separation for p in points]), [p.change_rate for p in points])
    assert line.slope == pytest.approx(oracle.slope)
    assert line.intercept == pytest.approx(oracle.intercept)
    assert line.pearson == pytest.approx(oracle.rvalue)
    # On the very points fitted, R2 is the squared correlation.
    assert r_squared(line, points).value == pytest.approx(oracle.rvalue**2)


def test_runs_without_a_finite_logarithm_are_left_out_of_the_line() -> None:
    inner = [point(0.1, 0.4), point(1, 0.3), point(10, 0.1)]
    outer = [point(math.inf, 0.0), point(0.0, 0.9)]
    line = fit_line([*inner, *outer])
    assert line == fit_line(inner)
    assert r_squared(line, [*inner, *outer]) == r_squared(line, inner)


def test_r2_on_unseen_runs_by_hand() -> None:
    line = fit_line([point(0.1, 0.4), point(1, 0.3), point(10, 0.2)])
    # predicted 0.4 and 0.2, seen 0.5 and 0.1: 1 - 0.02 / 0.08
    assert r_squared(line, [point(0.1, 0.5), point(10, 0.1)]).value == pytest.approx(0.75)
    # A perfect correlation at the wrong level explains nothing: the line is not fitted again.
    shifted = [point(0.1, 0.9), point(1, 0.8), point(10, 0.7)]
    assert r_squared(line, shifted).value == pytest.approx(1 - 0.75 / 0.02)


def test_equal_rates_give_a_flat_line_and_no_r2() -> None:
    flat = [point(0.1, 0.3), point(1, 0.3)]
    line = fit_line(flat)
    assert (line.slope, line.intercept, line.pearson) == (0, 0.3, 0)
    assert r_squared(line, flat).reason == "the change rate is the same in all runs"
    assert "got 1" in (r_squared(line, flat[:1]).reason or "")


def test_the_law_beside_its_rivals() -> None:
    """Rates made from the separation; gap and epsilon vary with it, each alone explains less."""
    rng = np.random.default_rng(4)
    points = []
    for run in range(60):
        gap, epsilon = 10 ** rng.uniform(-2, 0, 2)
        rate = 0.3 - 0.1 * math.log10(gap / (2 * epsilon)) + rng.normal(0, 0.005)
        points.append(
            LawPoint(
                label=str(run), separation=gap / (2 * epsilon), gap=gap, epsilon=epsilon, n_items=1000, change_rate=rate
            )
        )
    held = {predictor: hold_out(points[:40], points[40:], name="rest", predictor=predictor) for predictor in PREDICTORS}
    orders = {predictor: spearman(points, predictor) for predictor in PREDICTORS}
    assert orders["separation"].value is not None
    assert orders["separation"].value < -0.99
    (law,) = held["separation"].groups
    assert law.line is not None
    assert law.line == fit_line(points[:40])  # the others only judge it
    assert law.line.slope == pytest.approx(-0.1, rel=0.02)
    assert law.r_squared.value is not None
    assert law.r_squared.value > 0.98
    for rival, sign in (("gap", -1), ("epsilon", 1)):
        order, score = orders[rival].value, held[rival].r_squared.value
        assert order is not None
        assert 0.3 < sign * order < 0.9
        assert score is not None
        assert score < 0.8
    assert orders["n_items"].reason == "the n_items is the same in all runs"
    (size,) = held["n_items"].groups
    assert size.line is None
    assert "different finite values" in (size.reason or "")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_line([point(1, 0.1), point(1, 0.2)]), "two runs with different"),
        (lambda: fit_line([]), "got 0 among 0 runs"),
        (lambda: law_point(evidence([[1], [2]], [1, 1]), label="m@W4"), "m@W4: a point needs"),
    ],
)
def test_what_cannot_be_used_is_said(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TheoryError, match=message):
        call()
