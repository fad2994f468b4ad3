"""Runs that leave out the queries their layers were measured on, compared on what is common."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quantdrift.compare.two_runs import compare_runs
from quantdrift.errors import RunError
from quantdrift.metrics import parse_metric
from quantdrift.runs import Run
from support.comparison_samples import N, evidence_of, flipped, run_of, scores

FLIP = [parse_metric("flip@1")]


def run_without(place: Path, without: set[int], flips: range, left_out: int) -> Run:
    """A run over all inputs but some, of which the record admits `left_out`."""
    rows = np.array([row for row in range(N) if row not in without])
    evidence = evidence_of(scores(), flipped(scores(), flips)).part(rows)
    return run_of(place, evidence, data={"inputs_left_out": left_out})


def test_a_run_with_chosen_widths_is_compared_with_one_without(tmp_path: Path) -> None:
    a = run_without(tmp_path / "a", set(), range(10), 0)
    b = run_without(tmp_path / "b", set(range(6)), range(4, 9), 6)
    found = compare_runs(a, b, FLIP)
    (flips,) = found.metrics
    assert (found.n_inputs, flips.n) == (N - 6, N - 6)
    assert (flips.value_a, flips.value_b) == (4 / (N - 6), 3 / (N - 6))  # 6 to 9, 6 to 8
    assert "6 of A" in found.notes[0]
    back = compare_runs(b, a, FLIP)
    assert back.metrics[0].difference.value == pytest.approx(1 / (N - 6))
    assert "6 of B" in back.notes[0]


def test_two_draws_of_calibration_queries(tmp_path: Path) -> None:
    a = run_without(tmp_path / "a", {0, 1, 2}, range(5), 3)
    b = run_without(tmp_path / "b", {2, 3}, range(5), 2)
    found = compare_runs(a, b, FLIP)
    assert found.n_inputs == N - 4
    assert "1 of A, 2 of B" in found.notes[0]


def test_what_is_missing_for_another_reason_is_refused(tmp_path: Path) -> None:
    a = run_without(tmp_path / "a", set(), range(5), 0)
    b = run_without(tmp_path / "b", {0, 1, 2}, range(5), 2)
    with pytest.raises(RunError, match="3 of 60 are only in A"):
        compare_runs(a, b, FLIP)
