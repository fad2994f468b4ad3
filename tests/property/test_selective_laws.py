"""The guarantees with confidence: of the accepted answers, or of all answers of a system, at most alpha changed, in all
but delta of the calibrations.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom

from quantdrift.statistics.selective import deferral_threshold, least_inputs, selective_threshold

Floats = NDArray[np.float64]
CALIBRATIONS = 2_000


def smooth(u: Floats) -> tuple[Floats, Floats]:
    return u, 0.4 * (1 - u) ** 2


def at_the_level(u: Floats) -> tuple[Floats, Floats]:
    return u, np.full(len(u), 0.1001)  # nothing may be accepted, and it is as hard as can be to tell


def two_bad_parts(u: Floats) -> tuple[Floats, Floats]:
    return u, np.where(u > 0.8, 0.05, np.where(u > 0.6, 0.4, np.where(u > 0.3, 0.02, 0.3)))


def surest_are_bad(u: Floats) -> tuple[Floats, Floats]:
    return u, np.where(u > 0.97, 0.5, np.where(u > 0.5, 0.08, 0.2))


def ties(u: Floats) -> tuple[Floats, Floats]:
    scores = np.floor(12 * u) / 12
    return scores, 0.35 * (1 - scores) ** 1.5


def ties_out_of_order(u: Floats) -> tuple[Floats, Floats]:
    scores = np.floor(20 * u) / 20
    return scores, np.where(scores >= 0.9, 0.15, np.where(scores >= 0.7, 0, np.where(scores >= 0.65, 0.5, 0.08)))


def dependent(u: Floats) -> tuple[Floats, Floats]:
    """Inputs come in families that share a gap, as paraphrases do."""
    families = np.floor(40 * u) / 40
    return families + 1e-9 * u, np.where(np.floor(40 * u) % 3 == 0, 0.2, 0.04)


def rare(u: Floats) -> tuple[Floats, Floats]:
    return u, np.where(u < 0.2, 0.02, 0.001)


WORLDS = [smooth, at_the_level, two_bad_parts, surest_are_bad, ties, ties_out_of_order, dependent, rare]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("n", "alpha"), [(60, 0.1), (300, 0.1), (300, 0.01)])
def test_of_the_accepted_at_most_alpha_changed(
    world: Callable[[Floats], tuple[Floats, Floats]], n: int, alpha: float
) -> None:
    rng = np.random.default_rng([n, int(1000 * alpha)])
    scores, chances = world(np.linspace(0, 1, 200_001)[1:])
    order = np.argsort(-scores, kind="stable")
    falling, risk = -scores[order], np.cumsum(chances[order]) / np.arange(1, len(scores) + 1)
    broken = 0
    for _ in range(CALIBRATIONS):
        seen, chance = world(rng.random(n))
        threshold = selective_threshold(seen, rng.random(n) < chance * min(1, 10 * alpha), alpha)
        accepted = int(np.searchsorted(falling, -threshold))
        broken += bool(accepted) and risk[accepted - 1] * min(1, 10 * alpha) > alpha * 1.0001
    # 10 % are allowed; three standard errors of 2,000 calibrations are 2 %
    assert broken / CALIBRATIONS <= 0.12


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("n", "alpha", "lost"), [(60, 0.1, 0), (300, 0.1, 0.3), (300, 0.01, 0), (300, 0.01, 0.3)])
def test_of_all_answers_of_a_system_at_most_alpha_differ(
    world: Callable[[Floats], tuple[Floats, Floats]], n: int, alpha: float, lost: float
) -> None:
    """Of the changes a share `lost` does not come back where it is deferred."""
    rng, scale = np.random.default_rng([n, int(1000 * alpha)]), min(1, 10 * alpha)
    scores, chances = world(np.linspace(0, 1, 200_001)[1:])
    order = np.argsort(scores, kind="stable")
    rising, below = scores[order], scale * np.r_[0, np.cumsum(chances[order])] / len(scores)  # by how many are deferred
    risks = below[-1] - (1 - lost) * below
    broken = 0
    for _ in range(CALIBRATIONS):
        seen, chance = world(rng.random(n))
        changed, comes_back = rng.random(n) < chance * scale, rng.random(n) >= lost
        threshold = deferral_threshold(seen, changed & comes_back, int((changed & ~comes_back).sum()), alpha, 0.9)
        broken += threshold < math.inf and risks[np.searchsorted(rising, threshold)] > alpha * 1.0001
    assert broken / CALIBRATIONS <= 0.12


ROWS = st.lists(st.tuples(st.integers(0, 8), st.sampled_from(["same", "back", "lost"])), min_size=1, max_size=80)


@given(ROWS, st.sampled_from([0.1, 0.3, 0.5]))
def test_a_deferral_threshold_is_the_lowest_that_passes_the_exact_test(
    rows: list[tuple[int, str]], alpha: float
) -> None:
    scores, what = (np.array(column) for column in zip(*rows, strict=True))
    scores, back, lost = scores.astype(np.float64), what == "back", int((what == "lost").sum())

    def passes(threshold: float) -> bool:
        wrong = lost + (back & (scores >= threshold)).sum()
        return bool(binom.cdf(wrong, len(scores), alpha) <= 0.1 + 1e-12)

    threshold = deferral_threshold(scores, back, lost, alpha, 0.9)
    assert passes(threshold) == (threshold < math.inf) == passes(9)
    lower = scores[scores < threshold]
    assert not len(lower) or not passes(lower.max()) or threshold == math.inf


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=80), st.sampled_from([0.1, 0.3, 0.5]))
def test_what_is_accepted_of_the_calibration_inputs_passes_the_exact_test(
    rows: list[tuple[int, bool]], alpha: float
) -> None:
    scores, changed = (np.array(column) for column in zip(*rows, strict=True))
    threshold = selective_threshold(scores.astype(np.float64), changed, alpha)
    accepted = scores > threshold
    if threshold == math.inf:
        return
    assert accepted.sum() >= least_inputs(alpha)
    assert binom.cdf(changed[accepted].sum(), accepted.sum(), alpha) <= 0.1 + 1e-12
    # an input that changes lets no more be accepted
    worse = changed.copy()
    worse[np.argmax(scores)] = True
    assert (scores > selective_threshold(scores.astype(np.float64), worse, alpha)).sum() <= accepted.sum()


@pytest.mark.parametrize("alpha", [0.3, 0.1, 0.05, 0.01, 0.001])
@pytest.mark.parametrize("changed", [0, 1, 5])
def test_the_inputs_that_a_level_takes(alpha: float, changed: int) -> None:
    n = least_inputs(alpha, changed=changed)
    assert binom.cdf(changed, n, alpha) <= 0.1 < binom.cdf(changed, n - 1, alpha)


def test_with_no_change_everything_is_accepted_and_with_too_few_inputs_nothing() -> None:
    scores = np.arange(230.0)
    assert selective_threshold(scores, np.zeros(230, dtype=bool), 0.01) == -math.inf
    assert selective_threshold(scores[1:], np.zeros(229, dtype=bool), 0.01) == math.inf
