"""What rules need, from a pilot: as the gate itself says, and where there is no baseline as two that are alike."""

from typing import Any

import numpy as np
import pytest

from quantdrift.base.errors import RunError
from quantdrift.features.plan.power import Needed, needed_by
from quantdrift.gate.judge import gate, snapshot_for
from quantdrift.gate.target import Target
from support.gate_samples import evidence, judged, rules, target


def needed(rule: str, pilot: Target, baseline: Target | None = None, **changes: Any) -> Needed:
    (need,) = needed_by(rules(rule), pilot, baseline, **{"there": 500, "alpha": 0.05, "power": 0.8, **changes})
    return need


def test_with_a_baseline_it_is_what_the_gate_says() -> None:
    rule = "flip@1 no worse by 0.03"
    pilot, baseline = target(evidence(range(18), n=120)), target(evidence(range(12, 24), n=120))
    need = needed(rule, pilot, baseline)
    result = gate(pilot, rules(rule), snapshot_for(baseline, rules(rule)))
    (judgement,) = result.rules
    assert judgement.needed is not None
    assert need.to_pass == judgement.needed > 120
    assert need.differs == pytest.approx((18 + 2) / (120 + 4))  # 12 flip only now and 6 only then, of 120
    assert need.difference is not None
    assert need.difference.value == pytest.approx(6 / 120)
    assert not need.enough
    assert needed(rule, pilot, baseline, there=need.to_pass).enough
    assert need.to_pass_low is not None
    assert need.to_pass_high is not None
    assert need.to_pass_low < need.to_pass < need.to_pass_high


def test_at_the_smallest_margin_the_data_are_enough() -> None:
    pilot, baseline = target(evidence(range(18), n=120)), target(evidence(range(6, 24), n=120))
    smallest = needed("flip@1 no worse by 0.03", pilot, baseline).smallest
    assert needed(f"flip@1 no worse by {smallest + 1e-6}", pilot, baseline).enough
    assert not needed(f"flip@1 no worse by {0.95 * smallest}", pilot, baseline).enough


def test_without_a_baseline_two_are_alike_and_independent() -> None:
    """24 of 120 flip: two such candidates differ on 2 p (1 - p) of the inputs."""
    need = needed("flip@1 no worse by 0.03", target(evidence(range(24), n=120)))
    p = (24 + 2) / (120 + 4)
    assert need.differs == pytest.approx(2 * p * (1 - p))
    assert need.difference is None
    rng = np.random.default_rng(2)
    before, now = (rng.random((2, 40_000)) < p).astype(float)
    shown = judged("flip@1 no worse by 0.03", before, now).needed
    assert need.to_pass == pytest.approx(shown, rel=0.03)


def test_inputs_that_do_not_count_are_added() -> None:
    """A third of the inputs changes by noise alone, and is set aside by the gate."""
    plain = needed("flip@1 no worse by 0.05", target(evidence(range(20), n=80)))
    noisy = needed("flip@1 no worse by 0.05", target(evidence(range(20), n=120, noise=range(80, 120))))
    assert (plain.usable, noisy.usable) == (1, pytest.approx(2 / 3))
    assert noisy.to_pass == pytest.approx(1.5 * plain.to_pass, abs=1)


def test_what_has_no_value_says_why_and_others_are_refused() -> None:
    unlabelled = target(evidence(range(24), n=120, labels=False))
    need = needed("gold_lost@10 no worse by 0.05", unlabelled)
    assert (need.to_pass, need.enough) == (None, False)
    assert need.reason
    with pytest.raises(RunError, match=r"lacks 60 of the pilot's 120 inputs"):
        needed("flip@1 no worse by 0.05", unlabelled, target(evidence(range(5), n=60)))
    with pytest.raises(RunError, match="not comparable"):
        needed("flip@1 no worse by 0.05", unlabelled, target(evidence(range(5), n=120), model_fingerprint="others"))
