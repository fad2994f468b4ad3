"""What survives every perturbation of at most epsilon: the first item, or the first k as a set.

Reachable rankings are strict (see `reachability`). An evaluation that breaks ties by position can
therefore still see another first item in one case: a gap of exactly 2 epsilon, used up to the last
bit, with the challenger at the lower position.

Source: paper, section 3 (Lemma 1 and the contender set).
"""

from __future__ import annotations

from collections.abc import Sequence

from quantdrift.theory.exact import Number, TheoryError, by_score, exact_epsilon, exact_scores

__all__ = ["contenders", "top1_is_stable", "topk_is_stable"]


def top1_is_stable(scores: Sequence[Number], epsilon: Number) -> bool:
    """Whether every reachable ranking has the same first item: gap_2 >= 2 epsilon.

    The same as an empty contender set, and as a separation ratio of at least 1. One item is stable.

    Args:
        scores: [n_items], in score units.
        epsilon: in score units, at least 0.

    Raises:
        TheoryError: as `must_precede`.

    Source: paper, Lemma 1, k = 1.

    >>> top1_is_stable([5, 3, 3], 1), top1_is_stable([5, 3.5, 3], 1)
    (True, False)
    """
    return topk_is_stable(scores, epsilon, 1)


def topk_is_stable(scores: Sequence[Number], epsilon: Number, k: int) -> bool:
    """Whether every reachable ranking has the same first k items, as a set.

    True iff the scores at ranks k and k + 1 lie at least 2 epsilon apart. Nothing is said of the
    order inside the set. All items together (k = n_items) always stay.

    Args:
        scores: [n_items], in score units.
        epsilon: in score units, at least 0.
        k: from 1 to n_items.

    Raises:
        TheoryError: as `must_precede`, or k is out of range.

    Source: paper, Lemma 1.

    >>> [topk_is_stable([5, 4, 1], 1, k) for k in (1, 2, 3)]
    [False, True, True]
    """
    z, reach = exact_scores(scores), 2 * exact_epsilon(epsilon)
    if not 1 <= k <= len(z):
        raise TheoryError(f"k must be from 1 to the number of items, {len(z)}; got {k}")
    ordered = sorted(z, reverse=True)
    return k == len(z) or ordered[k - 1] - ordered[k] >= reach


def contenders(scores: Sequence[Number], epsilon: Number) -> tuple[int, ...]:
    """The items that some perturbation of at most epsilon can lift above the first.

    Those at ranks k >= 2 with gap_k < 2 epsilon, where gap_k is the first score minus the k-th.

    Args:
        scores: [n_items], in score units. Ties break by position, lowest first.
        epsilon: in score units, at least 0.

    Returns:
        Item indices in order of rank, from 0 to n_items - 1 of them; they hold ranks 2, 3, ...

    Raises:
        TheoryError: as `must_precede`.

    Source: paper, section 3.

    >>> contenders([3, 5, 4.5, 3.5], 1)
    (2, 3)
    """
    z, reach = exact_scores(scores), 2 * exact_epsilon(epsilon)
    first, *others = by_score(z)
    return tuple(item for item in others if z[first] - z[item] < reach)
