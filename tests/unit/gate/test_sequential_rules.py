"""Limits that are judged while inputs are answered: how rules share the error, and what a rule without values is."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from quantdrift.gate.judge import gate, settled
from quantdrift.gate.result import GateResult
from quantdrift.gate.target import Drawn
from quantdrift.statistics.sequential import rate_bounds
from support.gate_samples import evidence, ones, rules, target

N, SPREAD = 60, range(0, 60, 10)


def judged(flips: Sequence[int], *texts: str, of: int = 1000, **more: Any) -> GateResult:
    """Rules on the first `N` inputs of so many."""
    run = replace(target(evidence(flips, n=N)), drawn=Drawn(n=N, of=of, seed=7))
    return gate(run, rules(*texts), **more)


def test_a_limit_is_on_the_rate_of_all_inputs_that_there_could_be() -> None:
    found = judged(SPREAD, "flip@1 <= 0.3", "flip@1 <= 0.005", "flip@1 <= 0.12", "flip@1 >= 0.02")
    assert [rule.outcome for rule in found.rules] == ["pass", "fail", "underpowered", "pass"]
    assert (found.verdict, found.exit_code) == ("fail", 1)
    assert found.to_json()["sequential"] == {"n": N, "of": 1000, "seed": 7}
    low, high = rate_bounds(ones(N, SPREAD), alpha=0.05, ended=False)
    now = found.rules[0].now
    assert now is not None
    assert (now.value, now.low, now.high) == (0.1, pytest.approx(low), pytest.approx(high))


def test_failing_shares_the_error_over_the_rules_and_passing_does_not() -> None:
    flips = [*range(40, 44)]
    alone, *_ = judged(flips, "flip@1 <= 0.01").rules
    assert alone.p_worse is not None
    # two copies of a rule are one; a slice without an input so far counts
    both = judged(flips, "flip@1 <= 0.01", "flip@1 <= 0.01", "flip@1 [none] <= 0.5", slices={"none": "x*"}).rules
    assert [rule.n for rule in both] == [N, 0]
    assert both[0].p_worse_holm == pytest.approx(2 * alone.p_worse)
    assert [rule.outcome for rule in both][1] == "underpowered"
    many = judged([], *(f"flip@1 <= {limit}" for limit in (0.2, 0.3, 0.4, 0.5)))
    assert many.verdict == "pass"
    assert many.rules[0].p_no_worse == judged([], "flip@1 <= 0.2").rules[0].p_no_worse


def test_it_goes_on_until_every_rule_is_decided() -> None:
    few = evidence(SPREAD, n=N)
    assert settled(few, rules("flip@1 <= 0.3"))
    assert not settled(few, rules("flip@1 <= 0.3", "flip@1 <= 0.12"))
    # a rule that nothing can decide keeps nobody waiting
    unlabelled = replace(few, judgements=None)
    assert settled(unlabelled, rules("flip@1 <= 0.3", "gold_lost@1 <= 0.3"))
    # the inputs ran out: the exact test of all of them has a part of the error of its own
    assert judged(SPREAD, "flip@1 <= 0.23").verdict == "underpowered"
    assert judged(SPREAD, "flip@1 <= 0.22", of=N).verdict == "underpowered"
    assert judged(SPREAD, "flip@1 <= 0.23", of=N).verdict == "pass"
