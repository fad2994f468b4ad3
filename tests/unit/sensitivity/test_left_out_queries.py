"""Queries that layers were measured on have no part in the rates; which they are, and when."""

from collections import OrderedDict

import pytest
from torch import nn

from quantdrift.candidate.pair import QuantizedPair
from quantdrift.measuring.flow import not_calibrated_on
from support.allocations import allocation

IDS = [f"q{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("measured", "of", "here", "rest"),
    [
        (("q1", "q3"), "toy", "toy", [0, 2, 4]),
        (("q1", "q3"), "toy", "other", [0, 2, 4]),  # all of them are here: the data was renamed
        (("q1", "q9"), "toy", "other", [0, 1, 2, 3, 4]),  # other data, whose ids look alike
        (("q1", "q9"), "toy", "toy", [0, 2, 3, 4]),  # a part of the same data
        (("q1", "q9"), None, None, [0, 1, 2, 3, 4]),
        (("q1",), None, None, [0, 2, 3, 4]),
        ((), None, "toy", [0, 1, 2, 3, 4]),
    ],
)
def test_what_is_left_out(measured: tuple[str, ...], of: str | None, here: str | None, rest: list[int]) -> None:
    pair = QuantizedPair([nn.Sequential(OrderedDict(low=nn.Linear(8, 8), high=nn.Linear(8, 8)))], "W3.5-channel+gap")
    chosen = allocation({"low": 3, "high": 4}, shape=(8, 8), dataset=of, input_ids=measured)
    pair.choose([3, 4], by=chosen)
    assert not_calibrated_on(pair, IDS, here).tolist() == rest
