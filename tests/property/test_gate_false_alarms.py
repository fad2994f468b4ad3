"""How often the default rules of the gate alarm where nothing is worse.

Two candidates are simulated by what they do to each query, so that flips, lost documents and nDCG go together as in
real runs, and change places at random, query by query: they differ, and neither can be worse. What the rules see of
runs that are worse is measured by docs/measured/recipes/gate_power.py.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import quantdrift.gate.judge
import quantdrift.metrics.base
import quantdrift.statistics.paired
from quantdrift.gate.judge import verdict_of
from quantdrift.gate.result import ALPHA, Verdict
from quantdrift.gate.rules import SEARCH, parse_rule
from quantdrift.statistics.estimates import Estimate
from support.gate_samples import judge_changes, pair

Columns = Mapping[str, NDArray[np.float64]]

RULES = [parse_rule(rule) for rule in SEARCH]
SAMPLES = 450

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _only_what_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """No intervals, which no outcome depends on, and fewer signs, with which the test is as exact.

    A judgement takes a fortieth of the time.
    """
    for module, name in (
        (quantdrift.gate.judge, "paired_mean_difference"),
        (quantdrift.gate.judge, "paired_rate_difference"),
        (quantdrift.metrics.base, "mean_estimate"),
        (quantdrift.metrics.base, "rate_estimate"),
    ):
        monkeypatch.setattr(module, name, lambda *_, **__: Estimate(value=0.0))
    monkeypatch.setattr(quantdrift.statistics.paired, "DRAWN", 999)


def outcomes(n: int, moved: float, rng: np.random.Generator) -> Columns:
    """Of a candidate that moves the relevant document of some queries: by a rank, or out of the list."""
    labelled, top, gone = (rng.random(n) < share for share in (0.75, 0.5, 0.12))
    moves = rng.random(n) < moved
    after = np.where(gone, 0.0, rng.choice([1.0, 0.63093, 0.5, 0.43068], n))
    return {
        "flip@1": 1.0 * (moves & top),
        "gold_lost@10": np.where(labelled, 1.0 * (moves & gone), np.nan),
        "ndcg@10": np.where(moves, after, 0.63093),
    }


def exchanged(n: int, moved: float, redrawn: float, more: float, rng: np.random.Generator) -> list[Columns]:
    """Two candidates that differ on a share of the queries, and change places on half of them."""
    before, fresh = outcomes(n, moved, rng), outcomes(n, moved + more, rng)
    again, swapped = rng.random(n) < redrawn, rng.random(n) < 0.5
    undefined = np.isnan(before["gold_lost@10"])  # by the reference, which both share
    sides = []
    for taken in (again & swapped, again & ~swapped):
        side = {name: np.where(taken, fresh[name], before[name]) for name in before}
        sides.append({**side, "gold_lost@10": np.where(undefined, np.nan, np.nan_to_num(side["gold_lost@10"]))})
    return sides


def verdict(sides: list[Columns], rules: Any = RULES) -> Verdict:
    return verdict_of([judgement.outcome for judgement in judge_changes(rules, pair(*sides))])


def most(n: int, share: float) -> int:
    """As many as there are at most in 99 of 100 cases, if the share is so large."""
    return int(stats.binom.ppf(0.99, n, share))


def test_without_a_change_the_gate_fails_in_at_most_5_percent() -> None:
    designs = (
        (100, 0.02, 1.0, 0.0),
        (100, 0.1, 0.3, 0.0),
        (100, 0.3, 0.5, 0.0),
        (300, 0.05, 0.5, 0.0),
        (300, 0.3, 0.05, 0.0),
        (300, 0.27, 1.0, 0.0),
        # what differs is not alike: the second disturbs more, before they change places
        (300, 0.1, 0.2, 0.2),
    )
    alarms = []
    for design in designs:
        rng = np.random.default_rng([round(1000 * part) for part in design])
        alarms.append(sum(verdict(exchanged(*design, rng)) == "fail" for _ in range(SAMPLES)))
    # each by itself, and all together: then a true rate of 7 % would be seen
    total = SAMPLES * len(designs)
    assert max(alarms) <= most(SAMPLES, ALPHA), alarms
    assert 0 < sum(alarms) <= most(total, ALPHA), alarms
    assert stats.binom.cdf(most(total, ALPHA), total, 0.07) < 0.01


@pytest.mark.parametrize("n", [30, 72])
@pytest.mark.parametrize("margin", [0.03, 0.05])
def test_passing_by_an_improvement_keeps_the_level(n: int, margin: float) -> None:
    """All outcomes of a run that is worse by the margin, whatever share of the inputs is better.

    The tests are each of the level, and the one of an improvement hardly ever adds to the other.
    """
    rule = parse_rule(f"flip@1 no worse by {margin}")
    counts, passes = [], []
    for worse in range(n + 1):
        for better in range(n + 1 - worse):
            before, now = np.zeros(n), np.zeros(n)
            now[:worse] = 1
            before[worse : worse + better] = 1
            counts.append((worse, better, n - worse - better))
            passes.append(verdict([{"flip@1": before}, {"flip@1": now}], [rule]) == "pass")
    assert any(passes)
    for share in (0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.45):
        chances = stats.multinomial.pmf(counts, n, [share + margin, share, 1 - 2 * share - margin])
        assert chances.sum() == pytest.approx(1)
        assert chances[passes].sum() <= 0.055, share
