"""How many inputs it takes, against simulation, statsmodels and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantdrift.errors import QuantDriftError
from quantdrift.statistics import Spread, inputs_for_mean, inputs_for_rate, mean_no_worse, shrunken_spread
from support.equivalence_samples import GAINS, p_rate

ALPHA = 0.05


def test_the_formula_by_hand() -> None:
    """(1.6449 + 0.8416)^2 = 6.1826, times discordance over margin squared if that is much less."""
    assert inputs_for_rate(0.4, margin=0.01) == pytest.approx(6.18256 * 0.4 / 1e-4, rel=1e-3)
    plain = inputs_for_mean(Spread(share=1, mean_square=0.5), margin=0.01, span=math.inf)
    assert plain == math.ceil(6.18256 * 0.5 / 1e-4)
    assert inputs_for_rate(0.1, margin=0.02, alpha=0.005) > 1.8 * inputs_for_rate(0.1, margin=0.02)


def test_even_without_any_discordance_there_is_a_least_number() -> None:
    """0.98^149 is the first power below 5 %."""
    assert inputs_for_rate(0.0, margin=0.02) == 149
    assert inputs_for_mean(Spread(share=0, mean_square=0), margin=0.02, span=1) >= 149


def shown_rate(n: int, psi: float, margin: float, repeats: int = 1500) -> float:
    rng = np.random.default_rng(6)
    tables = rng.multinomial(n, [psi / 2, psi / 2, 1 - psi], size=repeats)
    distinct, times = np.unique(tables[:, :2], axis=0, return_counts=True)
    shown = [p_rate(x, y, n, margin) <= ALPHA for x, y in distinct.tolist()]
    return float(times[shown].sum() / repeats)


@pytest.mark.parametrize(("psi", "margin"), [(0.1, 0.05), (0.2, 0.08), (0.04, 0.02), (0.15, 0.1)])
def test_the_power_of_rates_at_that_number(psi: float, margin: float) -> None:
    n = inputs_for_rate(psi, margin=margin)
    assert 0.785 < shown_rate(n, psi, margin, repeats=8000) < 0.85


@pytest.mark.parametrize(
    ("psi", "margin"), [(0.04, 0.03), (0.01, 0.02), (0.005, 0.02), (0.02, 0.02), (0.03, 0.05), (0.001, 0.1)]
)
def test_where_few_inputs_differ_there_are_enough_all_the_same(psi: float, margin: float) -> None:
    n = inputs_for_rate(psi, margin=margin)
    assert shown_rate(n, psi, margin) > 0.76
    assert n <= 1 + 15 / psi


@pytest.mark.parametrize(("share", "margin"), [(0.2, 0.05), (0.1, 0.02)])
def test_the_power_of_means_at_that_number(share: float, margin: float) -> None:
    square = share * float(np.square(GAINS).mean())
    n = inputs_for_mean(Spread(share=share, mean_square=square), margin=margin, span=1)
    rng = np.random.default_rng(7)
    none, shown = np.zeros(n), []
    for _ in range(500):
        step = rng.choice(GAINS, n) * rng.choice([-1, 0, 1], n, p=[share / 2, 1 - share, share / 2])
        p_value = mean_no_worse(none, step, margin=margin, better="lower", span=1)
        shown.append(p_value is not None and p_value <= ALPHA)
    assert np.mean(shown) == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize(("sd", "margin"), [(0.5, 0.1), (0.2, 0.05), (1.0, 0.1)])
def test_the_number_against_statsmodels(sd: float, margin: float) -> None:
    power = pytest.importorskip("statsmodels.stats.power")
    theirs = power.tt_solve_power(effect_size=margin / sd, alpha=ALPHA, power=0.8, alternative="larger")
    spread = Spread(share=1, mean_square=sd**2)
    ours = inputs_for_mean(spread, margin=margin, span=math.inf)
    assert ours == pytest.approx(theirs, abs=3)  # t instead of normal: one or two more


def test_the_spread_is_never_estimated_from_nothing() -> None:
    def square(values: list[float], span: float = 1) -> float:
        spread = shrunken_spread(np.array(values), span=span)
        assert spread is not None
        return spread.mean_square

    assert shrunken_spread(np.zeros(6), span=1) == Spread(share=2 / 10, mean_square=2 / 10)
    assert shrunken_spread(np.zeros(6), span=math.inf) is None
    assert square([1, -1, 1, 0, 0, 0]) == pytest.approx(5 / 10)
    assert square([0.1] * 500 + [-0.1] * 500 + [0] * 9000) == pytest.approx(0.001, rel=0.01)
    assert square([0.1, 0, 0, 0]) == pytest.approx((0.01 + 2 * (0.01 + 1) / 2) / 8)
    assert inputs_for_rate(2 / 10, margin=0.02) > 3000


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"power": 1.0}, {"margin": 0.0}, {"margin": 1}])
def test_a_sample_size_that_cannot_be_computed(wrong: dict[str, float]) -> None:
    asked = {"margin": 0.1, "alpha": 0.05, "power": 0.8} | wrong
    with pytest.raises(QuantDriftError, match="a sample size needs"):
        inputs_for_rate(0.1, **asked)
    with pytest.raises(QuantDriftError, match="a sample size needs"):
        inputs_for_mean(Spread(share=0.1, mean_square=0.1), span=1, **asked)
