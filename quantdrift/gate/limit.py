"""A limit: is a value at most, or at least, so much?

The value that was observed decides, on the inputs of this evaluation set.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantdrift.gate.result import Judgement
from quantdrift.gate.rule import Rule
from quantdrift.gate.target import Target
from quantdrift.metrics import MetricError
from quantdrift.statistics import Estimate, undefined

__all__ = ["judge_limit", "undefined_now"]

_ONLY_A_BOUND = "only a bound is known, of lists that were cut short"
_ROUNDING = 1e-12
"""A mean is not beyond a limit by this little: which way it was rounded depends on the order."""


def judge_limit(rule: Rule, target: Target, rows: NDArray[np.bool_] | None) -> Judgement:
    """What a limit comes to.

    Args:
        rule: a limit.
        target: what is judged.
        rows: inputs of the rule's slice, bool [n_inputs]; None for all.
    """
    metric = rule.metric
    now = _estimate(rule, target)
    if now.value is None:
        return _undefined(rule, now.reason)
    if rows is None:
        return _observed(rule, now)
    if now.bound is not None:
        return _undefined(rule, _ONLY_A_BOUND)
    # not those of the snapshot, which are rounded
    values = metric.told_apart(target.values(metric), target.evidence)[rows]
    values = values[~np.isnan(values)]
    if not len(values):
        return _undefined(rule, None)
    return _observed(rule, metric.estimate(values))


def undefined_now(rule: Rule, target: Target) -> Judgement | None:
    """The error that a metric comes to if no input of the run has a value; None if one has.

    Args:
        rule: a comparison.
        target: what is judged.
    """
    if not np.isnan(target.values(rule.metric)).all():
        return None
    now = _estimate(rule, target)
    return _undefined(rule, now.reason if now.bound is None else _ONLY_A_BOUND)


def _estimate(rule: Rule, target: Target) -> Estimate:
    try:
        return rule.metric.over(target.evidence)
    except MetricError as error:
        return undefined(str(error))


def _undefined(rule: Rule, reason: str | None) -> Judgement:
    why = reason or rule.metric.family.undefined_when
    return Judgement(rule=rule, outcome="error", reason=f"undefined: {why}")


def _observed(rule: Rule, now: Estimate) -> Judgement:
    value, limit = now.value, rule.number
    assert value is not None  # undefined ones have been told
    assert limit is not None  # a limit has a number
    if now.bound is not None:
        # a lower bound above an upper limit decides, and so does an upper one below a lower
        broken = value > limit if now.bound == "lower" else value < limit
        if broken and (now.bound == "lower") == (rule.test == "<="):
            return Judgement(rule=rule, outcome="fail", reason=_beyond(rule), n=now.n, now=now)
        return Judgement(
            rule=rule,
            outcome="error",
            reason=f"undefined: {_ONLY_A_BOUND}",
            n=now.n,
            now=now,
        )
    kept = value - limit <= _ROUNDING if rule.test == "<=" else limit - value <= _ROUNDING
    return Judgement(
        rule=rule,
        outcome="pass" if kept else "fail",
        reason="within the limit" if kept else _beyond(rule),
        n=now.n,
        now=now,
    )


def _beyond(rule: Rule) -> str:
    return "above the limit" if rule.test == "<=" else "below the limit"
