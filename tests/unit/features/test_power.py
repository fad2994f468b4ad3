"""The smallest margin that so many inputs can show."""

import math

import pytest

from quantdrift.features.plan.power import smallest_margin
from quantdrift.statistics.verdicts import Spread, inputs_for_mean, inputs_for_rate


@pytest.mark.parametrize("n", [60, 150, 1000, 20_000])
def test_the_smallest_margin_is_the_way_back(n: int) -> None:
    ways = [
        (lambda margin: inputs_for_rate(0.2, margin=margin), 1.0),
        (lambda margin: inputs_for_mean(Spread(share=0.5, mean_square=0.02), margin=margin, span=1), 1.0),
        (lambda margin: inputs_for_mean(Spread(share=0.5, mean_square=7.0), margin=margin, span=math.inf), math.inf),
    ]
    for inputs, span in ways:
        margin = smallest_margin(inputs, n, span=span)
        assert margin is not None
        assert inputs(margin) <= n < inputs(0.98 * margin)
    assert smallest_margin(ways[0][0], 1, span=1) is None
