"""The rule, the sweep, the cost and the advice, on runs small enough to follow by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quantdrift.conformal import confidence_in
from quantdrift.errors import QuantDriftError, RunError, ScoreError, UnknownNameError
from quantdrift.evidence import Noise
from quantdrift.identity import Identity
from quantdrift.perturbation import at_risk
from quantdrift.records import sealed
from quantdrift.trust.router import GapRouter, percentile_threshold, recovery_threshold
from quantdrift.trust.sweep import (
    advise,
    allocate_command,
    break_even_share,
    cost_curve,
    mean_sweep,
    relative_cost,
    sweep,
)
from support.routing_samples import classified, logits, run_of, searched, similarities

# gaps 1, 2, 3, 4; the answers to inputs 0 and 2 change
BEFORE = [[0.0, 0.4], [2.0, 0.0], [0.0, 0.1], [4.0, 0.0]]
AFTER = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]]


def test_an_input_is_routed_strictly_below_the_threshold() -> None:
    router = GapRouter(threshold=2.0)
    assert router.routes(AFTER).tolist() == [True, False, False, False]
    assert router.routes(np.array(AFTER)[:, ::-1]).tolist() == [True, False, False, False]


def test_msp_and_entropy_route_what_they_are_least_sure_of() -> None:
    scores = np.log([[0.5, 0.5], [0.9, 0.1]])
    assert GapRouter(threshold=0.6, score="msp").routes(scores).tolist() == [True, False]
    # minus the entropies: -0.693 and -0.325
    router = GapRouter(threshold=-0.5, score="entropy")
    assert router.routes(scores).tolist() == [True, False]
    assert router.rule == "entropy above 0.5 nats"


@pytest.mark.parametrize(("percentile", "routed"), [(0, 0), (10, 1), (25, 1), (34, 2), (50, 2), (75, 3), (100, 4)])
def test_a_percentile_routes_about_that_share_of_its_slice(percentile: int, routed: int) -> None:
    router = GapRouter.at_percentile(AFTER, percentile)
    assert router.routes(AFTER).sum() == routed
    assert router == GapRouter.at_percentile(classified(BEFORE, AFTER), percentile)


def test_inputs_that_tie_with_the_threshold_are_not_routed() -> None:
    tied = np.array([1.0, 1.0, 1.0, 2.0])
    assert (tied < percentile_threshold(tied, 50)).sum() == 0
    assert (tied < percentile_threshold(tied, 75.1)).sum() == 3
    assert (tied < percentile_threshold(tied, 100)).sum() == 4


def test_inputs_without_a_runner_up_have_no_part_in_a_threshold() -> None:
    values = np.array([np.nan, 1.0, 2.0])
    assert percentile_threshold(values, 100) == np.nextafter(2, 3)
    assert recovery_threshold(values, np.array([True, True, False]), 1.0) == np.nextafter(1, 2)
    with pytest.raises(QuantDriftError, match="at least one input of two items"):
        percentile_threshold(values[:1], 50)


@pytest.mark.parametrize(("share", "routed"), [(0.5, 1), (0.51, 3), (1.0, 3)])
def test_the_smallest_threshold_that_gives_back_a_share_of_the_changes(share: float, routed: int) -> None:
    router = GapRouter.at_recovered_share((BEFORE, AFTER), share)
    assert router.routes(AFTER).sum() == routed
    assert router == GapRouter.at_recovered_share(classified(BEFORE, AFTER), share)


def test_nine_tenths_of_ten_are_nine() -> None:
    gaps = np.arange(10.0)
    assert recovery_threshold(gaps, np.ones(10, dtype=bool), 0.9) == np.nextafter(8, 9)


def test_what_cannot_be_set_is_refused() -> None:
    with pytest.raises(QuantDriftError, match="none of the 4 first answers changed"):
        GapRouter.at_recovered_share((AFTER, AFTER))
    with pytest.raises(QuantDriftError, match="share above 0 and at most 1"):
        GapRouter.at_recovered_share((BEFORE, AFTER), 0)
    with pytest.raises(ScoreError, match="same inputs and items"):
        GapRouter.at_recovered_share((BEFORE, AFTER[:2]))
    with pytest.raises(QuantDriftError, match="percentile from 0 to 100"):
        GapRouter.at_percentile(AFTER, 101)
    with pytest.raises(QuantDriftError, match="finite threshold"):
        GapRouter(threshold=float("nan"))
    with pytest.raises(UnknownNameError, match="entropy"):
        GapRouter(threshold=1, score="entrpy")  # type: ignore[arg-type]
    with pytest.raises(ScoreError, match="batch of one"):
        GapRouter(threshold=1).routes([1.0, 2.0])


def test_a_router_is_kept_with_what_it_was_set_on(tmp_path: Path) -> None:
    evidence = classified(*logits(n=60))
    run = run_of(tmp_path / "cifar", evidence)
    router = GapRouter.at_recovered_share(evidence, 0.8).set_on(run)
    router.save(tmp_path / "router.json")
    assert GapRouter.load(tmp_path / "router.json") == router
    # the short form of the same spec is the same spec
    GapRouter.load(tmp_path / "router.json", spec="vit@W4-rtn-channel", model_fingerprint="weights")
    with pytest.raises(RunError, match=r"router\.json is for another pair .*vit@W4-channel-rtn"):
        GapRouter.load(tmp_path / "router.json", spec="vit@W3-channel-rtn")
    with pytest.raises(RunError, match="reference model: vit@W4-channel-rtn"):
        GapRouter.load(tmp_path / "router.json", model_fingerprint="others")
    model = {"fingerprint": "weights", "candidate_fingerprint": "low"}
    scores = {"reading": "self-retrieval", "similarity": "cosine"}
    low = {**run.record, "model": model, "settings": scores}
    replace(router, origin=Identity.of(low).brief()).save(tmp_path / "router.json")
    with pytest.raises(RunError, match="quantized weights"):
        GapRouter.load(tmp_path / "router.json", candidate_fingerprint="odd")
    GapRouter.load(tmp_path / "router.json", on=low)
    with pytest.raises(RunError, match="scores: self-retrieval by cosine"):
        GapRouter.load(tmp_path / "router.json", on={**low, "settings": {"reading": "logits"}})
    GapRouter(threshold=1.0).save(tmp_path / "router.json")
    with pytest.raises(RunError, match=r"pair: none that is told .* quantdrift route RUN"):
        GapRouter.load(tmp_path / "router.json", spec="vit@W4")


def test_files_that_hold_no_router_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    with pytest.raises(RunError, match="quantdrift route RUN --save FILE"):
        GapRouter.load(path)
    good = {"format": "quantdrift-router", "format_version": 2, "score": "gap", "threshold": 1.0}
    for change, message in (
        ({"format": "other"}, "expected a router"),
        ({"format_version": 1}, "format version 1"),
        ({"score": "margin"}, "damaged"),
        ({"threshold": True}, "damaged"),
        ({"threshold": None}, "damaged"),
        ({"set_on": {"who": 1}}, "damaged"),
    ):
        path.write_text(json.dumps(sealed({**good, **change})))
        with pytest.raises(RunError, match=message):
            GapRouter.load(path)
    GapRouter(threshold=1.0).save(kept := tmp_path / "kept.json")
    kept.write_text(kept.read_text().replace('"threshold": 1.0', '"threshold": 1.5'))
    with pytest.raises(RunError, match="was changed since"):
        GapRouter.load(kept)
    path.write_text("{")
    with pytest.raises(RunError, match="damaged"):
        GapRouter.load(path)
    with pytest.raises(RunError, match="something that is not a router"):
        GapRouter(threshold=1.0).save(path)


def test_cost_is_one_pass_of_the_candidate_and_the_routed_part_of_the_other() -> None:
    # the paper's figure for a quarter routed at a speed-up of 4.5
    assert round(relative_cost(0.25, 4.5), 2) == 0.47
    assert relative_cost(break_even_share(4.5), 4.5) == pytest.approx(1)
    assert break_even_share(1) == 0
    for wrong in (0.5, float("nan"), float("inf")):
        with pytest.raises(QuantDriftError, match="speed-up of 1 or more"):
            relative_cost(0.1, wrong)


def test_the_cost_curve_has_a_point_for_every_threshold() -> None:
    # labels are the reference's answers: input 0 and 2 are right only at full precision
    curve = cost_curve(classified(BEFORE, AFTER, [1, 0, 1, 0]), speed_up=4)
    assert curve.routed.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert curve.cost.tolist() == [0.25, 0.5, 0.75, 1, 1.25]
    assert curve.changes is not None
    assert curve.accuracy is not None
    assert curve.changes.tolist() == curve.accuracy.tolist() == [0, 0.5, 0.5, 1, 1]
    assert [curve.at(share) for share in (0, 0.24, 0.25, 0.74, 1)] == [0, 0, 1, 2, 4]
    assert [curve.for_changes(share) for share in (0.5, 0.6, 1)] == [1, 3, 3]


def test_inputs_of_one_confidence_are_routed_together() -> None:
    curve = cost_curve(classified(BEFORE, [[1, 0], [0, 1], [3, 0], [3, 0]]))
    assert curve.routed.tolist() == [0, 0.5, 1]
    assert curve.accuracy is None
    assert curve.accuracy_reason == "no input has a label"


def test_a_run_that_lost_no_accuracy_has_no_share_of_it() -> None:
    same = cost_curve(classified(AFTER, AFTER, [0, 0, 0, 1]))
    assert (same.changes, same.accuracy) == (None, None)
    assert same.for_changes(0.9) is None
    # 1 of 200 inputs is exactly 0.5 points, 1 of 201 is less
    for n, told in ((200, True), (201, False)):
        before, after = np.tile([1.0, 0.0], (n, 1)), np.tile([1.0, 0.0], (n, 1))
        after[0] = [0.0, 1.0]
        curve = cost_curve(classified(before, after, [0] * n))
        assert (curve.accuracy is not None) == told
    assert str(curve.accuracy_reason).startswith("accuracy falls by 0.50 points, less than")


def test_a_run_that_gained_accuracy_is_told_so() -> None:
    # the candidate is right on inputs 0 and 2, the reference on none: 2 of 4 more
    curve = cost_curve(classified(BEFORE, AFTER, [0, 1, 0, 1]))
    assert curve.accuracy_reason == "accuracy rises by 50.00 points, so nothing was lost"
    even = cost_curve(classified(BEFORE, AFTER, [0, 0, 1, 0]))
    assert even.accuracy_reason == "accuracy is the same, so nothing was lost"


@pytest.mark.parametrize("seed", range(6))
def test_one_split_by_hand(seed: int) -> None:
    evidence = classified(BEFORE, AFTER, [1, 0, 1, 0])
    (point,) = sweep(evidence, scores=["gap"], percentiles=[100], n_splits=1, seed=seed)
    first, second = np.split(np.random.default_rng(seed).permutation(4), 2)
    gaps, changed = np.array([1, 2, 3, 4]), np.array([True, False, True, False])
    below = gaps[second] <= gaps[first].max()
    assert point.routed.value == below.mean()
    assert point.routed.sd is None
    assert point.accuracy == point.changes
    if changed[second].any():
        assert point.changes.value == changed[second][below].sum() / changed[second].sum()
    else:
        assert point.changes.value is None
        assert "nothing to gain" in str(point.changes.reason)


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


def test_the_spread_of_a_ratio_of_sums_is_that_of_its_linear_form() -> None:
    """Of equal parts routed, the spread is the plain one of the shares."""
    evidence = classified(*logits(n=50, noise=0.8))
    (point,) = sweep(evidence, scores=["gap"], percentiles=[40], n_splits=6, seed=1)
    rng, gaps = np.random.default_rng(1), confidence_in(evidence)
    shares = []
    for _ in range(6):
        slice_, rest = np.split(gaps[rng.permutation(50)], 2)
        shares.append((rest < np.percentile(slice_, 40, method="higher")).mean())
    assert point.routed.sd == pytest.approx(np.std(shares, ddof=1))


def test_where_all_gaps_are_equal_nothing_is_routed() -> None:
    before, after = [[0.0, 1.0]] * 8, [[1.0, 0.0]] * 8
    (point,) = sweep(classified(before, after, [1] * 8), scores=["gap"], percentiles=[50])
    assert (point.routed.value, point.accuracy.value, point.changes.value) == (0, 0, 0)


def test_runs_average_over_those_that_a_share_is_defined_for() -> None:
    before, after, labels = logits(n=80, noise=0.8)
    one = sweep(classified(before, after, labels), percentiles=[25], n_splits=5)
    two = sweep(classified(before, after), percentiles=[25], n_splits=5)
    mean = mean_sweep([one, two])
    assert [point.score for point in mean] == ["gap", "msp", "entropy"]
    assert mean[0].accuracy.value == one[0].accuracy.value
    assert (mean[0].accuracy.n, mean[0].changes.n) == (1, 2)
    assert mean[0].changes.value == pytest.approx(one[0].changes.value)
    assert mean_sweep([two, two])[0].accuracy.reason == "in none of 2 runs: no input has a label"
    assert mean_sweep([one]) == one


def test_settings_of_a_sweep_out_of_range_are_refused() -> None:
    evidence = classified(BEFORE, AFTER)
    for settings in ({"share": 0.0}, {"share": 1.0}, {"n_splits": 0}):
        with pytest.raises(QuantDriftError, match="expected a share"):
            sweep(evidence, **settings)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="at least two inputs"):
        sweep(classified(BEFORE[:1], AFTER[:1]))
    with pytest.raises(RunError, match="similarities"):
        sweep(searched(*similarities(n=5)), scores=["msp"])


def test_few_at_risk_are_routed_and_many_ask_for_bits() -> None:
    few, many = classified(*logits(noise=0.3)), classified(*logits(noise=2.0))
    route, allocate = advise(few), advise(many)
    assert (route.fix, allocate.fix) == ("route", "allocate")
    assert route.at_risk.value == at_risk(few).mean()
    assert route.limit == 0.5
    assert route.sentences()[0].startswith("Recommended: route. ")
    assert "that move the gap: do this." in " ".join(allocate.sentences("do this"))


def test_a_candidate_that_is_hardly_faster_is_not_worth_routing() -> None:
    few = classified(*logits(noise=0.3))
    share = at_risk(few).mean()
    assert advise(few, speed_up=1 / (1 - share) - 0.01).fix == "allocate"
    assert advise(few, speed_up=1 / (1 - share) + 0.01).fix == "route"
    text = advise(few, speed_up=1.01).sentences()[0]
    assert "full precision for all of them costs less" in text


def test_an_interval_over_the_limit_is_said() -> None:
    # half of four inputs at risk tells nothing: epsilon is 3, 0, 3, 0
    advice = advise(classified(BEFORE, AFTER))
    assert advice.at_risk.value == 0.5
    assert advice.fix == "allocate"
    assert advice.straddles
    assert "too few to be sure" in " ".join(advice.sentences())


def test_nothing_is_advised_where_nothing_changed_or_noise_changes_as_much() -> None:
    same = advise(classified(AFTER, AFTER))
    assert same.fix == "nothing"
    assert same.sentences() == [
        "Recommended: nothing. None of 4 first answers changed (at most 49.0 % do, with 95 % confidence)."
    ]
    flips, none = np.array([True, True, False, False]), np.zeros(4, dtype=bool)
    epsilon = np.zeros(4, dtype=np.float32)
    noisy = advise(classified(BEFORE, AFTER, noise=Noise(flips=flips, epsilon=epsilon)))
    assert noisy.fix == "nothing"
    assert "noise alone changes 50.0 %" in noisy.sentences()[0]
    quiet = advise(classified(BEFORE, AFTER, noise=Noise(flips=none, epsilon=epsilon)))
    assert quiet.fix == "allocate"
    assert quiet.above_noise is False  # 2 of 4 against 0 of 4: p = 0.5
    assert "not shown to be more than noise" in " ".join(quiet.sentences())


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("minilm@W3", "minilm@W3.5-g128-rtn+gap"),
        ("minilm@W4A8-channel-gptq", "minilm@W4.5A8-channel-gptq+gap"),
        ("minilm@W3-g64+query", "minilm@W3.5-g64-rtn+query+gap"),
        ("minilm@W8", None),
        ("minilm@W3.5+gap", None),
        ("minilm vs minilm-8bit", None),
    ],
)
def test_what_allocates_has_half_a_bit_more(spec: str, expected: str | None) -> None:
    for classes, command in ((False, "allocate"), (True, "run")):
        told = None if expected is None else f"quantdrift {command} {expected} --data FOLDER"
        assert allocate_command(spec, classes=classes) == told


def test_it_needs_no_torch() -> None:
    code = """
import sys
import quantdrift
quantdrift.GapRouter, quantdrift.RoutedModel, quantdrift.RescoredSearch
import quantdrift.cli.route
assert not {"torch", "transformers", "scipy.stats"} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
