"""Agreement on one ranking, against counting by hand, by brute force and by scipy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from quantdrift.errors import ScoreError
from quantdrift.metrics.order import order_agreement, reversed_pairs


def samples(seed: int, n: int, levels: int | None) -> tuple[NDArray[np.float64], ...]:
    """Scores of two arms that mostly agree; few levels make many ties in either."""
    rng = np.random.default_rng(seed)
    reference = rng.normal(size=n)
    candidate = reference + rng.normal(scale=0.5, size=n)
    if levels is None:
        return reference, candidate
    return tuple(np.round(part * levels) / levels for part in (reference, candidate))


def counted(reference: NDArray[np.float64], candidate: NDArray[np.float64]) -> tuple[int, int]:
    """Reversed pairs and comparable pairs, one by one."""
    reversed_, comparable = 0, 0
    for i, j in itertools.combinations(range(len(reference)), 2):
        before = np.sign(reference[i] - reference[j])
        comparable += before != 0
        reversed_ += before * np.sign(candidate[i] - candidate[j]) < 0
    return int(reversed_), int(comparable)


CASES = [(seed, n, levels) for seed, n in enumerate((2, 3, 5, 17, 64, 65, 130)) for levels in (None, 1, 4)]


@pytest.mark.parametrize(("seed", "n", "levels"), CASES)
def test_reversed_pairs_are_those_found_one_by_one(seed: int, n: int, levels: int | None) -> None:
    reference, candidate = samples(seed, n, levels)
    expected, comparable = counted(reference, candidate)
    assert reversed_pairs(reference, candidate) == expected
    flip = order_agreement(reference, candidate).flip
    assert flip == (expected / comparable if comparable else None)


@pytest.mark.parametrize(("seed", "n", "levels"), CASES)
def test_correlations_are_scipys(seed: int, n: int, levels: int | None) -> None:
    reference, candidate = samples(seed, n, levels)
    found = order_agreement(reference, candidate)
    constant = len(set(reference)) == 1 or len(set(candidate)) == 1
    for value, of in ((found.kendall_tau, stats.kendalltau), (found.spearman, stats.spearmanr)):
        if constant:
            assert value is None
        else:
            assert value == pytest.approx(of(reference, candidate).statistic, abs=1e-12)


def test_an_example_by_hand() -> None:
    # of the six pairs only (b, c) changes places
    found = order_agreement([4.0, 3.0, 2.0, 1.0], [4.5, 2.0, 3.0, 1.0])
    assert found.n_items == 4
    assert found.flip == pytest.approx(1 / 6)
    assert found.kendall_tau == pytest.approx((5 - 1) / 6)
    assert found.spearman == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert found.epsilon == 1.0
    assert found.delta_median == pytest.approx(0.75)


def test_an_exact_copy_agrees_and_a_mirror_reverses_all() -> None:
    scores = np.random.default_rng(0).normal(size=200)
    same, mirror = order_agreement(scores, scores), order_agreement(scores, -scores)
    assert (same.flip, same.kendall_tau, same.epsilon) == (0.0, 1.0, 0.0)
    assert same.spearman == pytest.approx(1)
    assert (mirror.flip, mirror.kendall_tau) == (1.0, -1.0)
    assert mirror.spearman == pytest.approx(-1)


def test_a_tie_in_the_candidate_is_no_reversal_and_one_in_the_reference_no_comparison() -> None:
    found = order_agreement([1.0, 1.0, 2.0, 3.0], [2.0, 1.0, 5.0, 5.0])
    assert found.flip == 0.0
    assert order_agreement([1.0, 1.0, 2.0], [0.0, 3.0, 1.0]).flip == pytest.approx(1 / 2)


@pytest.mark.parametrize("n", [0, 1])
def test_too_few_items_have_no_order(n: int) -> None:
    found = order_agreement(np.ones(n), np.full(n, 3.0))
    assert (found.flip, found.kendall_tau, found.spearman) == (None, None, None)
    assert found.epsilon == (2.0 if n else None)


def test_one_score_for_all_in_the_reference_has_no_order_to_lose() -> None:
    found = order_agreement([1.0, 1.0, 1.0], [1.0, 2.0, 3.0])
    assert (found.flip, found.kendall_tau, found.spearman) == (None, None, None)
    still = order_agreement([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    assert (still.flip, still.kendall_tau, still.spearman) == (0.0, None, None)


def test_twenty_thousand_items_are_counted_exactly() -> None:
    rng = np.random.default_rng(3)
    reference, candidate = rng.permutation(20_000), rng.permutation(20_000)
    tau = stats.kendalltau(reference, candidate).statistic
    pairs = 20_000 * 19_999 // 2
    assert reversed_pairs(reference, candidate) == round((1 - tau) * pairs / 2)


@pytest.mark.parametrize(
    ("reference", "candidate", "complaint"),
    [
        ([1.0, 2.0], [1.0], "two vectors of one length"),
        ([[1.0]], [[1.0]], "two vectors of one length"),
        ([1.0, np.nan], [1.0, 2.0], "finite"),
        ([1.0, 2.0], [1.0, np.inf], "finite"),
    ],
)
def test_what_is_no_pair_of_rankings_is_refused(reference: list[float], candidate: list[float], complaint: str) -> None:
    with pytest.raises(ScoreError, match=complaint):
        order_agreement(reference, candidate)
