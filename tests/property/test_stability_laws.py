"""Laws of the stability check: it keeps its bound, whatever the scores."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantdrift.statistics.conformal import STATISTICS, Statistic, accepts, observe, threshold_of
from quantdrift.trust.certify import certify

LEVELS = st.sampled_from([0.05, 0.1, 0.2, 1 / 3, 0.5, 0.9])
NAMES = st.sampled_from(STATISTICS)


@st.composite
def pairs(draw: st.DrawFn, *, most: int = 30) -> tuple[Any, Any]:
    """Scores of both arms, with ties, exact copies, flips, and deltas that do not add up."""
    n_inputs, n_items = draw(st.integers(1, most)), draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        reference = rng.integers(0, 4, (n_inputs, n_items)).astype(np.float32)
        delta = rng.integers(-1, 2, reference.shape).astype(np.float32)
    else:
        reference = rng.normal(size=(n_inputs, n_items)).astype(np.float32)
        delta = (rng.normal(size=reference.shape) * draw(st.sampled_from([0, 0.1, 1]))).astype(np.float32)
    return reference, reference + delta


@given(pairs())
def test_a_flip_implies_a_gap_below_the_value(pair: tuple[Any, Any]) -> None:
    for name in ("S", "2epsilon"):
        seen = observe(pair, name)
        assert seen.values is not None
        assert (seen.confidence < seen.values)[seen.flipped].all()
        assert (seen.values >= 0).all()
    tight, loose = observe(pair, "S").values, observe(pair, "2epsilon").values
    assert tight is not None
    assert loose is not None
    assert (tight <= loose).all()


@given(pairs(most=7), LEVELS, NAMES)
def test_the_bound_holds_exactly(pair: tuple[Any, Any], alpha: float, name: Statistic) -> None:
    """Each of n + 1 inputs in turn is the new one, the others calibrate.

    For exchangeable inputs that is the whole distribution, given what the n + 1 inputs are; so the
    share of accepted flips is the probability itself, and no sampling error is in it.
    """
    seen = observe(pair, name)
    n = len(seen.confidence)
    wrong = 0
    for new in range(n):
        others = np.arange(n) != new
        threshold = threshold_of(seen.part(others), alpha)
        wrong += int((accepts(seen.confidence, threshold, name) & seen.flipped)[new])
    assert Fraction(wrong, n) <= Fraction(repr(alpha))


@given(pairs(), st.integers(0, 2**32), st.sampled_from([0.2, 0.5, 0.9]), st.sampled_from([0.1, 0.5]), NAMES)
def test_splits_are_what_plain_loops_give(pair: Any, seed: int, share: float, alpha: float, name: Statistic) -> None:
    if len(pair[0]) == 1:
        return
    certified = certify(pair, [alpha], [("joint", name)], n_splits=3, share=share, seed=seed)
    (certificate,), n, seen = certified.certificates, certified.n_calibration, observe(pair, name)
    rng, tries = np.random.default_rng(seed), []
    for _ in range(3):
        order = rng.permutation(certified.n_inputs)
        threshold = threshold_of(seen.part(order[:n]), alpha)
        taken = [row for row in order[n:] if accepts(seen.confidence[[row]], threshold, name)[0]]
        tries.append((threshold, len(taken), sum(bool(seen.flipped[row]) for row in taken)))
    thresholds, counts, wrong = np.array(tries).T
    assert certificate.threshold == np.median(thresholds)
    if n < 1 / alpha - 1 - 1e-9:
        assert certificate.coverage.value is certificate.joint_violation.value is certificate.violation.value is None
        return
    tested, some = certified.n_inputs - n, counts > 0
    assert certificate.coverage.value == pytest.approx(np.mean(counts / tested))
    assert certificate.coverage.sd == pytest.approx(np.std(counts / tested, ddof=1), abs=1e-12)
    assert certificate.joint_violation.value == pytest.approx(np.mean(wrong / tested))
    assert certificate.violation.value == (pytest.approx(np.mean(wrong[some] / counts[some])) if some.any() else None)
