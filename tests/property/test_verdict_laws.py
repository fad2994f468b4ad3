"""No verdict of chance, at any number of inputs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantdrift.statistics.estimates import mean_estimate, share_estimate
from quantdrift.statistics.paired import borne_out
from quantdrift.statistics.standing import Tolerances, exceeds, standing


@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 30, 80])
def test_exchangeable_arms_are_said_to_have_lost_quality_in_at_most_one_case_of_twenty(n: int) -> None:
    """Differences of nDCG whose sign is a coin's; half of the inputs do not differ at all."""
    rng = np.random.default_rng(n)
    words = []
    for _ in range(400):
        step = rng.choice([-1, 1], n) * rng.choice([0, 0.37, 0.5, 1], n, p=[0.5, 0.2, 0.2, 0.1])
        change = borne_out(mean_estimate(step), step)
        words.append((change.high or 0.0) < 0)
        standing(share_estimate(0, n), change=change, tolerances=Tolerances())
    assert np.mean(words) <= 0.05


@pytest.mark.parametrize("limit", [0.03, 0.2])
def test_a_share_at_the_limit_is_called_more_or_no_more_in_at_most_one_case_of_forty(limit: float) -> None:
    """Exactly, over every outcome that a binomial variable can have."""
    for n in range(1, 150):
        chances = np.array([1.0])
        for _ in range(n):
            chances = np.convolve(chances, [1 - limit, limit])
        answers = [exceeds(share_estimate(hits, n), limit) for hits in range(n + 1)]
        for wrong in ("yes", "no"):
            assert sum(chance for chance, answer in zip(chances, answers, strict=True) if answer == wrong) <= 0.025


@given(n=st.integers(1, 400), hits=st.integers(0, 400), more=st.integers(0, 400))
def test_more_changes_never_make_a_verdict_better(n: int, hits: int, more: int) -> None:
    order = ["no", "open", "yes"]
    first, second = (exceeds(share_estimate(min(n, count), n), 0.03) for count in (hits, hits + more))
    assert order.index(first) <= order.index(second)
