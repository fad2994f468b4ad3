"""The line on runs it never saw, by hand, against numpy, and where it cannot be judged."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantdrift.compare.law import (
    LawPoint,
    fit_line,
    hold_out,
    leave_one_out,
    left_out_of_line,
    r_squared,
    split_by_patterns,
)
from quantdrift.errors import TheoryError


def point(separation: float, change_rate: float, label: str = "", gap: float = 1.0) -> LawPoint:
    return LawPoint(
        label=label or f"{separation} {change_rate}",
        separation=separation,
        gap=gap,
        epsilon=1.0,
        n_items=100.0,
        change_rate=change_rate,
    )


A = [point(0.1, 0.4), point(1, 0.2)]  # a line of -0.2 per factor of ten
B = [point(0.01, 0.6), point(10, 0.1)]  # a line of -1/6, which is 13/30 at 0.1 and 8/30 at 1


def test_two_groups_by_hand() -> None:
    held = leave_one_out({"a": A, "b": B})
    first, second = held.groups
    assert (first.name, second.name) == ("a", "b")
    assert list(first.predicted.values()) == pytest.approx([13 / 30, 8 / 30])
    assert list(second.predicted.values()) == pytest.approx([0.6, 0.0])
    assert [first.mean_error.value, second.mean_error.value] == pytest.approx([0.05, 0.05])
    # residuals -1/30, -2/30, 0, 1/10; rates 0.4, 0.2, 0.6, 0.1 around 0.325
    assert held.r_squared.value == pytest.approx(1 - (5 / 900 + 0.01) / 0.1475)
    assert held.mean_error.value == pytest.approx(0.05)
    assert held.r_squared.n == held.mean_error.n == 4


def test_a_group_has_no_part_in_the_line_that_predicts_it() -> None:
    other = [point(p.separation, 1 - p.change_rate, p.label) for p in A]
    as_it_is, changed = leave_one_out({"a": A, "b": B}), leave_one_out({"a": other, "b": B})
    assert as_it_is.groups[0].line == changed.groups[0].line == fit_line(B)
    assert as_it_is.groups[0].predicted == changed.groups[0].predicted
    assert as_it_is.groups[1].line != changed.groups[1].line
    assert as_it_is.groups[0].r_squared == r_squared(fit_line(B), A)


def test_numpy_says_the_same_for_four_groups_and_every_predictor() -> None:
    rng = np.random.default_rng(3)
    groups = {
        name: [
            point(x, y, f"{name} {i}", gap)
            for i, (x, y, gap) in enumerate(
                zip(rng.lognormal(size=7), rng.uniform(size=7), rng.lognormal(size=7), strict=True)
            )
        ]
        for name in "abcd"
    }
    for predictor in ("separation", "gap"):
        rates, predicted = [], []
        for name, members in groups.items():
            others = [p for other in groups if other != name for p in groups[other]]
            slope, intercept = np.polyfit(
                np.log10([getattr(p, predictor) for p in others]), [p.change_rate for p in others], 1
            )
            for p in members:
                rates.append(p.change_rate)
                predicted.append(intercept + slope * np.log10(getattr(p, predictor)))
        residuals = np.array(rates) - predicted
        held = leave_one_out(groups, predictor)  # type: ignore[arg-type]  # names of predictors
        assert held.predictor == predictor
        assert held.r_squared.value == pytest.approx(1 - (residuals**2).mean() / np.var(rates))
        assert held.mean_error.value == pytest.approx(np.abs(residuals).mean())


def test_pooled_r2_can_be_negative_and_can_beat_every_group() -> None:
    rising = [point(0.1, 0.1), point(10, 0.9)]
    falling = [point(0.11, 0.9), point(11, 0.1)]
    assert (leave_one_out({"up": rising, "down": falling}).r_squared.value or 0) < -1
    # two clusters on one line, noise within each: the groups tell more apart than their members
    high = [point(0.01, 0.62), point(0.0101, 0.58)]
    low = [point(1, 0.22), point(1.01, 0.18)]
    middle = [point(0.1, 0.42), point(0.101, 0.38)]
    held = leave_one_out({"high": high, "middle": middle, "low": low})
    assert (held.r_squared.value or 0) > 0.9
    assert all((group.r_squared.value or 0) < 0.5 for group in held.groups)


def test_runs_without_a_logarithm_are_neither_fitted_nor_predicted() -> None:
    outer = [point(math.inf, 0.0), point(0, 0.9)]
    held = leave_one_out({"a": [*A, *outer], "b": B})
    plain = leave_one_out({"a": A, "b": B})
    assert held == plain
    assert left_out_of_line([*A, *outer]) == tuple(outer)
    assert left_out_of_line([point(1, 0, gap=0)]) == ()
    assert len(left_out_of_line([point(1, 0, gap=0)], "gap")) == 1


def test_a_group_whose_others_make_no_line_says_so_and_is_not_pooled() -> None:
    alone = [point(math.inf, 0.0)]
    held = leave_one_out({"a": A, "copy": alone})
    assert held.groups[0].line is None
    assert "needs two runs" in (held.groups[0].reason or "")
    assert held.groups[0].r_squared.reason == "there is no line"
    assert held.groups[1].line == fit_line(A)
    assert held.groups[1].mean_error.reason == "no run has a finite logarithm"
    assert "got 0" in (held.r_squared.reason or "")
    flat = [point(0.1, 0.3), point(1, 0.3)]
    assert "same in all" in (hold_out(B, flat, name="flat").r_squared.reason or "")


def test_holding_out_some_runs_is_r2_on_them() -> None:
    held = hold_out(A, B, name="b")
    assert held.r_squared.value == pytest.approx(r_squared(fit_line(A), B).value)
    assert held.groups[0].line == fit_line(A)
    assert held.groups[0].predicted == dict(zip([p.label for p in B], fit_line(A).predict(B), strict=True))


def test_no_run_can_be_on_both_sides() -> None:
    with pytest.raises(TheoryError, match=r"once; these occur again: 0\.1 0\.4"):
        hold_out(A, [A[0]], name="a")
    with pytest.raises(TheoryError, match="once"):
        leave_one_out({"a": A, "again": A})
    with pytest.raises(TheoryError, match="needs 2 groups; got only"):
        leave_one_out({"only": A})


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
        (["*@W4-*", "+query"], [1, 2, 3]),
        (["W[34]-*"], None),  # wildcards are for all of the label
        (["*W[4]-*"], [2, 3]),
        (["SCIFACT"], None),
    ],
)
def test_patterns_choose_the_runs_held_out(patterns: list[str], held: list[int] | None) -> None:
    if held is None:
        with pytest.raises(TheoryError, match=r"no run matches '.*Labels are like: minilm@W3"):
            split_by_patterns(RUNS, patterns)
        return
    fitted, chosen = split_by_patterns(RUNS, patterns)
    assert chosen == [RUNS[i] for i in held]
    assert fitted == [run for run in RUNS if run not in chosen]


def test_patterns_that_leave_nothing_to_fit_are_refused() -> None:
    with pytest.raises(TheoryError, match=r"'minilm' matches every run"):
        split_by_patterns(RUNS, ["minilm"])
    with pytest.raises(TheoryError, match=r"'W3', 'W4' match every run"):
        split_by_patterns(RUNS, ["W3", "W4"])
    with pytest.raises(TheoryError, match="no run matches 'W5'"):
        split_by_patterns(RUNS, ["W4", "W5"])  # one of them would be forgotten
