"""The law over runs: points, rank correlation, line, and what it explains of unseen runs."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from quantdrift.base.errors import TheoryError
from quantdrift_paper.law import LawPoint, fit_line, law_point, leave_one_out, spearman, spearman_over, study_law
from support.theory_samples import evidence


def point(separation: float, change_rate: float, label: str = "", gap: float = 1.0, epsilon: float = 1.0) -> LawPoint:
    name = label or f"{separation} {change_rate}"
    return LawPoint(label=name, separation=separation, change_rate=change_rate, gap=gap, epsilon=epsilon, n_items=100.0)


NO_LOGARITHM = [point(math.inf, 0.0), point(0.0, 0.9)]


def test_a_run_becomes_a_point() -> None:
    record = evidence(
        [[5, 4, 1], [5, 3, 1], [5, 2, 1], [5, np.nan, np.nan], [np.nan] * 3],
        [1, 2, 0.5, 4, np.nan],
        flips=[True, False, False, False, False],
        n_items=[30, 20, 10, 1, 0],
    )
    of_run = law_point(record, label="m@W4")
    assert of_run.separation == 0.5  # of 1/2, 2/4, 3/1
    assert of_run.gap == 2.0  # of 1, 2, 3
    assert of_run.epsilon == 1.5  # of 1, 2, 0.5, 4
    assert of_run.n_items == 15.0  # of 30, 20, 10, 1
    assert (of_run.change_rate, of_run.changed.value, of_run.changed.n) == (0.25, 0.25, 4)  # inputs with an item
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
        with pytest.raises(TheoryError, match="two runs"):
            fit_line(few)


@pytest.mark.parametrize("predictor", ["separation", "gap"])
def test_numpy_says_the_same_for_four_groups(predictor: str) -> None:
    rng = np.random.default_rng(3)
    draws = rng.lognormal(size=(28, 2)), rng.uniform(size=28)
    points = [point(x, y, f"{n}", gap) for n, ((x, gap), y) in enumerate(zip(*draws, strict=True))]
    x, y = np.log10([getattr(p, predictor) for p in points]), np.array([p.change_rate for p in points])
    residuals = np.zeros(28)
    for start in range(0, 28, 7):
        out = np.arange(start, start + 7)
        residuals[out] = y[out] - np.polyval(np.polyfit(np.delete(x, out), np.delete(y, out), 1), x[out])
    held = leave_one_out({name: points[7 * n : 7 * n + 7] for n, name in enumerate("abcd")}, predictor)  # type: ignore[arg-type]
    assert held.r_squared.value == pytest.approx(1 - np.mean(residuals**2) / np.var(y))
    assert held.mean_error.value == pytest.approx(np.abs(residuals).mean())


def test_an_interval_over_models_and_corpora_is_that_of_a_plain_bootstrap_of_both() -> None:
    rng = np.random.default_rng(1)
    cells = [(m, c, -m + c / 4 + rng.normal(0, 1.5)) for m in range(5) for c in range(4)]
    points = [replace(point(2.0**m * 1.1**c, rate, f"{m} {c}"), model=f"m{m}", data=f"d{c}") for m, c, rate in cells]
    draws = []
    for _ in range(1500):
        models, corpora = rng.integers(5, size=5), rng.integers(4, size=4)
        chosen = [(2.0**m * 1.1**c, cells[4 * m + c][2]) for m in models for c in corpora]
        draws.append(spearmanr(*zip(*chosen, strict=True)).statistic)
    found = spearman_over(points)
    whole = spearmanr([p.separation for p in points], [p.change_rate for p in points]).statistic
    assert found.value == pytest.approx(whole)
    assert [found.low, found.high] == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=0.06)
    assert spearman_over([replace(one, model="m", data="d") for one in points]).low is None


def test_the_line_through_round_to_nearest_predicts_every_other_quantizer() -> None:
    """As the paper: fitted on rtn alone; R2 of each other one around its own mean."""
    rng, points = np.random.default_rng(2), []
    for name, off in (("rtn", 0.0), ("gptq", 0.02), ("awq", -0.1)):
        for x in rng.uniform(0.01, 1, 9):
            rate = 0.1 - 0.3 * np.log10(x) + off + rng.normal(0, 0.01)
            points.append(replace(point(x, rate, f"{name} {x}"), quantizer=name, data="d", model="m"))
    study = study_law(points, by="quantizer")
    slope, intercept = np.polyfit(np.log10([p.separation for p in points[:9]]), [p.change_rate for p in points[:9]], 1)
    groups = study.held_out["separation"].groups
    assert [group.name for group in groups] == ["gptq", "awq"]
    for group, members in zip(groups, (points[9:18], points[18:]), strict=True):
        rates = np.array([p.change_rate for p in members])
        missed = rates - (intercept + slope * np.log10([p.separation for p in members]))
        assert group.r_squared.value == pytest.approx(1 - (missed**2).mean() / rates.var())


def test_a_line_fitted_on_the_other_models_predicts_a_model_it_never_saw() -> None:
    points = [
        replace(point(x, 0.1 - at * np.log10(x), f"{name} {x}"), model=name, data="d")
        for name, at in (("one", 0.2), ("two", 0.3))
        for x in (0.01, 0.1, 0.5)
    ]
    groups = study_law(points, by="model").held_out["separation"].groups
    assert [group.name for group in groups] == ["one", "two"]
    assert groups[0].line is not None
    assert groups[0].line.slope == pytest.approx(-0.3)  # of the other model
