"""The monitor: quiet on inputs like the calibration inputs, and soon loud on others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from quantdrift.errors import ScoreError
from quantdrift.stability import StabilityCheck, StabilityError, StabilityMonitor
from quantdrift.stability.monitor import rounded


def check(rng: np.random.Generator, n: int = 300) -> StabilityCheck:
    scores = rng.normal(size=(n, 4))
    return StabilityCheck.calibrate((scores, scores))


def test_no_more_false_alarms_than_promised() -> None:
    """Each monitor is asked after every one of 1,500 inputs; level 0.1 allows 10 of 100."""
    alarms = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        monitor = StabilityMonitor(check(rng, n=100), level=0.1, seed=seed)
        alarms += monitor.add(rng.normal(size=(1_500, 4)))
    assert alarms <= 19  # 10 expected at most; 19 has a chance of 0.3 %


@pytest.mark.parametrize("factor", [0.4, 2.5])
@pytest.mark.parametrize("calm", [0, 5_000])
def test_a_change_is_noticed_soon_after_a_calm_too(factor: float, calm: int) -> None:
    rng = np.random.default_rng(1)
    monitor = StabilityMonitor(check(rng))
    assert not monitor.add(rng.normal(size=(calm, 4)))
    assert monitor.add(factor * rng.normal(size=(300, 4)))
    assert monitor.alarm
    assert monitor.n == calm + 300
    monitor.add(rng.normal(size=(10, 4)))
    assert monitor.alarm  # stays on


def test_how_inputs_are_cut_into_batches_changes_nothing() -> None:
    rng = np.random.default_rng(2)
    own, served = check(rng), rng.normal(size=(2_050, 4))
    whole, single = StabilityMonitor(own, seed=3), StabilityMonitor(own, seed=3)
    whole.add(served)
    for row in served:
        single.add(row[None, :])
    assert whole.stake == single.stake
    other = StabilityMonitor(own, seed=4)
    other.add(served)
    assert other.stake != whole.stake  # the seed breaks ties


def test_p_values_are_ranks_among_all_seen_so_far() -> None:
    """Against counting by hand, with ties."""
    rng = np.random.default_rng(3)
    own = StabilityCheck.calibrate((np.array([[3.0, 0.0], [2.0, 1.0], [2.0, 1.0]]),) * 2)
    monitor, seen = StabilityMonitor(own, seed=7), [3.0, 1.0, 1.0]
    chance = np.random.default_rng(7)
    for value in rng.integers(0, 4, 50).astype(float):
        greater = sum(one > value for one in seen)
        equal = sum(one == value for one in seen)
        wanted = (greater + chance.random() * (equal + 1)) / (len(seen) + 1)
        assert monitor._p_value(value) == pytest.approx(wanted, abs=1e-15)
        seen.append(value)


def test_the_stake_is_fair() -> None:
    """A bet on p-values that lie evenly over 0 to 1 neither wins nor loses on the average."""
    rng = np.random.default_rng(4)
    monitor = StabilityMonitor(check(rng))
    for p_value in rng.random(1_500).tolist():
        monitor._bet(p_value)
        monitor._n += 1
    before, wealth, started = monitor.stake, monitor._wealth.copy(), monitor._started
    ends = []
    for p_value in (np.arange(1_000) + 0.5) / 1_000:
        monitor._wealth, monitor._started = wealth.copy(), started
        monitor._bet(float(p_value))
        ends.append(monitor.stake)
    assert np.mean(ends) == pytest.approx(before, rel=1e-9)


def test_one_bettor_is_the_simple_jumper_of_mapie() -> None:
    testing = pytest.importorskip(
        "mapie.exchangeability_testing", reason="mapie is an oracle here, not a dependency"
    )
    theirs = testing.OnlineMartingaleTest(random_state=0)
    ours = StabilityMonitor(check(np.random.default_rng(5)))
    for p_value in np.random.default_rng(6).random(900).tolist():
        value = theirs.update_simple_jumper_martingale(p_value)
        ours._bet(p_value)
        ours._n += 1
        assert ours._wealth.sum() * 2 == pytest.approx(value, rel=1e-9)  # the first holds a half


def test_memory_is_bounded() -> None:
    rng = np.random.default_rng(7)
    monitor = StabilityMonitor(check(rng))
    monitor.add_confidence(rng.uniform(0.5, 1, 5_000))
    assert len(monitor._keys) <= 300 + 1_025
    assert len(monitor._wealth) < 20
    np.testing.assert_allclose(rounded(np.array([0.7, -3.3])), [0.7, -3.3], rtol=2**-11)
    assert (rounded(np.array([0.0, 1.0, -2.0])) == [0, 1, -2]).all()


def test_what_cannot_be_ranked_is_refused_and_not_added() -> None:
    monitor = StabilityMonitor(check(np.random.default_rng(8)))
    with pytest.raises(ScoreError, match="1 of them NaN"):
        monitor.add_confidence([1.0, np.nan])
    with pytest.raises(ScoreError, match="finite"):
        monitor.add([[1.0, np.nan]])
    assert monitor.n == 0
    with pytest.raises(StabilityError, match="false alarm"):
        StabilityMonitor(monitor.check, level=0)


def test_threads_may_share_one() -> None:
    """Without a lock two threads change the counts under each other's hands."""
    rng = np.random.default_rng(4)
    monitor = StabilityMonitor(check(rng))
    parts = [rng.normal(size=300) ** 2 for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(monitor.add_confidence, parts))
    assert monitor.n == 8 * 300
    assert monitor._counts.sum() == 8 * 300 + len(monitor.check.sample)
    assert (np.diff(monitor._keys) > 0).all()
