"""How often the default rules of the gate alarm: without a change, and with a real one.

Candidates are simulated by where they put the one relevant document of a query, so that flips, lost
documents and nDCG go together as in real runs. Without a change, two candidates change places at
random, query by query: they differ, and neither can be worse. Beside the gate stands what a team
without it does: fail if the mean of nDCG@10 drops by more than a point.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import quantdrift.gate.judge
import quantdrift.metrics.base
import quantdrift.statistics.paired
from quantdrift.gate.baseline import Snapshot
from quantdrift.gate.judge import Matched, verdict_of
from quantdrift.gate.result import ALPHA, Verdict
from quantdrift.gate.rules import SEARCH, parse_rule
from quantdrift.runs.identity import Identity
from quantdrift.statistics.estimates import Estimate
from support.gate_samples import judge_changes

Columns = Mapping[str, NDArray[np.float64]]
Ranks = NDArray[np.int64]

RULES = [parse_rule(rule) for rule in SEARCH]
POINT = 0.01
NOWHERE = 10**6
IDENTITY = Identity(spec="simulated", data="simulated")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """How two candidates differ.

    Attributes:
        n: queries.
        moved: share of the queries whose ranking the first candidate disturbs.
        redrawn: share of the queries on which the second is another one.
        more: share of the queries that the second disturbs besides.
    """

    n: int
    moved: float
    redrawn: float
    more: float = 0.0


def reference(n: int, rng: np.random.Generator) -> Ranks:
    """Rank of the relevant document: first for 4 in 10, among the ten for 3 in 4."""
    chances = np.array([0.4, 0.1, 0.06, 0.05, 0.04, 0.03, 0.02, 0.02, 0.02, 0.01, 0.25])
    return rng.choice(np.array([*range(1, 11), NOWHERE]), n, p=chances)


def candidate(ranks: Ranks, moved: NDArray[np.bool_], rng: np.random.Generator) -> Ranks:
    """By a rank or two as a rule, sometimes out of the list or into it: heavy tails."""
    n = len(ranks)
    shift = rng.geometric(0.5, n) * rng.choice([-1, 1], n, p=[0.4, 0.6])
    lost = rng.random(n) < 0.12
    found = np.where(lost, np.where(ranks > 10, rng.integers(1, 11, n), NOWHERE), ranks + shift)
    return np.where(moved, np.maximum(found, 1), ranks)


def outcomes(before: Ranks, after: Ranks, other: NDArray[np.bool_]) -> Columns:
    """Of the default rules; `other` are queries whose first document is not the relevant one."""
    listed = after <= 10
    return {
        "flip@1": ((before == 1) != (after == 1)) | ((before > 1) & (after > 1) & other),
        "gold_lost@10": np.where(before <= 10, ~listed, np.nan),
        "ndcg@10": np.round(np.where(listed, 1 / np.log2(1 + np.minimum(after, 10)), 0.0), 6),
    }


def two(design: Design, rng: np.random.Generator) -> tuple[Columns, Columns]:
    """The outcomes of two candidates."""
    n = design.n
    ranks = reference(n, rng)
    moved = rng.random(n) < design.moved
    one, flips = candidate(ranks, moved, rng), moved & (rng.random(n) < 0.5)
    again = rng.random(n) < design.redrawn
    moved = np.where(again, rng.random(n) < design.moved, moved)
    also = ~moved & (rng.random(n) < design.more)
    fresh = candidate(ranks, moved | also, rng)
    second = np.where(again | also, fresh, one)
    flips_2 = np.where(again | also, (moved | also) & (rng.random(n) < 0.5), flips)
    sides = (outcomes(ranks, one, flips), outcomes(ranks, second, flips_2))
    first, last = ({name: 1.0 * held for name, held in side.items()} for side in sides)
    return first, last


def exchanged(one: Columns, other: Columns, rng: np.random.Generator) -> tuple[Columns, Columns]:
    """The two change places on half of the queries, so that neither can be worse."""
    swapped = rng.random(len(one["flip@1"])) < 1 / 2
    return (
        {name: np.where(swapped, other[name], one[name]) for name in one},
        {name: np.where(swapped, one[name], other[name]) for name in one},
    )


def snapshot(values: Columns) -> Snapshot:
    n = len(values["flip@1"])
    return Snapshot(identity=IDENTITY, input_ids=tuple(map(str, range(n))), answers=("-",) * n, values=values)


def verdict(before: Columns, now: Columns, rules: Any = RULES) -> Verdict:
    matched = Matched(now=snapshot(now), before=snapshot(before))
    return verdict_of([each.outcome for each in judge_changes(rules, matched)])


def drops(before: Columns, now: Columns) -> bool:
    """The rule on the mean."""
    return bool(np.mean(now["ndcg@10"] - before["ndcg@10"]) < -POINT)


UNCHANGED = (
    Design(n=100, moved=0.02, redrawn=1.0),
    Design(n=100, moved=0.1, redrawn=0.3),
    Design(n=100, moved=0.3, redrawn=0.5),
    Design(n=300, moved=0.05, redrawn=0.5),
    Design(n=300, moved=0.3, redrawn=0.05),
    Design(n=300, moved=0.27, redrawn=1.0),
    # what differs is not alike: the second disturbs more, before they change places
    Design(n=300, moved=0.1, redrawn=0.2, more=0.2),
)
SAMPLES = 450


def samples(design: Design, number: int) -> Iterator[tuple[Columns, Columns, np.random.Generator]]:
    rng = np.random.default_rng([design.n, round(1000 * design.moved), round(1000 * design.more)])
    for _ in range(number):
        yield (*two(design, rng), rng)


def most(n: int, share: float) -> int:
    """As many as there are at most in 99 of 100 cases, if the share is so large."""
    return int(stats.binom.ppf(0.99, n, share))


def test_without_a_change_the_gate_fails_in_at_most_5_percent() -> None:
    """And the rule on the mean in far more, where answers change both ways or inputs are few."""
    alarms, by_mean = [], []
    for design in UNCHANGED:
        found = [exchanged(*pair) for pair in samples(design, SAMPLES)]
        alarms.append(sum(verdict(*pair) == "fail" for pair in found))
        by_mean.append(sum(drops(*pair) for pair in found) / SAMPLES)
    # each by itself, and all together: then a true rate of 7 % would be seen
    assert max(alarms) <= most(SAMPLES, ALPHA), alarms
    total = SAMPLES * len(UNCHANGED)
    assert sum(alarms) <= most(total, ALPHA), alarms
    assert stats.binom.cdf(most(total, ALPHA), total, 0.07) < 0.01
    assert max(by_mean) > 0.2, by_mean
    assert sum(share > ALPHA for share in by_mean) >= 4, by_mean


def test_a_real_regression_is_seen() -> None:
    """Flips from 9 to 17 %, with 4 % that come and 4 % that go besides; nDCG@10 falls by 2 points.

    Seen in 4 of 10 samples of 100 queries and in 96 % of those of 300. With 1,000 the rule on the
    mean still misses some.
    """
    seen, by_mean, flips = {}, {}, []
    for n, number in ((100, 60), (300, 60), (1000, 40)):
        design = Design(n=n, moved=0.15, redrawn=0.5, more=0.16)
        found = [pair[:2] for pair in samples(design, number)]
        flips += [float(np.mean(now["flip@1"] - before["flip@1"])) for before, now in found]
        verdicts = [verdict(*pair) for pair in found]
        assert "pass" not in verdicts
        seen[n] = verdicts.count("fail") / number
        by_mean[n] = sum(drops(*pair) for pair in found) / number
    assert np.mean(flips) == pytest.approx(0.08, abs=0.005)
    assert 0.2 < seen[100] < 0.6, seen
    assert seen[300] >= 0.9, seen
    assert seen[1000] == 1.0, seen
    assert by_mean[1000] < 1.0, by_mean


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
            passes.append(verdict({"flip@1": before}, {"flip@1": now}, [rule]) == "pass")
    assert any(passes)
    for share in (0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.45):
        chances = stats.multinomial.pmf(counts, n, [share + margin, share, 1 - 2 * share - margin])
        assert chances.sum() == pytest.approx(1)
        assert chances[passes].sum() <= 0.055, share
