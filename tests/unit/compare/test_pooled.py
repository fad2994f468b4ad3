"""One verdict over several corpora: counts by scipy, signs by hand, seeds that are no strata."""

import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from quantdrift.base.errors import QuantDriftError
from quantdrift.compare.pooled import adjusted, in_words, pool
from quantdrift.metrics import parse_metric
from quantdrift.runs.folder import Run
from support.comparison_samples import N, evidence_of, flipped, run_of, scores

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
