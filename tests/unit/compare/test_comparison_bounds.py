"""Two runs of which one was made of lists that end early: a bound is not compared with a value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quantdrift.compare.two_runs import compare_runs
from quantdrift.evidence import Deltas
from quantdrift.metrics import MetricError, parse_metric
from quantdrift.runs import Run
from support.comparison_samples import N, evidence_of, flipped, run_of, scores

DEFINED = ["flip@1", "gold_lost@1", "gold_lost@5", "gold_lost@10"]
QUALITY = ["ndcg@10", "recall@1", "recall@10", "mrr@10"]


def run(place: Path, flips: range, deltas: Deltas) -> Run:
    evidence = evidence_of(scores(), flipped(scores(), flips))
    return run_of(place, replace(evidence, deltas=deltas))


@pytest.fixture
def exact(tmp_path: Path) -> Run:
    return run(tmp_path / "exact", range(5), "all")


@pytest.fixture
def listed(tmp_path: Path) -> Run:
    return run(tmp_path / "listed", range(2, 12), "listed")


def names(a: Run, b: Run) -> list[str]:
    return [found.metric for found in compare_runs(a, b).metrics]


def test_of_the_default_metrics_those_that_are_bounds_are_left_out(exact: Run, listed: Run) -> None:
    assert names(exact, exact) == [*DEFINED, *QUALITY, "separation"]
    for a, b in ((listed, listed), (exact, listed), (listed, exact)):
        assert names(a, b) == [*DEFINED, *QUALITY]


@pytest.mark.parametrize("name", ["separation", "at_risk", "epsilon", "S", "contenders"])
def test_a_bound_that_is_asked_for_has_no_value_and_a_reason(name: str, exact: Run, listed: Run) -> None:
    metric = parse_metric(name)
    for a, b in ((listed, listed), (exact, listed), (listed, exact)):
        (found,) = compare_runs(a, b, [metric]).metrics
        assert (found.n, found.value_a, found.value_b, found.verdict) == (0, None, None, None)
        assert found.reason == "only a bound is known, of lists that were cut short"
    (found,) = compare_runs(exact, exact, [metric]).metrics
    assert found.n == N


def test_what_rests_on_no_bound_is_compared_as_ever(exact: Run, listed: Run) -> None:
    flip, gap = (parse_metric(name) for name in ("flip@1", "candidate_gap"))
    flips, gaps = compare_runs(exact, listed, [flip, gap]).metrics
    assert (flips.value_a, flips.value_b, flips.n) == (5 / N, 10 / N, N)
    assert gaps.n == N


def test_a_slice_by_a_bound_is_refused(exact: Run, listed: Run) -> None:
    with pytest.raises(MetricError, match="separation is not known of every input"):
        compare_runs(exact, listed, [parse_metric("flip@1:separation=0..1")])
