"""What two corpus sizes say together, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from quantdrift.compare.corpus_size import SizeEffect, compare_sizes
from quantdrift.engine.measure import assemble
from quantdrift.engine.scoring.streamed import score_matrix
from quantdrift.errors import RunError
from quantdrift.evidence import Evidence
from quantdrift.statistics import Estimate


def evidence_of(reference: list[list[float]], candidate: list[list[float]], ids: str = "abcdefgh") -> Evidence:
    scores = [np.array(rows, dtype=np.float32) for rows in (reference, candidate)]
    names = [f"d{number}" for number in range(scores[0].shape[1])]
    state = score_matrix(*scores, k=5)
    return assemble(state, input_ids=list(ids)[: len(reference)], item_ids=names)


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
    assert effect.separation_small == 4
    assert effect.separation_large == 0.5
    assert effect.follows_separation is None


def test_what_the_separation_alone_would_give() -> None:
    """Of four queries with a ratio of 0.3 one flips, of two with a ratio of 2 none."""
    low, high = [10, 9.4], [10, 6]  # gaps of 0.6 and 4, and epsilon is 1
    kept, flipped = [10, 8.4], [9, 9.4]
    small = evidence_of([low] * 4 + [high] * 2, [flipped] + [kept] * 3 + [[9, 6]] * 2)
    large = evidence_of([low] * 3 + [high] * 3, [flipped] * 3 + [[9, 6]] * 3)
    effect = compare_sizes(small, large)
    assert effect.expected_large == pytest.approx(3 / 6 * 1 / 4)
    assert effect.change.value == pytest.approx(3 / 6 - 1 / 6)
    # the other way round, a query of the smaller has its like in the larger: three of three flip
    assert compare_sizes(large, small).expected_large == pytest.approx(4 / 6)
    alike = evidence_of([low] * 6, [kept] * 6)  # none of them tells how often a ratio of 2 flips
    assert compare_sizes(alike, large).expected_large is None


def test_one_document_has_no_separation_to_compare() -> None:
    effect = compare_sizes(evidence_of([[1], [1]], [[2], [1]]), evidence_of([[1, 0], [1, 0]], [[2, 0], [1, 0]]))
    assert (effect.fell, effect.rose, effect.p_separation) == (0, 0, 1.0)
    assert effect.separation_small is None
    assert effect.expected_large is None
    assert "from undefined to" in effect.explain()[1]


def test_other_queries_are_not_compared() -> None:
    one = evidence_of([[2, 1]], [[2, 1]], "a")
    with pytest.raises(RunError, match="same queries"):
        compare_sizes(one, evidence_of([[2, 1]], [[2, 1]], "b"))


def effect_of(only: tuple[int, int], p_flip: float, moved: tuple[int, int], p: float) -> SizeEffect:
    return SizeEffect(
        small=250,
        large=1400,
        n=200,
        flip_small=40 + only[0],
        flip_large=40 + only[1],
        only_small=only[0],
        only_large=only[1],
        p_flip=p_flip,
        change=Estimate(value=0.01, low=-0.02, high=0.04, n=200),
        expected_large=0.3,
        separation_small=0.2,
        separation_large=0.1,
        fell=moved[0],
        rose=moved[1],
        p_separation=p,
    )


@pytest.mark.parametrize(
    ("effect", "follows", "said"),
    [
        (effect_of((5, 30), 0.001, (150, 50), 0.001), True, "rises with the corpus, from 22.5 %"),
        (effect_of((30, 5), 0.001, (50, 150), 0.001), True, "is in line with the sep"),
        (effect_of((5, 30), 0.001, (50, 150), 0.001), False, "separation: it rose"),
        (effect_of((5, 30), 0.001, (90, 100), 0.5), False, "separation: it did not move"),
        (effect_of((5, 7), 0.7, (150, 50), 0.001), None, "The separation fell, but the flips"),
        (effect_of((5, 7), 0.7, (90, 100), 0.5), None, "Nor is the separation seen to move"),
    ],
)
def test_what_is_said(effect: SizeEffect, follows: bool | None, said: str) -> None:
    assert effect.follows_separation is follows
    assert said in effect.explain()[2]
    assert (
        f"{effect.only_small} flip only at 250 documents, {effect.only_large} only at 1,400: p = {effect.p_flip:g} "
    ) in effect.explain()[0]
    assert "those of like separation did at 250, 30.0 % would" in effect.explain()[3]
    if not effect.flip_moved:
        assert "+1.0 points (95 % interval -2.0 to +4.0)" in effect.explain()[2]
    assert effect.to_json()["says"] == effect.explain()
    assert effect.to_json()["change"]["low"] == -0.02
