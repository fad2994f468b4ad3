"""Numbers of inputs for "worse" and for limits, and the smallest margin: by hand, by trial and by statsmodels."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from quantdrift.features.plan.sample_size import (
    inputs_for_limit,
    inputs_to_show_worse,
    power_of_mcnemar,
    smallest_margin,
)
from quantdrift.statistics.verdicts import Spread, inputs_for_mean, inputs_for_rate, rate_worse
from support.paired_values import rates

ALPHA = 0.05


def to_show(share: float, difference: float, alpha: float = ALPHA) -> int:
    return inputs_to_show_worse(Spread(share=share, mean_square=share), difference=difference, alpha=alpha, rate=True)


def test_the_power_by_hand() -> None:
    """All inputs discordant: five of five worse has chance 1/32 below 5 %, four of four 1/16, which is not."""
    assert power_of_mcnemar(4, 1.0, 1.0, alpha=ALPHA) == 0
    assert power_of_mcnemar(5, 1.0, 1.0, alpha=ALPHA) == pytest.approx(1)
    assert power_of_mcnemar(5, 1.0, 0.5, alpha=ALPHA) == pytest.approx(0.75**5)
    # of 7 inputs 0 to 7 are discordant; with 5 to 7 all of them have to be worse
    fair = sum(binom.pmf(d, 7, 0.8) * 0.5**d for d in (5, 6, 7))
    assert power_of_mcnemar(7, 0.8, 0.0, alpha=ALPHA) == pytest.approx(fair)


@pytest.mark.parametrize(
    ("share", "difference", "alpha"), [(0.2, 0.05, 0.05), (0.1, 0.05, 0.05 / 3), (0.05, 0.05, 0.05)]
)
def test_so_many_inputs_show_a_worse_rate_four_times_of_five(share: float, difference: float, alpha: float) -> None:
    n = to_show(share, difference, alpha)
    rng = np.random.default_rng(3)
    chances = [(share + difference) / 2, (share - difference) / 2, 1 - share]
    tables, times = np.unique(rng.multinomial(n, chances, size=8000)[:, :2], axis=0, return_counts=True)
    shown = [rate_worse(*rates(worse, better, n), better="lower") <= alpha for worse, better in tables.tolist()]
    rate = times[shown].sum() / 8000
    assert rate == pytest.approx(0.8, abs=0.03)
    assert rate == pytest.approx(power_of_mcnemar(n, share, difference, alpha=alpha), abs=4 * 0.0045)


@pytest.mark.parametrize(("square", "difference"), [(0.3, 0.03), (0.05, 0.02), (0.4, 0.1)])
def test_the_numbers_against_statsmodels(square: float, difference: float) -> None:
    power = pytest.importorskip("statsmodels.stats.power")
    asked = {"power": 0.8, "alpha": ALPHA, "std_null": square**0.5, "std_alternative": (square - difference**2) ** 0.5}
    theirs = power.normal_sample_size_one_tail(difference, **asked)
    mean = inputs_to_show_worse(Spread(share=1, mean_square=square), difference=difference, alpha=ALPHA, rate=False)
    assert mean == math.ceil(theirs)
    # the exact test needs more, as no count has a chance of just 5 %: about one over the difference
    assert theirs < to_show(square, difference) < theirs + 2.5 / difference


def test_a_true_difference_makes_inputs_differ() -> None:
    assert to_show(0.0, 0.05) == to_show(0.05, 0.05)
    nothing = Spread(share=0.0, mean_square=0.0)
    assert inputs_to_show_worse(nothing, difference=0.05, alpha=ALPHA, rate=False) > 10**6  # none would differ


@pytest.mark.parametrize(("limit", "margin"), [(0.25, 0.05), (0.1, 0.03), (0.02, 0.02), (0.97, 0.05)])
def test_on_the_right_side_of_a_limit_by_trying_all_numbers(limit: float, margin: float) -> None:
    sizes = np.arange(1, 3000)
    most = np.floor(sizes * limit + 1e-9)
    passes = binom.cdf(most, sizes, max(0.0, limit - margin)) >= 0.8
    fails = (binom.sf(most, sizes, min(1.0, limit + margin)) >= 0.8) | (limit + margin > 1)
    both = passes & fails
    last_short = sizes[~both][-1]  # from the next one on there are always enough
    n = inputs_for_limit(limit, math.nan, margin=margin, rate=True)
    assert both[n - 1]
    assert n <= last_short + 1
    assert n >= 0.8 * sizes[both][0]
    assert inputs_for_limit(0.5, 0.3, margin=0.02, rate=False) == math.ceil((0.8416212 * 0.3 / 0.02) ** 2)


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
