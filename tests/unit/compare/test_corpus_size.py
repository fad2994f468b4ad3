"""What two corpus sizes say together, and buckets of inputs, by hand."""

import math

import pytest

from quantdrift.base.errors import RunError
from quantdrift.compare.buckets import EDGES, breakdown, edges_of
from quantdrift.compare.corpus_size import compare_sizes
from quantdrift.metrics import MetricError, parse_metric
from support.small_evidence import THREE, evidence_of


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


# --- buckets -----------------------------------------------------------------------------------------


FLIP, HARM = parse_metric("flip@1"), parse_metric("harm")
SEPARATION, CONTENDERS, GAP = (parse_metric(name) for name in ("separation", "contenders", "gap"))


def test_every_input_is_in_one_bucket() -> None:
    """Separations 4, 1/4 and 1/6: the last two flipped, the last one is harmed."""
    buckets = breakdown([THREE, THREE], by=SEPARATION, metrics=[FLIP, HARM])
    assert [bucket.where.low for bucket in buckets] == [0, 0.05, 0.1, 0.2, 0.5, 1]
    assert [bucket.n for bucket in buckets] == [0, 0, 2, 2, 0, 2]
    flips = [bucket.estimates["flip@1"].value for bucket in buckets]
    assert flips == [None, None, 1, 1, None, 0]
    assert [bucket.estimates["harm"].value for bucket in buckets] == [None, None, 1, 0, None, 0]
    assert buckets[0].estimates["flip@1"].reason == ("no input has separation=0..0.05")
    assert math.isinf(buckets[-1].where.high)
    assert str(buckets[1].where) == "separation=0.05..0.1"


def test_contender_counts() -> None:
    buckets = breakdown([THREE], by=CONTENDERS, metrics=[FLIP])
    assert [bucket.n for bucket in buckets] == [1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert [bucket.where.low for bucket in buckets] == list(EDGES["contenders"])


def test_quartiles_for_anything_else() -> None:
    """Gaps 1 to 8: two in each bucket."""
    evidence = evidence_of([[10 + gap, 10] for gap in range(1, 9)], [[1, 0]] * 8)
    assert edges_of(GAP, [evidence]) == (1, 2, 4, 6)
    assert sum(bucket.n for bucket in breakdown([evidence], by=GAP, metrics=[FLIP])) == 8
    same = evidence_of([[3, 1]] * 4, [[3, 1]] * 4)
    assert edges_of(GAP, [same]) == (2,)


def test_refused() -> None:
    with pytest.raises(MetricError, match="flip@1:gap"):
        breakdown([THREE], by=SEPARATION, metrics=[parse_metric("flip@1:gap=0..1")])
    with pytest.raises(MetricError, match="finite value of gap"):
        edges_of(GAP, [evidence_of([[3]], [[3]])])
