"""Laws of routing, whatever the scores: more is never less, everything is everything."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantdrift.evidence.perturbation import flips
from quantdrift.features.route.advice import operating_point, relative_cost
from quantdrift.statistics.conformal import CONFIDENCES, confidence_in
from quantdrift.trust.router import GapRouter, recovery_threshold
from support.routing_samples import classified

# few values, so that there are ties of all kinds; quarters, so that differences are exact
VALUES = st.integers(-8, 8).map(lambda value: value / 4)


@st.composite
def arms(draw: st.DrawFn, *, least: int = 1, items: int = 5) -> Any:
    """(reference, candidate, labels) of a few inputs and items."""
    n, width = draw(st.integers(least, 12)), draw(st.integers(2, items))
    reference, candidate = (draw(hnp.arrays(np.float32, (n, width), elements=VALUES.map(np.float32))) for _ in range(2))
    labels = draw(st.lists(st.integers(0, width - 1), min_size=n, max_size=n))
    return reference, candidate, np.array(labels)


@given(arms(), st.sampled_from(CONFIDENCES), st.floats(0.01, 1), st.floats(1, 9))
def test_the_operating_point_is_what_serving_does(sample: Any, score: Any, share: float, speed_up: float) -> None:
    reference, candidate, _ = sample
    point = operating_point(classified(*sample), score, share, speed_up=speed_up)
    changed = reference.argmax(1) != candidate.argmax(1)
    n = int(changed.sum())
    rank = math.ceil(round(share * (n + 1), 9))
    assert (point is None) == (n == 0 or rank > n)
    if point is None:
        return
    router = GapRouter(threshold=point.threshold, score=score)
    routed = router.routes(candidate)
    back = routed[changed].mean()
    assert point.routed == routed.mean()
    assert back >= rank / n - 1e-9  # ties come back too
    assert point.changes == pytest.approx(rank / (n + 1))
    assert point.changes >= share - 1e-9
    assert point.cost == relative_cost(point.routed, speed_up)


@given(arms(), st.sampled_from(CONFIDENCES), st.floats(0.01, 1))
def test_the_threshold_for_a_share_reaches_it_and_no_smaller_one_does(sample: Any, score: Any, share: float) -> None:
    evidence = classified(*sample)
    changed = flips(evidence)
    if not changed.any():
        return
    confidence = confidence_in(evidence, score)
    threshold = recovery_threshold(confidence, changed, share)
    # a share is of whole inputs: what a product's last bit says is not one more
    wanted = share * changed.sum() - 1e-6
    assert (changed & (confidence < threshold)).sum() >= wanted
    smaller = np.nextafter(threshold, -np.inf)
    assert (changed & (confidence < smaller)).sum() < wanted + 2e-6
