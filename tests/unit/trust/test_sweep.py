"""The sweep, the cost and the advice, on runs small enough to follow by hand."""

import numpy as np
import pytest

from quantdrift.conformal import confidence_in
from quantdrift.errors import QuantDriftError
from quantdrift.evidence import Noise
from quantdrift.perturbation import at_risk
from quantdrift.trust.sweep import advise, answers_of, break_even_share, operating_point, relative_cost, sweep
from support.routing_samples import classified, logits

# gaps 1, 2, 3, 4; the answers to inputs 0 and 2 change
BEFORE = [[0.0, 0.4], [2.0, 0.0], [0.0, 0.1], [4.0, 0.0]]
AFTER = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]]


def test_cost_is_one_pass_of_the_candidate_and_the_routed_part_of_the_other() -> None:
    # the paper's figure for a quarter routed at a speed-up of 4.5
    assert round(relative_cost(0.25, 4.5), 2) == 0.47
    assert relative_cost(break_even_share(4.5), 4.5) == pytest.approx(1)
    assert break_even_share(1) == 0
    for wrong in (0.5, float("nan"), float("inf")):
        with pytest.raises(QuantDriftError, match="speed-up of 1 or more"):
            relative_cost(0.1, wrong)


def test_the_operating_point_is_the_least_that_gives_back_a_share() -> None:
    evidence = classified(BEFORE, AFTER, [1, 0, 1, 0])
    found = [operating_point(evidence, "gap", share, speed_up=4) for share in (0.5, 0.6, 1)]
    assert [(at.routed, at.cost, at.changes, at.k) for at in found if at] == [
        (0.25, 0.5, 0.5, None),
        *[(0.75, 1, 1, None)] * 2,
    ]
    assert operating_point(classified(AFTER, AFTER)) is None


def test_a_share_of_lost_accuracy_needs_half_a_point_of_it() -> None:
    # 1 of 200 inputs is exactly 0.5 points, 1 of 201 is less
    for n, told in ((200, None), (201, "accuracy changes by -0.50 points, and only of a loss of 0.5")):
        before, after = np.tile([1.0, 0.0], (n, 1)), np.tile([1.0, 0.0], (n, 1))
        after[0] = [0.0, 1.0]
        assert (answers_of(classified(before, after, [0] * n)).accuracy_reason or "").startswith(told or "")
    # the candidate is right on inputs 0 and 2, the reference on none: 2 of 4 more
    for labels, told in (([0, 1, 0, 1], "+50.00 points"), ([0, 0, 1, 0], "by -0.00 points"), (None, "no input has")):
        assert told in (answers_of(classified(BEFORE, AFTER, labels)).accuracy_reason or "")


def test_splits_pool_as_sums_over_sums() -> None:
    """Against a loop over answers, counted one by one."""
    before, after, labels = logits(n=90, noise=0.8)
    evidence = classified(before, after, labels)
    (point,) = sweep(evidence, scores=["msp"], percentiles=[30], share=0.4, n_splits=7, seed=3)
    soft = np.exp(after.astype(float))
    sure = (soft / soft.sum(axis=1, keepdims=True)).max(axis=1)
    rng, totals = np.random.default_rng(3), np.zeros(5)
    for _ in range(7):
        order = rng.permutation(90)
        threshold = np.percentile(confidence_in(evidence, "msp")[order[:36]], 30, method="higher")
        rest = order[36:]
        routed = sure[rest] < threshold - 1e-12
        answer = np.where(routed, before[rest].argmax(1), after[rest].argmax(1))
        right = [(arm == labels[rest]).sum() for arm in (before[rest].argmax(1), after[rest].argmax(1), answer)]
        changed = before[rest].argmax(1) != after[rest].argmax(1)
        totals += [routed.mean() / 7, right[2] - right[1], right[0] - right[1], (changed & routed).sum(), changed.sum()]
    assert point.routed.value == pytest.approx(totals[0])
    assert point.accuracy.value == pytest.approx(totals[1] / totals[2])
    assert point.changes.value == pytest.approx(totals[3] / totals[4])


def test_few_at_risk_are_routed_and_many_ask_for_bits() -> None:
    few, many = classified(*logits(noise=0.3)), classified(*logits(noise=2.0))
    route, allocate = advise(few), advise(many)
    assert (route.fix, allocate.fix) == ("route", "allocate")
    assert route.at_risk.value == at_risk(few).mean()
    assert route.limit == 0.5
    assert route.sentences[0].startswith("Recommended: route. ")
    assert "on the layers that move the gap" in allocate.sentences[0]


def test_nothing_is_advised_where_nothing_changed_or_noise_changes_as_much() -> None:
    same = advise(classified(AFTER, AFTER))
    assert (same.fix, same.sentences) == ("nothing", ["Recommended: nothing. 0.0 % of 4 first answers changed."])
    flips, epsilon = np.array([True, True, False, False]), np.zeros(4, dtype=np.float32)
    noisy = advise(classified(BEFORE, AFTER, noise=Noise(flips=flips, epsilon=epsilon)))
    assert noisy.fix == "nothing"
    assert "noise alone changes 50.0 %" in noisy.sentences[0]
    assert advise(classified(BEFORE, AFTER, noise=Noise(flips=~flips & flips, epsilon=epsilon))).fix == "allocate"
