"""Watching served inputs: a false alarm is rare however long one watches, and inputs of another kind are noticed."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from quantdrift.trust import shift
from quantdrift.trust.shift import ALIKE_ABOVE, ShiftMonitor

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]


def gaps(rng: np.random.Generator, n: int) -> Floats:
    return rng.exponential(size=n)


def tied(rng: np.random.Generator, n: int) -> Floats:
    """Gaps of a few values, as codes of one bit give."""
    return np.floor(rng.exponential(size=n) * 3)


def alarms(draw: Draw, served: Draw, *, streams: int, length: int) -> Floats:
    """After how many inputs each of many watches gives an alarm; infinity for none."""
    after = np.full(streams, np.inf)
    for stream in range(streams):
        rng = np.random.default_rng([length, stream])
        monitor = ShiftMonitor(draw(rng, 1000), seed=stream)
        found = (monitor.add(served(rng, 50)).alike for _ in range(0, length, 50))
        after[stream] = next((50 * (part + 1) for part, alike in enumerate(found) if not alike), np.inf)
    return after


MANY = pytest.param(1_000, 2_000, marks=pytest.mark.very_slow)


@pytest.mark.parametrize(("streams", "length"), [(200, 300), MANY])
@pytest.mark.parametrize(("draw", "kept"), [(gaps, shift.KEPT), (tied, shift.KEPT), (tied, 1_000)])
def test_a_false_alarm_is_rare(
    draw: Draw, kept: int, streams: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 1,000 kept, what was calibrated on is forgotten little by little."""
    monkeypatch.setattr(shift, "KEPT", kept)
    false = np.isfinite(alarms(draw, draw, streams=streams, length=length)).mean()
    assert false <= ALIKE_ABOVE + 3 * np.sqrt(ALIKE_ABOVE * (1 - ALIKE_ABOVE) / streams)


def test_ranks_are_fair_whatever_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against fair ranks the mean capital is the stake, 1; a list of five forgets at once."""
    monkeypatch.setattr(shift, "KEPT", 5)
    capitals, pairs = [], np.zeros((3, 3))
    for stream in range(6_000):
        rng = np.random.default_rng(stream)
        monitor = ShiftMonitor(rng.integers(0, 3, 5).astype(float), seed=stream + 1)
        drawn = np.random.default_rng([stream, 1]).random((8, 2))
        ranks = [monitor._rank(float(rng.integers(0, 3)), *draws) for draws in drawn]
        pairs[int(3 * ranks[0]), int(3 * ranks[-1])] += 1
        capitals.append(np.prod(np.array(ranks) * 2))
    # a ninth of the 6,000 in each cell: 667, with a standard deviation of 24
    assert np.abs(pairs - 6_000 / 9).max() < 4 * 24
    assert np.mean(capitals) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(
    ("scale", "other", "within"), [(0.75, 0.0, 300), (0.5, 0.0, 100), (1.5, 0.0, 200), (1.0, 0.3, 300)]
)
def test_inputs_of_another_kind_are_noticed(scale: float, other: float, within: int) -> None:
    """All gaps shrink or grow, or a share of the inputs is of another kind, whose gaps are a quarter."""

    def served(rng: np.random.Generator, n: int) -> Floats:
        return scale * rng.exponential(size=n) * np.where(rng.random(n) < other, 0.25, 1)

    assert np.mean(alarms(gaps, served, streams=40, length=within) <= within) >= 0.9


def test_a_watch_is_the_same_however_its_inputs_come_and_forgets_no_alarm() -> None:
    rng = np.random.default_rng(0)
    sample, served = gaps(rng, 300), np.r_[gaps(rng, 40) / 5, gaps(rng, 500)]
    whole, parts = ShiftMonitor(sample, seed=3), ShiftMonitor(sample, seed=3)
    for part in np.split(served, [1, 7, 100, 300]):
        last = parts.add(part)
    assert last == whole.add(served)
    assert (last.n, last.alike) == (540, False)
    assert ShiftMonitor(sample, seed=4).add(served) != last
    far = ShiftMonitor(sample).add(-np.arange(3_000.0))  # more capital than a float holds
    assert 0 < far.p_value < 1e-200
