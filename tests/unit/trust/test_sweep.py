"""The sweep, the cost and the advice, on runs small enough to follow by hand."""

from typing import Any

import numpy as np
import pytest

from quantdrift.base.errors import QuantDriftError
from quantdrift.evidence.record import Evidence, Noise
from quantdrift.features.route.advice import Advice, advise, break_even_share, operating_point, relative_cost
from quantdrift.statistics.conformal import confidence_in
from quantdrift.trust.sweep import answers_of, sweep
from support.routing_samples import classified, logits

# gaps 1, 2, 3, 4; the answers to inputs 0 and 2 change
BEFORE = [[0.0, 0.4], [2.0, 0.0], [0.0, 0.1], [4.0, 0.0]]
AFTER = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]]


def test_cost_is_one_pass_of_the_candidate_and_the_routed_part_of_the_other() -> None:
    # the paper's figure for a quarter routed at a speed-up of 4.5
    assert round(relative_cost(0.25, 4.5), 2) == 0.47
    assert (relative_cost(break_even_share(4.5), 4.5), break_even_share(1)) == (pytest.approx(1), 0)
    for wrong in (0.5, float("nan"), float("inf")):
        with pytest.raises(QuantDriftError, match="1 or more"):
            relative_cost(0.1, wrong)


def test_the_operating_point_is_the_least_that_gives_back_a_share() -> None:
    evidence = classified(BEFORE, AFTER, [1, 0, 1, 0])
    # below the first and below the second of two top-1 changes lie 1/3 and 2/3 of those of new inputs
    points = [operating_point(evidence, "gap", share, speed_up=4) for share in (0.3, 0.5, 0.6)]
    assert [(at.routed, at.cost, at.changes, at.k) for at in points if at] == [
        (0.25, 0.5, pytest.approx(1 / 3), None),
        *[(0.75, 1, pytest.approx(2 / 3), None)] * 2,
    ]
    assert operating_point(evidence, "gap", 0.7) is None  # two cannot show it
    assert operating_point(classified(AFTER, AFTER)) is None


def test_the_share_that_is_claimed_is_what_new_inputs_give_back() -> None:
    """3 % of 300 answers change, 90 % are to come back: the run's own share was claimed, and new inputs gave less."""
    rng, wanted = np.random.default_rng(0), 0.9
    claimed, given, inside = [], [], []
    for _ in range(400):
        gaps = rng.exponential(size=300)
        changed = rng.random(300) < 0.12 * np.exp(-2 * gaps)  # unsure answers change more often
        after = np.stack([gaps, np.zeros(300)], axis=1)
        before = np.where(changed[:, None], after[:, ::-1], after)
        point = operating_point(classified(before, after), "gap", wanted)
        if point is None:
            continue
        new = rng.exponential(size=4000)
        others = new[rng.random(4000) < 0.12 * np.exp(-2 * new)]
        back = float((others < point.threshold).mean())
        claimed.append(point.changes)
        given.append(back)
        inside.append(point.low - 0.02 <= back <= point.high + 0.02)
    assert len(given) > 200
    assert np.mean(given) == pytest.approx(np.mean(claimed), abs=0.01)
    assert min(claimed) >= wanted
    assert np.mean(inside) > 0.92


def test_a_share_of_lost_accuracy_needs_half_a_point_of_it() -> None:
    # 1 of 200 inputs is exactly 0.5 points, 1 of 201 is less
    for n, shown in ((200, None), (201, "accuracy changes by -0.50 points, and only of a loss of 0.5")):
        before, after = np.tile([1.0, 0.0], (n, 1)), np.tile([1.0, 0.0], (n, 1))
        after[0] = [0.0, 1.0]
        assert (answers_of(classified(before, after, [0] * n)).accuracy_reason or "").startswith(shown or "")
    # the candidate is right on inputs 0 and 2, the reference on none: 2 of 4 more
    for labels, shown in (([0, 1, 0, 1], "+50.00 points"), ([0, 0, 1, 0], "by -0.00 points"), (None, "no input has")):
        assert shown in (answers_of(classified(BEFORE, AFTER, labels)).accuracy_reason or "")


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


def advised(evidence: Evidence, wanted: float = 0.9, **given: Any) -> Advice:
    point = operating_point(evidence, "gap", wanted, speed_up=given.get("speed_up", 4.5))
    return advise(evidence, point, wanted=wanted, **given)


def test_the_cheapest_that_gives_back_enough_is_advised_and_the_cost_of_each_is_told() -> None:
    advice = advised(classified(BEFORE, AFTER), 0.3, speed_up=4)
    shown = [(choice.fix, choice.changes, choice.cost) for choice in advice.choices]
    assert shown == [(None, 0, 0.25), ("route", pytest.approx(1 / 3), 0.5), (None, 1, 1)]
    assert advice.fix == "route"
    assert advice.sentences[0] == "Recommended: route, the cheapest choice that corrects 30 % of the top-1 changes."
    assert "25.0 % of inputs with the least gap" in advice.choices[1].what
    assert advice.choices[1].between == pytest.approx((0.013, 0.842), abs=5e-4)
    # all of them cost as much as full precision, so that routing is no use
    everything = advised(classified(BEFORE, AFTER), 0.6, speed_up=4)
    assert (everything.fix, everything.choices[-2].cost) == ("quantize less", 1)
    assert everything.sentences[0].startswith("Nothing cheaper")


def test_nothing_is_advised_where_nothing_changed_or_noise_changes_as_much() -> None:
    same = advise(classified(AFTER, AFTER))
    assert (same.fix, same.sentences) == ("nothing", ["Recommended: nothing. 0.0 % of 4 top-1 answers changed."])
    moved, epsilon = np.array([True, True, False, False]), np.zeros(4, dtype=np.float32)
    noisy = advise(classified(BEFORE, AFTER, noise=Noise(flips=moved, epsilon=epsilon)))
    assert (noisy.fix, noisy.choices) == ("nothing", ())
    assert "noise alone changes 50.0 %" in noisy.sentences[0]
    assert advise(classified(BEFORE, AFTER, noise=Noise(flips=~moved & moved, epsilon=epsilon))).fix == "quantize less"
