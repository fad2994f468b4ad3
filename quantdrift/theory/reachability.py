"""Which rankings a perturbation of at most epsilon can produce, exactly.

A ranking of items 0 to n - 1 lists them best first. It is reachable if some delta, one number per
item and none beyond epsilon in absolute value, makes scores + delta strictly decreasing along it.
Strictly: a perturbation that only brings two items level puts neither before the other. Two items
exactly 2 epsilon apart are therefore in a fixed order, and that is why every comparison below is
`>= 2 epsilon` for fixed and `< 2 epsilon` for open.

At epsilon = 0 nothing moves: the one reachable ranking is the sorted one, and if two scores tie
there is none, so whatever is said of all reachable rankings (stability) holds, ties included.

Source: paper, section 3 and appendix B (Proposition 1, its proof, and the boundary cases).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from quantdrift.theory.exact import (
    Exact,
    Number,
    TheoryError,
    by_score,
    exact_epsilon,
    exact_scores,
)

__all__ = ["is_reachable", "must_precede", "reachable_rankings", "witness"]


def must_precede(scores: Sequence[Number], epsilon: Number) -> frozenset[tuple[int, int]]:
    """The pairs (i, j) in which item i stands before item j in every reachable ranking.

    (i, j) is one of them iff scores[i] - scores[j] >= 2 epsilon. For epsilon > 0 this is a strict
    partial order: irreflexive and transitive. Its opposite, "either may be first", is not
    transitive: in a chain of near-ties each may pass the next, and yet nobody passes an item that
    is 2 epsilon ahead, however long the chain.

    Args:
        scores: [n_items], in score units, any real numbers.
        epsilon: largest absolute change of one score, in score units, at least 0.

    Returns:
        Pairs of item indices. At epsilon = 0 tied items must precede each other both ways, which
        no ranking can do.

    Raises:
        TheoryError: no scores, a negative epsilon, or a number that is not finite.

    Source: paper, appendix, proof of the characterization of reachable rankings.

    >>> sorted(must_precede([5, 4, 3], 1))
    [(0, 2)]
    """
    before = _predecessors(exact_scores(scores), exact_epsilon(epsilon))
    items = range(len(before))
    return frozenset((i, j) for j in items for i in items if before[j] >> i & 1)


def is_reachable(scores: Sequence[Number], epsilon: Number, ranking: Sequence[int]) -> bool:
    """Whether some perturbation of at most epsilon per score produces exactly this ranking.

    True iff the ranking is a linear extension of `must_precede`: whenever an item is listed, all
    that must precede it are listed already. Takes time and memory in n_items squared.

    Args:
        scores: [n_items], in score units.
        epsilon: in score units, at least 0.
        ranking: every item index once, best first.

    Raises:
        TheoryError: as `must_precede`, or `ranking` is not a permutation of the items.

    Source: paper, appendix, Proposition 1 (characterization of reachable rankings).

    >>> is_reachable([5, 4, 3], 1, [1, 2, 0])  # items 0 and 2 lie exactly 2 epsilon apart
    False
    >>> is_reachable([5, 4, 3], 1.001, [1, 2, 0])
    True
    """
    before = _predecessors(exact_scores(scores), exact_epsilon(epsilon))
    seen = 0
    for item in _checked(ranking, len(before)):
        if before[item] & ~seen:
            return False
        seen |= 1 << item
    return True


def reachable_rankings(scores: Sequence[Number], epsilon: Number) -> Iterator[tuple[int, ...]]:
    """All reachable rankings, each once, without trying those that are not.

    Builds the linear extensions of `must_precede` from the front: next may come any item of which
    every predecessor is placed. Where there are no ties, the first ranking is that of the scores.

    Args:
        scores: [n_items], in score units.
        epsilon: in score units, at least 0.

    Returns:
        Between 1 (0 only at epsilon = 0 with ties) and n_items! tuples of item indices, best first.

    Raises:
        TheoryError: as `must_precede`, when called rather than at the first ranking.

    Source: paper, appendix, Proposition 1.

    >>> list(reachable_rankings([5, 4, 3], 1))
    [(0, 1, 2), (0, 2, 1), (1, 0, 2)]
    """
    z = exact_scores(scores)
    return _extensions(_predecessors(z, exact_epsilon(epsilon)), by_score(z))


def witness(
    scores: Sequence[Number], epsilon: Number, ranking: Sequence[int]
) -> tuple[Fraction, ...] | None:
    """A perturbation that produces this ranking, or None if there is none.

    Places the perturbed scores from the first rank down, each as high as it may be: at its own
    score plus epsilon or a step eta below the one before, whichever is lower. Eta is first kept as
    a symbol, smaller than any positive number: (level, steps) stands for level - steps * eta. If an
    item cannot even so be kept at or above its score minus epsilon, no perturbation exists. If all
    can, eta is set to half the largest value that keeps them there. No pair is ever compared with
    2 epsilon, so this decides reachability independently of `is_reachable`.

    Args:
        scores: [n_items], in score units.
        epsilon: in score units, at least 0.
        ranking: every item index once, best first.

    Returns:
        delta [n_items] in the order of the items, exact, each from -epsilon to +epsilon.

    Raises:
        TheoryError: as `is_reachable`.

    Source: paper, appendix, proof of Proposition 1 (sufficiency).

    >>> [str(delta) for delta in witness([5, 4], 1, [1, 0])]
    ['-1/2', '1']
    >>> witness([6, 4], 1, [1, 0]) is None
    True
    """
    z, reach = exact_scores(scores), exact_epsilon(epsilon)
    level: Exact = 0
    steps = 0
    heights: list[tuple[Exact, int]] = []
    room = [Fraction(1)]  # eta stays below each of these; the 1 is for a ranking that needs no step
    for item in _checked(ranking, len(z)):
        highest = z[item] + reach
        if not heights:
            level = highest
        elif highest >= level:
            steps += 1
        else:
            if steps:  # the steps taken so far must not pass this lower level
                room.append(Fraction(level - highest) / steps)
            level, steps = highest, 0
        slack = level - (z[item] - reach)
        if slack < 0 or (slack == 0 and steps):
            return None
        if steps:
            room.append(Fraction(slack) / steps)
        heights.append((level, steps))
    eta = min(room) / 2
    delta = [Fraction(0)] * len(z)
    for item, (height, below) in zip(ranking, heights, strict=True):
        delta[item] = height - below * eta - z[item]
    return tuple(delta)


def _predecessors(z: list[Exact], epsilon: Exact) -> list[int]:
    """For each item, the items that must precede it, as the bits of an integer."""
    reach = 2 * epsilon
    masks = []
    for j, low in enumerate(z):
        mask = 0
        for i, high in enumerate(z):
            if high - low >= reach and i != j:
                mask |= 1 << i
        masks.append(mask)
    return masks


def _extensions(before: list[int], items: list[int], placed: int = 0) -> Iterator[tuple[int, ...]]:
    """Linear extensions over `items`, those not yet `placed`."""
    if not items:
        yield ()
    for item in items:
        if not before[item] & ~placed:
            rest = [other for other in items if other != item]
            for tail in _extensions(before, rest, placed | 1 << item):
                yield (item, *tail)


def _checked(ranking: Sequence[int], n_items: int) -> Sequence[int]:
    if sorted(ranking) != list(range(n_items)):
        raise TheoryError(
            f"a ranking must hold each of the {n_items} item indices, 0 to {n_items - 1}, once; "
            f"got {list(ranking)}"
        )
    return ranking
