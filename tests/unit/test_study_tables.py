"""What the tables of a study end in: which criterion is the best, and whether that is chance."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from study_samples import cell, corpus, flips

from quantdrift.cli.study_tables import print_study
from quantdrift.study.allocation.plan import AllocationPlan
from quantdrift.study.allocation.record import AllocationStudy

N = 200
NAMES = ("gap", "sqnr", "random")


def last_line(
    capsys: pytest.CaptureFixture[str],
    n_flips: Sequence[int],
    *,
    low: int = 160,
    high: int = 20,
    starts: Sequence[int] = (0, 0, 0),
) -> str:
    names = NAMES[: len(n_flips)]
    cells = [
        cell(flips(N, n, start=start), name)
        for n, start, name in zip(n_flips, starts, names, strict=False)
    ]
    found = corpus(cells, low=flips(N, low), high=flips(N, high))
    plan = AllocationPlan(criteria=names, budgets=(3.5,))
    print_study([AllocationStudy(model="minilm", plan=plan, corpora=(found,))], json_output=False)
    shown: str = capsys.readouterr().out
    return shown.rstrip().splitlines()[-1]


def test_the_best_beyond_chance(capsys: pytest.CaptureFixture[str]) -> None:
    assert last_line(capsys, (50, 90, 100)) == (
        "gap keeps most, beyond chance against every other criterion"
    )


def test_the_best_by_chance(capsys: pytest.CaptureFixture[str]) -> None:
    assert last_line(capsys, (50, 52, 100)) == (
        "gap keeps most; sqnr could still be as good (no interval is above 0)"
    )


@pytest.mark.parametrize("start", range(0, N, 17))
def test_as_many_flips_are_as_good(capsys: pytest.CaptureFixture[str], start: int) -> None:
    shown = last_line(capsys, (50, 50, 50), starts=(0, start, 3 * start))
    assert shown.startswith("gap keeps most; sqnr, random could still be as good")


def test_the_best_is_another(capsys: pytest.CaptureFixture[str]) -> None:
    shown = last_line(capsys, (50, 40, 30))
    assert shown.startswith("gap is not the best: random keeps more (-0.14 (")


@pytest.mark.parametrize("high", [160, 170])
def test_nothing_to_capture(capsys: pytest.CaptureFixture[str], high: int) -> None:
    assert last_line(capsys, (50, 40, 30), high=high) == (
        "no criterion is ahead: the wide width costs no less than the narrow one"
    )


def test_one_criterion_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert last_line(capsys, (50,)) == "gap was compared with nothing"
