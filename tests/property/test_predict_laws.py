"""Laws of predicted flips, and the chance against numbers drawn in another way."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

from quantdrift.allocation.curve import Gaps, flip_chances, flipped, predicted_curve

SEEDS = st.integers(0, 2**31)
WIDTHS = (2, 3, 8)
TOLERANCE = 4 * 0.5 / np.sqrt(512)  # four standard errors of a share of 512 draws, at the most


def world(seed: int, *, scale: float = 1.0, n: int = 6, n_contenders: int = 3) -> Gaps:
    """Gaps, shifts that shrink with the width, and here and there no contender."""
    rng = np.random.default_rng(seed)
    shape = (n, n_contenders, 4, len(WIDTHS))
    parts = scale * rng.standard_normal(shape) * 4.0 ** -np.arange(len(WIDTHS))
    gaps = np.sort(rng.exponential(size=shape[:2]), axis=1)
    missing = rng.random(shape[:2]) < 0.2
    missing[0] = False
    gaps[missing] = np.nan
    parts[missing] = np.nan
    return Gaps(gaps=gaps, contributions=parts, n_weights=rng.integers(1, 9, 4), widths=WIDTHS)


def widths_of(seed: int) -> list[int]:
    return np.random.default_rng(seed + 1).choice(WIDTHS, 4).tolist()  # type: ignore[no-any-return]  # numpy's tolist


@given(seed=SEEDS, factor=st.floats(1.0, 30.0))
def test_larger_shifts_of_the_same_signs_flip_no_fewer(seed: int, factor: float) -> None:
    gaps, more, widths = world(seed), world(seed, scale=factor), widths_of(seed)
    before = flipped(gaps.gaps, gaps.shifts(widths))
    assert (flipped(more.gaps, more.shifts(widths)) >= before).all()
    chances = [flip_chances(w.gaps, w.of_layers(widths)) for w in (gaps, more)]
    assert (chances[1] >= chances[0]).all()  # the same draws


@pytest.mark.parametrize("seed", range(4))
def test_scipy_integrates_to_the_same_chance(seed: int) -> None:
    """1 - P(no contender crosses), an orthant of the normal with the layers' covariance."""
    rng = np.random.default_rng(seed)
    gaps, parts = rng.exponential(size=(200, 2)), rng.standard_normal((200, 2, 5)) / 2
    exact = [1 - _none_crosses(gap, part) for gap, part in zip(gaps, parts, strict=True)]
    chances = flip_chances(gaps, parts)
    assert np.abs(chances - exact).max() < 2 * TOLERANCE
    assert chances.mean() == pytest.approx(np.mean(exact), abs=0.01)


@settings(max_examples=8, deadline=None)
@given(seed=SEEDS)
def test_no_point_of_the_front_is_beaten_and_every_other_one_is(seed: int) -> None:
    points = predicted_curve(world(seed, n=12))
    places = [(p.bits_per_weight, p.chance.value or 0.0) for p in points]
    for point, (bits, flips) in zip(points, places, strict=True):
        better = [p for p in places if p[0] <= bits and p[1] <= flips and p != (bits, flips)]
        assert point.on_front is not bool(better)
        assert bits <= point.budget


def _none_crosses(gap: NDArray[np.float64], part: NDArray[np.float64]) -> float:
    return float(multivariate_normal(cov=part @ part.T, allow_singular=True).cdf(gap))
