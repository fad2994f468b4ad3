"""Agreement on one ranking, against counting by hand and by brute force."""

import itertools

import numpy as np
import pytest

from quantdrift.base.errors import ScoreError
from quantdrift.metrics.order import order_agreement


@pytest.mark.parametrize("levels", [None, 1, 4])
@pytest.mark.parametrize(("seed", "n"), list(enumerate((2, 3, 5, 17, 130))))
def test_reversed_pairs_are_those_found_one_by_one(seed: int, n: int, levels: int | None) -> None:
    """Few levels make many ties in either arm."""
    rng = np.random.default_rng(seed)
    reference = rng.normal(size=n)
    candidate = reference + rng.normal(scale=0.5, size=n)
    if levels is not None:
        reference, candidate = (np.round(part * levels) / levels for part in (reference, candidate))
    reversed_, comparable = 0, 0
    for i, j in itertools.combinations(range(n), 2):
        before = np.sign(reference[i] - reference[j])
        comparable += before != 0
        reversed_ += before * np.sign(candidate[i] - candidate[j]) < 0
    assert order_agreement(reference, candidate).flip == (reversed_ / comparable if comparable else None)


def test_an_example_by_hand() -> None:
    # of the six pairs only (b, c) changes places
    agreement = order_agreement([4.0, 3.0, 2.0, 1.0], [4.5, 2.0, 3.0, 1.0])
    assert (agreement.flip, agreement.kendall_tau) == (pytest.approx(1 / 6), pytest.approx((5 - 1) / 6))
    assert (agreement.spearman, agreement.epsilon) == (pytest.approx(1 - 6 * 2 / (4 * 15)), 1.0)
    assert agreement.delta_median == pytest.approx(0.75)


def test_twenty_thousand_items_in_reversed_order_are_counted_exactly() -> None:
    scores = np.random.default_rng(0).normal(size=20_000)
    same, mirror = order_agreement(scores, scores), order_agreement(scores, -scores)
    assert (same.flip, same.kendall_tau, same.epsilon) == (0.0, pytest.approx(1), 0.0)
    assert (mirror.flip, mirror.kendall_tau) == (1.0, pytest.approx(-1))


@pytest.mark.parametrize(
    ("reference", "candidate", "flip"), [([], [], None), ([1], [3], None), ([1, 1], [1, 2], None), ([1, 2], [1, 1], 0)]
)
def test_without_an_order_there_is_nothing_to_tell(reference: list[int], candidate: list[int], flip: float) -> None:
    agreement = order_agreement(reference, candidate)
    assert (agreement.flip, agreement.kendall_tau, agreement.spearman) == (flip, None, None)


@pytest.mark.parametrize(("reference", "candidate"), [([1.0, 2.0], [1.0]), ([[1.0]], [[1.0]]), ([1.0, np.nan], [1, 2])])
def test_what_is_no_pair_of_rankings_is_refused(reference: list[float], candidate: list[float]) -> None:
    with pytest.raises(ScoreError, match="vectors of one length"):
        order_agreement(reference, candidate)
