"""A comparison with the baseline, on the same inputs: is the run no worse?

Two questions are asked. Is it shown that the run is worse? Then the rule fails, unless it is also
shown that it is worse by less than the margin. And is that shown? Then it passes. If neither is,
there are too few inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from quantdrift.gate.comparable import Matched
from quantdrift.gate.outcome import all_noise, least_inputs
from quantdrift.gate.result import Judgement
from quantdrift.gate.rule import NOISE, Rule
from quantdrift.statistics import (
    inputs_for_mean,
    inputs_for_rate,
    mean_no_worse,
    mean_worse,
    paired_mean_difference,
    paired_rate_difference,
    rate_no_worse,
    rate_worse,
    shrunken_spread,
)
from quantdrift.statistics.equivalence import Better

__all__ = ["LISTED", "judge_change"]

STRAY = 0.01
"""Share of the inputs that may have a value on one side only; more are no accident of rounding."""

LISTED = 10
"""Inputs that a rule names."""

_THE_SAME = "the same candidate as in the baseline, to the bit, and nothing differs"

_FIRST_ANSWER = frozenset({"flip@1", "gold_lost@1"})
"""Metrics of the first answer alone, which is what the noise floor is known of."""

Values = NDArray[np.float64]


def judge_change(
    rule: Rule, matched: Matched, rows: NDArray[np.bool_] | None, *, alpha: float, seed: int
) -> Judgement:
    """What a comparison with the baseline comes to, before p-values are adjusted.

    Args:
        rule: a comparison.
        matched: the run and the baseline.
        rows: inputs of the rule's slice among those matched, bool [n_inputs]; None for all.
        alpha: level, for the number of inputs needed.
        seed: of resampling and permutations.
    """
    name = str(rule.metric)
    if name not in matched.before.values:
        reason = (
            "the baseline has no outcomes of this metric; write it anew with --update, from the "
            "version it is of and not from this run"
        )
        return Judgement(rule=rule, outcome="incomparable", reason=reason)
    before, now = matched.before.values[name], matched.now.values[name]
    noisy = _noisy(rule, matched)
    chosen = np.ones(len(now), dtype=np.bool_) if rows is None else rows
    if not chosen.any():
        reason = "undefined: the run and the baseline have no input of the slice in common"
        return Judgement(rule=rule, outcome="error", reason=reason)
    there, here = ~np.isnan(before) & chosen, ~np.isnan(now) & chosen
    both = there & here
    stray = int((there ^ here).sum())
    if not both.any() and not stray:
        return Judgement(
            rule=rule, outcome="error", reason=f"undefined: {rule.metric.family.undefined_when}"
        )
    if stray > STRAY * int(both.sum()):
        reason = f"{stray:,} inputs have a value on one side only, so these are not the same inputs"
        return Judgement(rule=rule, outcome="incomparable", reason=reason)
    return _compared(rule, matched, both, noisy, alpha=alpha, seed=seed)


def _compared(
    rule: Rule,
    matched: Matched,
    both: NDArray[np.bool_],
    noisy: NDArray[np.bool_],
    *,
    alpha: float,
    seed: int,
) -> Judgement:
    """The tests, on the inputs that have a value on both sides."""
    name = str(rule.metric)
    before, now = matched.before.values[name], matched.now.values[name]
    if matched.same_candidate and not (before != now)[both].any():
        found = _tested(rule, before[both], now[both], seed=seed)
        return replace(found, outcome="pass", reason=_THE_SAME, p_worse=None, p_no_worse=None)
    # what noise alone changes says nothing for either side
    kept = both & ~noisy
    aside = int((both & noisy).sum())
    if not kept.any():
        reason = all_noise(aside)
        return Judgement(rule=rule, outcome="underpowered", reason=reason, set_aside=aside)
    a, b = before[kept], now[kept]
    found = _tested(rule, a, b, seed=seed)
    if rule.number is not None and aside > rule.number * int(both.sum()):
        found = replace(found, p_no_worse=None)
    harm = b - a if rule.metric.direction == "lower" else a - b
    return replace(
        found,
        # as they were measured, whatever is set aside
        now=rule.metric.estimate(now[both]),
        before=float(before[both].mean()),
        set_aside=aside,
        needed=_needed(rule, b - a, alpha=alpha),
        inputs=_most(harm, np.flatnonzero(kept), matched.now.input_ids),
    )


def _most(harm: Values, rows: NDArray[np.int64], input_ids: Sequence[str]) -> tuple[str, ...]:
    """Of the inputs that are worse, those that lost the most."""
    lost = sorted((-harm[place], input_ids[rows[place]]) for place in np.flatnonzero(harm > 0))
    return tuple(name for _, name in lost[:LISTED])


def _noisy(rule: Rule, matched: Matched) -> NDArray[np.bool_]:
    """Inputs whose first answer of the reference changed by noise alone, on either side."""
    found = np.zeros(matched.now.n_inputs, dtype=np.bool_)
    whole = rule.metric.where is None and str(rule.metric) in _FIRST_ANSWER
    if not (
        whole or (rule.metric.where and str(replace(rule.metric, where=None)) in _FIRST_ANSWER)
    ):
        return found
    for side in (matched.before, matched.now):
        if str(NOISE) in side.values:
            found |= side.values[str(NOISE)] > 0
    return found


def _tested(rule: Rule, a: Values, b: Values, *, seed: int) -> Judgement:
    better = cast(Better, rule.metric.direction)
    rate = rule.kind == "rate"
    difference = paired_rate_difference(a, b) if rate else paired_mean_difference(a, b, seed=seed)
    harm = b - a if better == "lower" else a - b
    found = Judgement(
        rule=rule,
        outcome="underpowered",
        reason="",
        n=len(a),
        now=rule.metric.estimate(b),
        before=float(a.mean()),
        difference=difference,
        worse=int((harm > 0).sum()),
        better=int((harm < 0).sum()),
    )
    p_worse = (
        rate_worse(a, b, better=better) if rate else mean_worse(a, b, better=better, seed=seed)
    )
    if rule.number is None:
        return replace(found, p_worse=p_worse)
    p_no_worse = (
        rate_no_worse(a, b, margin=rule.number, better=better)
        if rate
        else mean_no_worse(a, b, margin=rule.number, better=better, span=rule.span)
    )
    if rate and p_no_worse is not None:
        # a run that is shown to be better is shown to be no worse; where few inputs differ, the
        # bound that takes over from Tango's test does not see the better ones
        p_no_worse = min(p_no_worse, rate_worse(b, a, better=better))
    return replace(found, p_worse=p_worse, p_no_worse=p_no_worse)


def _needed(rule: Rule, step: Values, *, alpha: float) -> int | None:
    if rule.number is None:
        return None
    if not step.any() and math.isfinite(rule.span):
        return least_inputs(rule, alpha=alpha)
    spread = shrunken_spread(step, span=rule.span)
    if spread is None:
        return None
    if rule.kind == "rate":
        return inputs_for_rate(spread.share, margin=rule.number, alpha=alpha)
    return inputs_for_mean(spread, margin=rule.number, span=rule.span, alpha=alpha)
