"""Predicted flips by hand: three inputs, two contenders, two layers, two widths."""

import math

import numpy as np
import pytest

from quantdrift.allocation.curve import Gaps, budgets, mean_square_losses, predict, predicted_curve
from quantdrift.base.errors import DataError

NAN = math.nan
GAPS = np.array([[1.0, 2.0], [0.5, NAN], [3.0, 4.0]])
# contributions[input][contender][layer] = (at 3 bits, at 4 bits)
PARTS = np.array(
    [
        [[[-2.0, -0.2], [0.5, 0.1]], [[-1.0, -0.1], [-2.0, 0.1]]],
        [[[-0.4, -0.3], [-0.2, -0.1]], [[NAN, NAN], [NAN, NAN]]],
        [[[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [-5.0, 0.0]]],
    ]
)
MEASURED = Gaps(gaps=GAPS, contributions=PARTS, n_weights=np.array([100, 300]), widths=(3, 4))


@pytest.mark.parametrize(
    ("widths", "rate", "bits", "shift"),
    [
        ([3, 3], 3 / 3, 3.0, 0.6),  # the last input flips to its second contender
        ([4, 3], 2 / 3, 3.25, 0.3),  # the second one's gap goes to 0 exactly, which is no flip
        ([4, 4], 0 / 3, 4.0, 0.1),
    ],
)
def test_rates_bits_and_median(widths: list[int], rate: float, bits: float, shift: float) -> None:
    point = predict([(MEASURED, widths)])
    assert (point.flips.value, point.flips.n) == (rate, 3)
    assert point.bits_per_weight == bits
    assert point.shift.value == pytest.approx(shift)


def test_one_query_is_too_few_for_a_curve() -> None:
    with pytest.raises(DataError, match="eight queries or more"):
        predicted_curve(MEASURED.part(np.array([1])))


def test_losses_are_mean_squares_over_those_that_are_there() -> None:
    # layer 0 at W3: 4, 1, 0.16, 0, 0 over five gaps; at W4: 0.04, 0.01, 0.09
    losses = mean_square_losses(PARTS)
    assert losses[0] == pytest.approx([5.16 / 5 - 0.14 / 5, 0.0])
    assert losses.shape == (2, 2)


def world(n: int = 40, widths: tuple[int, ...] = (2, 3, 4)) -> Gaps:
    """One layer that matters and one that does not, of equal size; every shift falls by 4 a bit."""
    rng = np.random.default_rng(5)
    sizes = np.array([1.0, 1e-3])[:, None] * 4.0 ** -np.arange(len(widths))
    return Gaps(
        gaps=rng.uniform(0, 1, (n, 2)),
        contributions=rng.standard_normal((n, 2, 2))[..., None] * sizes,
        n_weights=np.array([100, 100]),
        widths=widths,
    )


def test_the_curve_has_every_width_and_every_quarter_of_a_bit() -> None:
    assert budgets((2, 3, 4)) == [2.25, 2.5, 2.75, 3.0, 3.25, 3.5, 3.75]
    seen: list[int] = []
    points = predicted_curve(world(), seen.append)
    assert [(p.budget, p.allocated) for p in points if not p.allocated] == [(2, False), (3, False), (4, False)]
    assert [p.budget for p in points if p.allocated] == budgets((2, 3, 4))
    assert sum(seen) == len(points) == 10
    assert all(p.bits_per_weight <= p.budget for p in points)
