"""Two runs of one reference: joined by input, refused where they do not belong together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quantdrift.compare.two_runs import Comparison, compare_runs
from quantdrift.errors import QuantDriftError, RunError
from quantdrift.metrics import MetricError, parse_metric
from quantdrift.runs import Run
from support.comparison_samples import ITEMS, N, evidence_of, flipped, run_of, scores


@pytest.fixture(scope="module")
def reference() -> NDArray[np.float64]:
    return scores()


@pytest.fixture
def a(tmp_path: Path, reference: NDArray[np.float64]) -> Run:
    return run_of(tmp_path / "a", evidence_of(reference, flipped(reference, range(5))))


@pytest.fixture
def b(tmp_path: Path, reference: NDArray[np.float64]) -> Run:
    """Flips 3 of the 5 inputs that A flips, and 20 more."""
    candidate = flipped(reference, range(2, 25))
    return run_of(tmp_path / "b", evidence_of(reference, candidate), spec="minilm@W3-g64-rtn")


def one(a: Run, b: Run, name: str, **asked: Any) -> Any:
    (found,) = compare_runs(a, b, [parse_metric(name)], **asked).metrics
    return found


# --- what is compared ------------------------------------------------------------------------


def test_inputs_are_counted_by_who_flips_them(a: Run, b: Run) -> None:
    found = one(a, b, "flip@1")
    assert (found.higher_a, found.higher_b, found.n) == (2, 20, N)
    assert (found.value_a, found.value_b) == (5 / N, 23 / N)
    assert found.difference.value == pytest.approx(18 / N)
    assert found.p_value == pytest.approx(2 * (1 + 22 + 231) / 2**22)
    assert found.verdict == "worse"
    assert one(b, a, "flip@1").verdict == "better"


def test_inputs_are_joined_by_their_ids(tmp_path: Path, a: Run, b: Run, reference: NDArray[np.float64]) -> None:
    order = np.random.default_rng(1).permutation(N)
    shuffled = evidence_of(
        reference[order], flipped(reference, range(2, 25))[order], names=[f"q{row}" for row in order]
    )
    other = run_of(tmp_path / "shuffled", shuffled)
    both = [compare_runs(a, run, margin=0.1).to_json()["metrics"] for run in (b, other)]
    assert both[0] == both[1]
    assert compare_runs(a, other).notes == ()


def test_the_default_metrics_are_those_that_are_defined(
    tmp_path: Path, a: Run, b: Run, reference: NDArray[np.float64]
) -> None:
    names = [found.metric for found in compare_runs(a, b).metrics]
    assert names == [
        *("flip@1", "gold_lost@1", "gold_lost@5", "gold_lost@10"),
        *("ndcg@10", "recall@1", "recall@10", "mrr@10", "separation"),
    ]
    bare = run_of(tmp_path / "bare", evidence_of(reference, reference, labels=False))
    assert [found.metric for found in compare_runs(bare, bare).metrics] == ["flip@1", "separation"]
    shallow = run_of(tmp_path / "shallow", evidence_of(reference, reference, k=5))
    names = [found.metric for found in compare_runs(a, shallow).metrics]
    assert "gold_lost@5" in names
    assert "ndcg@10" not in names


def test_a_metric_that_was_asked_for_and_is_undefined_says_why(
    tmp_path: Path, a: Run, reference: NDArray[np.float64]
) -> None:
    bare = run_of(tmp_path / "bare", evidence_of(reference, reference, labels=False))
    found = one(a, bare, "ndcg@10", margin=0.1)
    assert found.reason == "no relevance labels in B"
    assert (found.p_value, found.verdict, found.difference.value) == (None, None, None)
    shallow = run_of(tmp_path / "shallow", evidence_of(reference, reference, k=5))
    with pytest.raises(MetricError, match="looks at 10 ranks, but this run stored 5"):
        one(a, shallow, "ndcg@10")


def test_a_median_has_an_interval_and_no_verdict(a: Run, b: Run) -> None:
    found = one(a, b, "candidate_gap", margin=0.1)
    assert found.difference.value is not None
    assert (found.p_value, found.verdict) == (None, None)
    assert found.reason == "a median or quantile has an interval here, no test"


def test_an_infinite_median(a: Run, b: Run) -> None:
    """Most inputs are an exact copy in either candidate, so their separation is infinite."""
    found = one(a, b, "separation").to_json()
    assert found["value_a"] is None
    assert found["difference"] == {"value": None, "reason": "infinite for A and B: the difference cannot be told"}


@pytest.mark.parametrize("metric", ["gap", "tied"])
def test_what_both_runs_share_gets_no_verdict(a: Run, b: Run, metric: str) -> None:
    found = one(a, b, metric, margin=0.1)
    assert found.reason == "of the reference, which both runs share"
    assert (found.difference.value, found.verdict) == (0, None)


def test_metrics_of_the_reference_and_ratios_say_what_to_ask_instead(a: Run, b: Run) -> None:
    same = one(a, b, "reference.ndcg@10", margin=0.1)
    assert same.reason == "of the reference, which both runs share"
    assert (same.difference.value, same.verdict) == (0, None)
    assert "compare change.ndcg@10" in one(a, b, "relative.ndcg@10").reason
    change, plain = (one(a, b, name, margin=0.1) for name in ("change.ndcg@10", "ndcg@10"))
    assert change.difference.value == pytest.approx(plain.difference.value)
    assert change.p_no_worse == pytest.approx(plain.p_no_worse)


def test_values_on_different_inputs_are_not_paired(a: Run, b: Run) -> None:
    """Of the flips: A and B do not flip the same inputs."""
    found = one(a, b, "flip_to_irrelevant")
    assert found.value_a is None
    assert found.reason.startswith("2 inputs have a value only in A, 20 only in B: not the same")


def test_no_worse(tmp_path: Path, a: Run, b: Run, reference: NDArray[np.float64]) -> None:
    near = run_of(tmp_path / "near", evidence_of(reference, flipped(reference, range(1, 6))))
    found = compare_runs(a, near, [parse_metric("recall@10"), parse_metric("flip@1")], margin=0.15)
    assert [each.verdict for each in found.metrics] == ["no worse", "no worse"]
    assert one(a, near, "flip@1", margin=0.02).verdict == "underpowered"
    assert one(a, b, "flip@1", margin=0.02).verdict == "worse"


# --- what is refused -------------------------------------------------------------------------


def test_everything_that_differs_is_listed(tmp_path: Path, a: Run, reference: NDArray[np.float64]) -> None:
    names = [f"q{row}" for row in range(1, N + 1)]
    other = run_of(
        tmp_path / "other",
        evidence_of(reference, reference, names=names),
        model={"name": "bge", "fingerprint": "another"},
        data={"fingerprint": "others"},
        settings={"similarity": "dot", "prompt": "query: "},
    )
    with pytest.raises(RunError) as caught:
        compare_runs(a, other)
    text = str(caught.value)
    for part in (
        "reference model: minilm, in B bge (digest reference in A, another in B)",
        "data: corpus (test) (digest texts in A, others in B)",
        "setting prompt: nothing in A, query:  in B",
        "setting similarity: cosine in A, dot in B",
        "inputs: 1 of 60 are only in A, 1 of 60 only in B",
        "Run one of them again",
        str(a.path),
        str(other.path),
    ):
        assert part in text


@pytest.mark.parametrize("change", [{"k": 6}, {"batch_size": 1}, {"seed": 3}])
def test_settings_that_change_no_score_may_differ(
    tmp_path: Path, a: Run, reference: NDArray[np.float64], change: dict[str, int]
) -> None:
    evidence = evidence_of(reference, reference, k=change.get("k", ITEMS))
    other = run_of(tmp_path / "other", evidence, settings=change)
    assert compare_runs(a, other).notes == ()


def test_other_software_is_told_and_so_is_what_it_changed(
    tmp_path: Path, a: Run, reference: NDArray[np.float64]
) -> None:
    nudged = flipped(reference, range(3, 4))  # a reference whose scores are a little different
    other = run_of(tmp_path / "other", evidence_of(nudged, nudged), settings={"device": "cuda", "torch": "3"})
    notes = compare_runs(a, other, [parse_metric("flip@1")]).notes
    assert notes[0] == "device differs: cpu in A, cuda in B"
    assert notes[1] == "torch differs: 2.6 in A, 3 in B"
    assert notes[2].startswith("the reference itself gives another first answer on 1 of 60 inputs")
    assert len(notes) == 3


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"margin": 2.0}, "cannot differ by more than 1; got 2. For 2 percentage points give 0.02"),
        ({"margin": 0.0}, "a margin is above 0"),
        ({"margin": -0.02}, "a margin is above 0"),
        ({"alpha": 5.0}, "alpha is a probability"),
    ],
)
def test_margins_and_levels_out_of_range(a: Run, b: Run, asked: dict[str, float], message: str) -> None:
    with pytest.raises(QuantDriftError, match=message):
        compare_runs(a, b, **asked)  # type: ignore[arg-type]  # margin or alpha


# --- as JSON ---------------------------------------------------------------------------------


def test_the_json_has_no_infinity_and_all_that_was_asked(a: Run, b: Run) -> None:
    found: Comparison = compare_runs(a, b, margin=0.05, alpha=0.1, seed=3)
    text = json.dumps(found.to_json(), allow_nan=False)
    read = json.loads(text)
    assert read["a"] == {"spec": "minilm@W4-g64-rtn", "path": str(a.path)}
    assert [read[name] for name in ("data", "n_inputs", "margin", "alpha", "seed")] == [*("corpus", N, 0.05, 0.1, 3)]
    flip = read["metrics"][0]
    assert flip["metric"] == "flip@1"
    assert flip["p_value"] <= flip["p_holm"]
    assert flip["p_no_worse"] <= flip["p_no_worse_holm"]
    assert found == compare_runs(a, b, margin=0.05, alpha=0.1, seed=3)
