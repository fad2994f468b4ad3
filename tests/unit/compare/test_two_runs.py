"""Two runs of one reference, joined by input or refused; one verdict over several corpora."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from quantdrift.base.errors import QuantDriftError, RunError
from quantdrift.compare.pooled import adjusted, in_words, pool
from quantdrift.compare.two_runs import compare_runs
from quantdrift.evidence.record import Deltas
from quantdrift.metrics import MetricError, parse_metric
from quantdrift.runs.folder import Run
from support.comparison_samples import N, evidence_of, flipped, run_of, scores

REFERENCE = scores()
QUALITY = ["ndcg@10", "recall@1", "recall@10", "mrr@10"]
DEFINED = ["flip@1", "gold_lost@1", "gold_lost@5", "gold_lost@10", *QUALITY]


def made(place: Path, flips: range, *, deltas: Deltas = "all", spec: str = "minilm@W4-g64-rtn", **how: Any) -> Run:
    evidence = evidence_of(REFERENCE, flipped(REFERENCE, flips), **how)
    return run_of(place, replace(evidence, deltas=deltas), spec=spec)


@pytest.fixture
def a(tmp_path: Path) -> Run:
    return made(tmp_path / "a", range(5))


@pytest.fixture
def b(tmp_path: Path) -> Run:
    """Flips 3 of the 5 inputs that A flips, and 20 more."""
    return made(tmp_path / "b", range(2, 25), spec="minilm@W3-g64-rtn")


def one(a: Run, b: Run, name: str, **asked: Any) -> Any:
    (pair,) = compare_runs(a, b, [name], **asked).metrics
    return pair


def names(a: Run, b: Run) -> list[str]:
    return [pair.metric for pair in compare_runs(a, b).metrics]


def test_inputs_are_counted_by_who_flips_them(a: Run, b: Run) -> None:
    flips = one(a, b, "flip@1")
    assert (flips.higher_a, flips.higher_b, flips.n) == (2, 20, N)
    assert (flips.value_a, flips.value_b) == (5 / N, 23 / N)
    assert flips.difference.value == pytest.approx(18 / N)
    assert (flips.p_value, flips.verdict) == (pytest.approx(2 * (1 + 22 + 231) / 2**22), "worse")
    assert one(b, a, "flip@1").verdict == "better"


def test_inputs_are_joined_by_their_ids(tmp_path: Path, a: Run, b: Run) -> None:
    order = np.random.default_rng(1).permutation(N)
    candidate = flipped(REFERENCE, range(2, 25))[order]
    shuffled = evidence_of(REFERENCE[order], candidate, names=[f"q{row}" for row in order])
    other = run_of(tmp_path / "shuffled", shuffled)
    both = [compare_runs(a, run, margin=0.1).to_json()["metrics"] for run in (b, other)]
    assert both[0] == both[1]
    assert compare_runs(a, other).notes == ()


def test_the_default_metrics_are_those_that_are_defined(tmp_path: Path, a: Run, b: Run) -> None:
    assert names(a, b) == [*DEFINED, "separation"]
    bare, shallow = made(tmp_path / "bare", range(0), labels=False), made(tmp_path / "shallow", range(0), k=5)
    assert names(bare, bare) == ["flip@1", "separation"]
    assert {"gold_lost@5", "ndcg@10"} & set(names(a, shallow)) == {"gold_lost@5"}
    with pytest.raises(MetricError, match=r"10 ranks.* 5"):
        one(a, shallow, "ndcg@10")
    assert one(bare, a, "ndcg@10").reason == "no relevance labels in A"
    # a bound is not compared with a value
    listed = made(tmp_path / "listed", range(2, 12), deltas="listed")
    for pair in ((listed, listed), (a, listed), (listed, a)):
        assert names(*pair) == DEFINED
    for name in ("separation", "epsilon", "contenders"):
        assert "bound" in str(one(a, listed, name).reason)


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        ("candidate_gap", "a median or quantile has an interval here, no test"),
        ("gap", "of the reference, which both runs share"),
        ("relative.ndcg@10", "compare change.ndcg@10"),
        # of the flips: A and B do not flip the same inputs
        ("flip_to_irrelevant", "2 inputs have a value only in A, 20 only in B: not the same"),
    ],
)
def test_what_has_no_test_has_no_verdict_and_says_why(a: Run, b: Run, metric: str, reason: str) -> None:
    pair = one(a, b, metric, margin=0.1)
    assert (pair.verdict, reason in pair.reason) == (None, True)


def without(place: Path, left: set[int], flips: range, admitted: int) -> Run:
    """A run over all inputs but some, of which the record admits some number."""
    rows = np.array([row for row in range(N) if row not in left])
    evidence = evidence_of(REFERENCE, flipped(REFERENCE, flips)).part(rows)
    return run_of(place, evidence, data={"inputs_left_out": admitted})


def test_runs_that_leave_out_what_layers_were_measured_on_are_compared_on_what_is_common(tmp_path: Path) -> None:
    a = without(tmp_path / "a", set(), range(10), 0)
    b = without(tmp_path / "b", set(range(6)), range(4, 9), 6)
    comparison = compare_runs(a, b, ["flip@1"])
    (flips,) = comparison.metrics
    assert (comparison.n_inputs, flips.value_a, flips.value_b) == (N - 6, 4 / (N - 6), 3 / (N - 6))  # 6 to 9, 6 to 8
    assert "6 of A" in comparison.notes[0]
    assert "6 of B" in compare_runs(b, a, ["flip@1"]).notes[0]
    c, d = without(tmp_path / "c", {0, 1, 2}, range(5), 3), without(tmp_path / "d", {2, 3}, range(5), 2)
    assert compare_runs(c, d, ["flip@1"]).n_inputs == N - 4
    assert "1 of A, 2 of B" in compare_runs(c, d, ["flip@1"]).notes[0]
    with pytest.raises(RunError, match="3 of 60"):  # missing for another reason
        compare_runs(a, without(tmp_path / "e", {0, 1, 2}, range(5), 2))


def test_everything_that_differs_is_listed(tmp_path: Path, a: Run) -> None:
    other = run_of(
        tmp_path / "other",
        evidence_of(REFERENCE, REFERENCE, names=[f"q{row}" for row in range(1, N + 1)]),
        model={"name": "bge", "fingerprint": "another"},
        data={"fingerprint": "others"},
        settings={"similarity": "dot", "prompt": "query: "},
    )
    with pytest.raises(RunError) as caught:
        compare_runs(a, other)
    for part in ("reference model: minilm", "data: corpus (test)", "setting prompt: ", "inputs: 1 of 60 are only in A"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"margin": 2.0}, r"below the greatest difference there can be \(1\); got 2"),
        ({"margin": 0.0}, "a margin lies above 0"),
        ({"alpha": 5.0}, "alpha is a probability"),
    ],
)
def test_margins_and_levels_out_of_range(a: Run, b: Run, asked: Any, message: str) -> None:
    with pytest.raises(QuantDriftError, match=message):
        compare_runs(a, b, **asked)


# --- one verdict over several corpora ----------------------------------------------------------------


FLIP, NDCG = parse_metric("flip@1"), parse_metric("ndcg@10")
LOSS = 1 - 1 / np.log2(3)  # of nDCG, where the only relevant item falls to rank 2


@pytest.fixture
def run(tmp_path: Path):
    """Makes the run of a corpus that flips these rows; a flip takes the relevant item from rank 1 to 2."""
    numbers = itertools.count()

    def make(rows: range, corpus: str = "a") -> Run:
        return run_of(
            tmp_path / str(next(numbers)), evidence_of(scores(), flipped(scores(), rows)), data={"fingerprint": corpus}
        )

    return make


def pooled(strata, metric=FLIP):
    result = pool(strata, metric, model="m", scheme="B", against="A")
    assert result is not None
    return result


def test_counts_of_yes_and_no_are_summed_over_corpora(run) -> None:
    """5 : 2 and 9 : 0 are 14 : 2, one draw of a fair coin."""
    test = pooled({"a": ([run(range(0, 2))], [run(range(2, 7))]), "b": ([run(range(0), "b")], [run(range(9), "b")])})
    assert (test.worse, test.better, test.n_corpora, test.n_inputs) == (14, 2, 2, 2 * N)
    assert test.p == pytest.approx(stats.binomtest(14, 16).pvalue)
    changes = [3 / N, 9 / N]
    assert test.difference == pytest.approx(np.mean(changes))
    assert test.difference_se == pytest.approx(stats.sem(changes))
    assert test.se == pytest.approx(stats.sem([5 / N, 9 / N]))
    assert test.low < test.difference < test.high
    (judged,) = adjusted([test], FLIP)
    assert judged.verdict == "worse"
    none = adjusted([pooled({"a": ([run(range(2))], [run(range(1))])})], FLIP)
    first, last = in_words([judged, *none], FLIP)
    assert first == "Shown to be worse than A by flip@1: m B."
    assert last.startswith("Not shown to differ from A by flip@1")


def test_numbers_by_all_changes_of_sign(run) -> None:
    """4 inputs of one corpus lose, 3 of another gain: all 2^7 signs, in which both corpora weigh the same."""
    test = pooled({"a": ([run(range(0))], [run(range(4))]), "b": ([run(range(3), "b")], [run(range(0), "b")])}, NDCG)
    steps = np.array([-LOSS] * 4 + [LOSS] * 3) / (2 * N)
    theirs = stats.permutation_test(
        (steps,), np.sum, permutation_type="samples", alternative="two-sided", n_resamples=10**6
    )
    assert (test.p, test.test) == (pytest.approx(theirs.pvalue), "stratified randomization")
    assert test.difference == pytest.approx(steps.sum())
    assert (test.worse, test.better, test.corpora_worse) == (4, 3, 1)


def test_the_interval_is_that_of_a_stratified_bootstrap(run) -> None:
    test = pooled({"a": ([run(range(0))], [run(range(12))]), "b": ([run(range(0), "b")], [run(range(30), "b")])}, NDCG)
    rng = np.random.default_rng(4)
    draws = [-LOSS * rng.binomial(N, share / N, 20_000) / N for share in (12, 30)]
    low, high = np.quantile(np.mean(draws, axis=0), [0.025, 0.975])
    assert [test.low, test.high] == pytest.approx([low, high], abs=0.004)
    assert test.difference == pytest.approx(-LOSS * 42 / N / 2)
    assert adjusted([test], NDCG)[0].verdict == "worse"  # higher is better


def averaged(rows: Iterable[range]) -> np.ndarray:
    return np.mean([[float(n in part) for n in range(N)] for part in rows], axis=0)


def test_seeds_of_a_corpus_are_averaged_and_add_no_inputs(run) -> None:
    """The same 6 inputs under three seeds are 6 inputs, not 18."""
    once = pooled({"a": ([run(range(0))], [run(range(6))])})
    thrice = pooled({"a": ([run(range(0))], [run(range(6)) for _ in range(3)])})
    assert (once.n_seeds, thrice.n_seeds) == (1, 3)
    assert (thrice.worse, thrice.n_inputs) == (6, N)
    assert thrice.p == pytest.approx(once.p) == pytest.approx(2 / 2**6)
    seeds = [range(0, 6), range(3, 9), range(4, 7)]
    mixed = pooled({"a": ([run(range(0, 2)), run(range(1, 3))], [run(rows) for rows in seeds])})
    step = averaged(seeds) - averaged([range(0, 2), range(1, 3)])
    assert mixed.difference == pytest.approx(step.mean())
    assert (mixed.worse, mixed.better) == (int((step > 0).sum()), int((step < 0).sum()))


def test_data_that_are_there_twice_count_once(run) -> None:
    test = pooled({"a": ([run(range(0))], [run(range(6))]), "copy": ([run(range(0))], [run(range(6))])})
    assert (test.n_corpora, test.n_inputs) == (1, N)
    assert test.notes == ("copy has the data of a and is left out",)


@pytest.mark.parametrize("name", ["separation", "relative.ndcg@10", "reference.ndcg@10", "gap"])
def test_what_has_no_value_of_an_input_or_no_better_way(run, name: str) -> None:
    with pytest.raises(QuantDriftError, match="pooled by"):
        pooled({"a": ([run(range(0))], [run(range(6))])}, parse_metric(name))
