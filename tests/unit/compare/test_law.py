"""The law over runs: points, rank correlation, line, and what it explains of unseen runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from quantdrift.compare.law import (
    PREDICTORS,
    LawPoint,
    fit_line,
    hold_out,
    law_point,
    leave_one_out,
    spearman,
    split_by_patterns,
)
from quantdrift.errors import TheoryError
from support.theory_samples import evidence


def point(separation: float, change_rate: float, label: str = "", gap: float = 1.0, epsilon: float = 1.0) -> LawPoint:
    name = label or f"{separation} {change_rate}"
    return LawPoint(label=name, separation=separation, change_rate=change_rate, gap=gap, epsilon=epsilon, n_items=100.0)


A = [point(0.1, 0.4), point(1, 0.2)]  # a line of -0.2 per factor of ten
B = [point(0.01, 0.6), point(10, 0.1)]  # a line of -1/6, which is 13/30 at 0.1 and 8/30 at 1
NO_LOGARITHM = [point(math.inf, 0.0), point(0.0, 0.9)]


def test_a_run_becomes_a_point() -> None:
    record = evidence(
        [[5, 4, 1], [5, 3, 1], [5, 2, 1], [5, np.nan, np.nan], [np.nan] * 3],
        [1, 2, 0.5, 4, np.nan],
        flips=[True, False, False, False, False],
        n_items=[30, 20, 10, 1, 0],
    )
    found = law_point(record, label="m@W4")
    assert found.separation == 0.5  # of 1/2, 2/4, 3/1
    assert found.gap == 2.0  # of 1, 2, 3
    assert found.epsilon == 1.5  # of 1, 2, 0.5, 4
    assert found.n_items == 15.0  # of 30, 20, 10, 1
    assert (found.change_rate, found.changed.value, found.changed.n) == (0.25, 0.25, 4)  # inputs with an item
    with pytest.raises(TheoryError, match="m@W4"):
        law_point(evidence([[1], [2]], [1, 1]), label="m@W4")


def test_ranks_by_hand() -> None:
    # ranks 1 2 3 4 against 4 2 3 1: 1 - 6 * (9 + 0 + 0 + 9) / (4 * 15)
    points = [point(0.01, 0.9), point(0.1, 0.3), point(1, 0.4), point(math.inf, 0.0)]
    assert spearman(points).value == pytest.approx(-0.8)
    for few in (points[:2], [point(1, 0.1)] * 3, [point(x, 0.1) for x in (1, 2, 3)]):
        assert spearman(few).value is None


def test_a_line_by_hand_and_what_it_predicts() -> None:
    line = fit_line([point(0.1, 0.4), point(1, 0.3), point(10, 0.2), *NO_LOGARITHM])
    assert [line.slope, line.intercept, line.pearson, line.n] == pytest.approx([-0.1, 0.3, -1, 3])
    assert line.predict([point(100, 0), point(0.001, 1)]) == pytest.approx([0.1, 0.6])
    flat = fit_line([point(0.1, 0.3), point(1, 0.3)])
    assert [flat.slope, flat.intercept, flat.pearson] == pytest.approx([0, 0.3, 0])
    for few in ([], [point(1, 0.1), point(1, 0.2)]):
        with pytest.raises(TheoryError, match="two runs with different finite values"):
            fit_line(few)


def test_scipy_draws_the_same_line() -> None:
    rng = np.random.default_rng(1)
    points = [point(x, y) for x, y in zip(rng.lognormal(size=30), rng.uniform(size=30), strict=True)]
    line = fit_line(points)
    oracle = stats.linregress(np.log10([p.separation for p in points]), [p.change_rate for p in points])
    assert [line.slope, line.intercept, line.pearson] == pytest.approx([oracle.slope, oracle.intercept, oracle.rvalue])
    # on the very points fitted, R2 is the squared correlation
    held = hold_out({"same": (points, points)}, "separation")
    assert held.r_squared.value == pytest.approx(oracle.rvalue**2)


def test_two_groups_by_hand() -> None:
    held = leave_one_out({"a": A, "b": B})
    first, second = held.groups
    assert (first.line, second.line) == (fit_line(B), fit_line(A))
    assert list(first.predicted.values()) == pytest.approx([13 / 30, 8 / 30])
    assert list(second.predicted.values()) == pytest.approx([0.6, 0.0])
    assert [first.mean_error.value, second.mean_error.value] == pytest.approx([0.05, 0.05])
    # residuals -1/30, -2/30, 0, 1/10; rates 0.4, 0.2, 0.6, 0.1 around 0.325
    assert held.r_squared.value == pytest.approx(1 - (5 / 900 + 0.01) / 0.1475)
    assert (held.mean_error.value, held.mean_error.n) == (pytest.approx(0.05), 4)


@pytest.mark.parametrize("predictor", ["separation", "gap"])
def test_numpy_says_the_same_for_four_groups(predictor: str) -> None:
    rng = np.random.default_rng(3)
    draws = rng.lognormal(size=(28, 2)), rng.uniform(size=28)
    points = [point(x, y, f"{n}", gap) for n, ((x, gap), y) in enumerate(zip(*draws, strict=True))]
    groups = {name: points[7 * n : 7 * n + 7] for n, name in enumerate("abcd")}
    residuals = []
    for name, members in groups.items():
        others = [p for other in groups if other != name for p in groups[other]]
        line = np.polyfit(np.log10([getattr(p, predictor) for p in others]), [p.change_rate for p in others], 1)
        residuals += [p.change_rate - np.polyval(line, np.log10(getattr(p, predictor))) for p in members]
    held = leave_one_out(groups, predictor)  # type: ignore[arg-type]  # names of predictors
    expected = 1 - np.mean(np.square(residuals)) / np.var([p.change_rate for p in points])
    assert held.r_squared.value == pytest.approx(expected)
    assert held.mean_error.value == pytest.approx(np.abs(residuals).mean())


def test_the_law_beside_its_rivals() -> None:
    """Rates made from the separation; gap and epsilon vary with it, each alone explains less."""
    rng = np.random.default_rng(4)
    points = []
    for run in range(60):
        gap, epsilon = 10 ** rng.uniform(-2, 0, 2)
        rate = 0.3 - 0.1 * math.log10(gap / (2 * epsilon)) + rng.normal(0, 0.005)
        points.append(point(gap / (2 * epsilon), rate, str(run), gap, epsilon))
    scores = {which: hold_out({"rest": (points[:40], points[40:])}, which).r_squared.value for which in PREDICTORS}
    assert (spearman(points).value or 0) < -0.99
    assert (scores["separation"] or 0) > 0.98
    assert (scores["gap"] or 0) < 0.8
    assert (scores["epsilon"] or 0) < 0.8
    assert scores["n_items"] is None


RUNS = [
    point(1, 0.1, label)
    for label in (
        "minilm@W3-g128-rtn on med",
        "minilm@W3-g128-rtn+query on med",
        "minilm@W4-g128-rtn on med",
        "minilm@W4-g128-rtn on scifact",
    )
]


@pytest.mark.parametrize(
    ("patterns", "held"),
    [
        (["scifact"], [3]),
        (["W3-g128-rtn"], [0, 1]),  # a part of the label
        (["*@W3-g128-rtn on *"], [0]),  # all of it
        (["*W[4]-*"], [2, 3]),
        (["W[34]-*"], "no run matches"),  # wildcards are for all of the label
        (["SCIFACT"], "no run matches"),
        (["W4", "W5"], "no run matches 'W5'"),  # one of them would be forgotten
        (["minilm"], "'minilm' matches every run"),
        (["W3", "W4"], "match every run"),
    ],
)
def test_patterns_choose_the_runs_held_out(patterns: list[str], held: list[int] | str) -> None:
    if isinstance(held, str):
        with pytest.raises(TheoryError, match=held):
            split_by_patterns(RUNS, patterns)
        return
    fitted, chosen = split_by_patterns(RUNS, patterns)
    assert chosen == [RUNS[i] for i in held]
    assert fitted == [run for run in RUNS if run not in chosen]
