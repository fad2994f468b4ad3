"""What was predicted beside what a run measured, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.allocation.predict import Gaps, predict
from quantdrift.allocation.predicted_runs import MeasuredRun, PredictedOn, additivity, measured_run
from quantdrift.evidence import Evidence, Top
from quantdrift.runs import Run, write_run

NAN = math.nan
# two layers; at 4 bits they move a gap by half of what they do at 3
AT_3 = np.array([[[-0.1, -0.2], [0.1, 0.1]], [[0.3, 0.1], [NAN, NAN]]])
MEASURED = Gaps(
    gaps=np.array([[0.25, 0.5], [0.125, NAN]]),
    contributions=np.stack([AT_3, AT_3 / 2], axis=-1),
    n_weights=np.array([100, 100]),
    widths=(3, 4),
)
ORIGIN = PredictedOn(
    fingerprint="f00d", data="beef", group_size=128, layers=("a", "b"), input_ids=("q1", "q0")
)


def evidence(moved: float = 1.0) -> Evidence:
    """Three inputs; q1 and q0 are the ones that were predicted, and q0 has two documents only.

    Scores move so that the gaps shift by `moved` times what is predicted at 3 bits.
    """
    high = np.array([[1.0, 0.875, NAN], [2.0, 1.75, 1.5], [1.0, 0.5, 0.0]], dtype=np.float32)
    low = high.copy()
    low[0, 1] -= 0.4 * moved
    low[1, 1] += 0.3 * moved
    low[1, 2] -= 0.2 * moved
    items = np.where(np.isnan(high), -1, np.arange(3))
    first = np.argsort(-np.nan_to_num(low, nan=-9.0), axis=1)
    return Evidence(
        input_ids=np.array(["q0", "q1", "q2"], dtype=object),
        item_ids=np.array(["d0", "d1", "d2"], dtype=object),
        reference_top=Top(items=items, reference_scores=high, candidate_scores=low),
        candidate_top=Top(
            items=np.take_along_axis(items, first, axis=1),
            reference_scores=np.take_along_axis(high, first, axis=1),
            candidate_scores=np.take_along_axis(low, first, axis=1),
        ),
        delta_min=np.nanmin(low - high, axis=1),
        delta_max=np.nanmax(low - high, axis=1),
        n_items=np.array([2, 3, 3]),
    )


def run_at(place: Path, spec: str = "m@W3", moved: float = 1.0, **record: Any) -> Run:
    full = {
        "spec": spec,
        "model": {"fingerprint": "f00d"},
        "data": {"name": "data", "fingerprint": "beef"},
        **record,
    }
    return write_run(place / "run", evidence=evidence(moved), record=full)


def test_a_run_stands_beside_the_prediction_for_its_width(tmp_path: Path) -> None:
    found = measured_run(run_at(tmp_path), MEASURED, ORIGIN)
    assert isinstance(found, MeasuredRun)
    assert found.prediction == predict(MEASURED, [3, 3])
    assert (found.flips.value, found.flips.n) == (1 / 3, 3)  # q1: 0.25 - 0.3 < 0
    added = found.additivity
    assert added is not None
    assert added.n_gaps == 3
    assert added.correlation == pytest.approx(1)
    assert added.ratio == pytest.approx(1)
    assert added.predicted.value == added.measured.value == 0.5
    assert added.holds


def test_a_run_that_moves_further_is_underestimated(tmp_path: Path) -> None:
    found = measured_run(run_at(tmp_path, moved=2.0), MEASURED, ORIGIN)
    assert isinstance(found, MeasuredRun)
    assert found.additivity is not None
    assert found.additivity.ratio == pytest.approx(0.5)
    assert found.additivity.correlation == pytest.approx(1)
    assert not found.additivity.holds


def test_layers_of_an_allocation_have_the_widths_that_the_run_says(tmp_path: Path) -> None:
    run = run_at(tmp_path, "m@W3.5+gap", quantization={"allocation": {"widths": {"b": 4, "a": 3}}})
    found = measured_run(run, MEASURED, ORIGIN)
    assert isinstance(found, MeasuredRun)
    assert found.prediction == predict(MEASURED, [3, 4])


def test_another_quantizer_is_shown_without_additivity(tmp_path: Path) -> None:
    """Its shifts have other signs: that they differ says nothing of whether layers add up."""
    found = measured_run(run_at(tmp_path, "m@W4-gptq"), MEASURED, ORIGIN)
    assert isinstance(found, MeasuredRun)
    assert found.additivity is None


def test_a_run_without_the_calibration_queries_has_no_additivity(tmp_path: Path) -> None:
    other = replace(ORIGIN, input_ids=("x", "y"))
    found = measured_run(run_at(tmp_path), MEASURED, other)
    assert isinstance(found, MeasuredRun)
    assert found.additivity is None


def test_a_gap_that_is_another_one_in_the_run_is_left_out(tmp_path: Path) -> None:
    gaps = MEASURED.gaps.copy()
    gaps[0, 0] += 0.1
    other = Gaps(
        gaps=gaps, contributions=MEASURED.contributions, n_weights=MEASURED.n_weights, widths=(3, 4)
    )
    found = measured_run(run_at(tmp_path), other, ORIGIN)
    assert isinstance(found, MeasuredRun)
    assert found.additivity is not None
    assert found.additivity.n_gaps == 2


@pytest.mark.parametrize(
    ("spec", "record", "why"),
    [
        ("m@W3", {"model": {"fingerprint": "0"}}, "another model"),
        ("m@W3", {"data": {"name": "d", "fingerprint": "0"}}, "other data"),
        ("m@W3-g64", {}, "rounds by g64: say so with --group"),
        ("m@W4A8", {}, "activations"),
        ("m@W4+query", {}, "query side only"),
        ("m@W8", {}, "layers at 8 bits, which --widths leaves out"),
        ("m vs ./n", {}, "a checkpoint, not a scheme"),
    ],
)
def test_a_run_that_does_not_fit_says_why(
    spec: str, record: dict[str, Any], why: str, tmp_path: Path
) -> None:
    found = measured_run(run_at(tmp_path, spec, **record), MEASURED, ORIGIN)
    assert isinstance(found, str)
    assert why in found


def test_what_does_not_move_has_no_correlation() -> None:
    still = additivity(MEASURED, [16, 16], np.zeros((2, 2)))
    assert (still.correlation, still.ratio, still.holds) == (None, None, True)
    silent = additivity(MEASURED, [16, 16], np.full((2, 2), 0.1))
    assert (silent.correlation, silent.ratio, silent.holds) == (None, 0.0, False)
