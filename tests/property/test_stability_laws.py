"""Laws of the stability check: it keeps its bound, whatever the scores."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdrift.conformal import (
    STATISTICS,
    Statistic,
    accepts,
    bounds_gap,
    confidence_of,
    observe,
    split_conformal_threshold,
    threshold_of,
)
from quantdrift.trust.certify import certify
from quantdrift.trust.check import StabilityCheck

LAW = settings(deadline=None, max_examples=40)
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


@LAW
@given(pairs())
def test_a_flip_implies_a_gap_below_the_value(pair: tuple[Any, Any]) -> None:
    for name in ("S", "2epsilon"):
        seen = observe(pair, name)
        assert seen.values is not None
        assert (seen.confidence < seen.values)[seen.flipped].all()
        assert (seen.values >= 0).all()
    one, other = observe(pair, "S").values, observe(pair, "2epsilon").values
    assert one is not None
    assert other is not None
    assert (one <= other).all()


@LAW
@given(pairs(), LEVELS)
def test_s_accepts_all_that_twice_epsilon_accepts(pair: tuple[Any, Any], alpha: float) -> None:
    one = StabilityCheck.calibrate(pair, alpha=alpha, statistic="S")
    other = StabilityCheck.calibrate(pair, alpha=alpha, statistic="2epsilon")
    assert one.threshold <= other.threshold
    assert (one.accepts(pair[1]) >= other.accepts(pair[1])).all()


@LAW
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


def test_no_larger_threshold_is_needed_and_no_smaller_one_will_do() -> None:
    """All orders of distinct values: the rank of the new one is uniform, so the bound is sharp."""
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    above = dict.fromkeys((0.2, 0.4, 0.6), 0)
    for order in permutations(values.tolist()):
        for alpha in above:
            above[alpha] += order[-1] > split_conformal_threshold(np.array(order[:-1]), alpha)
    shares = {alpha: count / math.factorial(5) for alpha, count in above.items()}
    assert shares == {0.2: 0.2, 0.4: 0.4, 0.6: 0.6}


@LAW
@given(pairs(), NAMES)
def test_a_smaller_level_accepts_less(pair: tuple[Any, Any], name: Statistic) -> None:
    levels = (0.05, 0.1, 0.2, 0.5)
    checks = [StabilityCheck.calibrate(pair, alpha=alpha, statistic=name) for alpha in levels]
    for strict, lax in pairwise(checks):
        assert strict.threshold >= lax.threshold
        assert (strict.accepts(pair[1]) <= lax.accepts(pair[1])).all()


@LAW
@given(pairs(), LEVELS, NAMES)
def test_the_file_gives_back_the_same_check(
    tmp_path_factory: pytest.TempPathFactory, pair: tuple[Any, Any], alpha: float, name: Statistic
) -> None:
    check = StabilityCheck.calibrate(pair, alpha=alpha, statistic=name, on="draws")
    path = tmp_path_factory.mktemp("checks") / "check.json"
    check.save(path)
    assert StabilityCheck.load(path) == check
    json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN, no Infinity


@LAW
@given(pairs(), LEVELS, NAMES, st.integers(0, 2**32))
def test_the_order_of_calibration_inputs_does_not_matter(
    pair: tuple[Any, Any], alpha: float, name: Statistic, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(pair[0]))
    moved = (pair[0][order], pair[1][order])
    plain = StabilityCheck.calibrate(pair, alpha=alpha, statistic=name)
    assert StabilityCheck.calibrate(moved, alpha=alpha, statistic=name) == plain


@LAW
@given(pairs())
def test_the_gap_is_that_of_sorted_scores_to_the_last_bit(pair: tuple[Any, Any]) -> None:
    for scores in (*pair, pair[0].astype(np.float16), pair[0].astype(np.float64)):
        in_order = np.sort(scores.astype(np.float64), axis=1)
        np.testing.assert_array_equal(confidence_of(scores), in_order[:, -1] - in_order[:, -2])


def by_hand(seen: Any, name: Statistic, alpha: float, order: list[int], n: int) -> Any:
    """One split, input by input, in plain Python: accepted, and accepted flips, of those tested."""
    known, tested = order[:n], order[n:]
    if n < 1 / alpha - 1 - 1e-9:
        return 0, 0, math.inf
    if bounds_gap(name):
        ordered = sorted(seen.values[row] for row in known)
        rank = math.ceil(round((n + 1) * (1 - alpha), 9))
        threshold = ordered[rank - 1] if rank <= n else math.inf
        taken = [row for row in tested if seen.confidence[row] >= threshold]
    else:
        ordered = sorted(seen.confidence[row] for row in known if seen.flipped[row])
        rank = min(math.ceil(round((len(ordered) + 1) * (1 - alpha), 9)), len(ordered))
        threshold = ordered[rank - 1] if ordered else -math.inf
        taken = [row for row in tested if seen.confidence[row] > threshold]
    return len(taken), sum(bool(seen.flipped[row]) for row in taken), threshold


@settings(deadline=None, max_examples=25)
@given(pairs(), st.integers(0, 2**32), st.sampled_from([0.2, 0.5, 0.9]), st.integers(1, 4))
def test_splits_are_what_plain_loops_give(pair: tuple[Any, Any], seed: int, share: float, n_splits: int) -> None:
    if len(pair[0]) == 1:
        return
    alphas = (0.05, 0.1, 0.5)
    found = certify(pair, alphas, STATISTICS, n_splits=n_splits, share=share, seed=seed)
    rng, n = np.random.default_rng(seed), found.n_calibration
    orders = [rng.permutation(found.n_inputs).tolist() for _ in range(n_splits)]
    tested = found.n_inputs - n
    assert [(each.statistic, each.alpha) for each in found.certificates] == [
        (name, alpha) for name in STATISTICS for alpha in alphas
    ]
    for each in found.certificates:
        seen = observe(pair, each.statistic)
        tries = [by_hand(seen, each.statistic, each.alpha, order, n) for order in orders]
        assert each.threshold == np.median([threshold for *_, threshold in tries]) or (
            n_splits % 2 == 0 and math.isinf(each.threshold)
        )
        if n < 1 / each.alpha - 1 - 1e-9:
            assert each.coverage.value is each.joint_violation.value is each.violation.value is None
            continue
        taken = [count / tested for count, *_ in tries]
        assert each.coverage.value == pytest.approx(np.mean(taken))
        assert each.joint_violation.value == pytest.approx(np.mean([wrong for _, wrong, _ in tries]) / tested)
        if n_splits > 1:
            assert each.coverage.sd == pytest.approx(np.std(taken, ddof=1), abs=1e-12)
        some = [wrong / count for count, wrong, _ in tries if count]
        assert each.violation.n == len(some)
        assert each.violation.value == (pytest.approx(np.mean(some)) if some else None)
