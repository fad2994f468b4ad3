"""What two corpus sizes say together, by hand."""

import pytest

from quantdrift.base.errors import RunError
from quantdrift.compare.corpus_size import compare_sizes
from support.small_evidence import evidence_of


def test_two_sizes_by_hand() -> None:
    """Queries a and e flip only in the larger corpus, b only in the smaller, c in both, d never."""
    near = [9, 1, 8.75], [8, 2, 9]
    small = evidence_of([[9, 1], [2, 1], [2, 1], [9, 1], [9, 1]], [[8, 2], [1, 2], [1, 2], [8, 1], [8, 2]])
    large = evidence_of(
        [near[0], [2, 1, 9], [2, 1, 0], [9, 1, 0], near[0]], [near[1], [1, 2, 9], [1, 2, 0], [8, 1, 0], near[1]]
    )
    effect = compare_sizes(small, large)
    assert (effect.small, effect.large, effect.n) == (2, 3, 5)
    assert (effect.flip_small, effect.flip_large) == (2, 3)
    assert (effect.only_small, effect.only_large, effect.p_flip) == (1, 2, 1.0)
    assert effect.change.value == pytest.approx(1 / 5)
    # gaps 8, 1, 1, 8, 8 and then 0.25, 7, 1, 8, 0.25; epsilon is 1 for every query at both sizes
    assert (effect.fell, effect.rose, effect.p_separation) == (2, 1, 1.0)
    assert (effect.separation_small, effect.separation_large) == (4, 0.5)


def test_other_queries_are_not_compared() -> None:
    small, large = (evidence_of([[2, 1]], [[2, 1]], input_ids=[name]) for name in "ab")
    with pytest.raises(RunError, match="same queries"):
        compare_sizes(small, large)
