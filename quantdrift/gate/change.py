"""A comparison with the baseline, on the same inputs: no worse, or within a margin either way?

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
from quantdrift.gate.result import Judgement, Outcome
from quantdrift.gate.rule import NOISE, Rule
from quantdrift.statistics import (
    inputs_for_mean,
    inputs_for_rate,
    mcnemar_exact,
    mean_equivalent,
    mean_no_worse,
    mean_worse,
    paired_mean_difference,
    paired_rate_difference,
    randomization_test,
    rate_equivalent,
    rate_no_worse,
    rate_worse,
    shrunken_spread,
)
from quantdrift.statistics.equivalence import Better

__all__ = ["LISTED", "decide", "judge_change", "least_inputs"]

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
        rule: "no worse" or "within".
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
    aside = noisy & both & (before != now)
    # both arms' outcome is then that of the baseline, so that the input speaks for neither
    a, b = before[both], np.where(aside, before, now)[both]
    found = _tested(rule, a, b, seed=seed)
    if matched.same_candidate and not (found.worse or found.better):
        return replace(found, outcome="pass", reason=_THE_SAME, p_worse=None, p_no_worse=None)
    harm = b - a if rule.metric.direction == "lower" else a - b
    return replace(
        found,
        set_aside=int(aside.sum()),
        needed=_needed(rule, b - a, alpha=alpha),
        inputs=_most(harm, np.flatnonzero(both), matched.now.input_ids),
    )


def _most(harm: Values, rows: NDArray[np.int64], input_ids: Sequence[str]) -> tuple[str, ...]:
    """Of the inputs that are worse, those that lost the most."""
    order = np.argsort(-harm, kind="stable")[:LISTED]
    return tuple(input_ids[rows[place]] for place in order if harm[place] > 0)


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
    if rule.test == "within":
        assert rule.number is not None  # it has a margin
        p_apart = mcnemar_exact(a, b).p_value if rate else randomization_test(a, b, seed=seed)
        p_near = (
            rate_equivalent(a, b, margin=rule.number)
            if rate
            else mean_equivalent(a, b, margin=rule.number, span=rule.span)
        )
        return replace(found, p_worse=p_apart, p_no_worse=p_near)
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
    spread = shrunken_spread(step, span=rule.span)
    if spread is None:
        return None
    if rule.kind == "rate":
        return inputs_for_rate(spread.share, margin=rule.number, alpha=alpha)
    return inputs_for_mean(spread, margin=rule.number, span=rule.span, alpha=alpha)


def decide(found: Judgement, *, p_worse_holm: float | None, alpha: float) -> Judgement:
    """The outcome of a test, once its p-value is adjusted for the number of rules.

    Args:
        found: with `p_worse`.
        p_worse_holm: that, adjusted.
        alpha: level.
    """
    found = replace(found, p_worse_holm=p_worse_holm)
    rule = found.rule
    harmed = p_worse_holm is not None and p_worse_holm < alpha
    cleared = found.p_no_worse is not None and found.p_no_worse < alpha
    outcome: tuple[Outcome, str]
    if rule.compares and rule.number is None:
        outcome = (
            ("fail", "worse than the baseline") if harmed else ("pass", "not shown to be worse")
        )
    elif cleared:
        outcome = ("pass", _cleared(rule, harmed=harmed))
    elif harmed:
        outcome = ("fail", _harmed(rule))
    else:
        outcome = ("underpowered", _undecided(found, alpha=alpha))
    return replace(found, outcome=outcome[0], reason=outcome[1])


def _cleared(rule: Rule, *, harmed: bool) -> str:
    if not rule.compares:
        return "shown to be within the limit"
    if rule.test == "within":
        return "shown to be within the margin"
    return "worse, but shown to be by less than the margin" if harmed else "shown to be no worse"


def _harmed(rule: Rule) -> str:
    if not rule.compares:
        return "shown to be beyond the limit"
    shown = "shown to differ" if rule.test == "within" else "shown to be worse"
    return f"{shown}, and by {rule.number:g} or more cannot be ruled out"


def _undecided(found: Judgement, *, alpha: float) -> str:
    if not found.rule.compares:
        return "neither within nor beyond the limit is shown"
    if found.p_no_worse is None:
        return "too few inputs differ, and nothing bounds by how much one of them can"
    if not (found.worse or found.better):
        least = least_inputs(found.rule, alpha=alpha)
        return f"nothing differs, but {found.n:,} inputs are too few to show it; {least:,} would"
    if found.needed is not None and found.n < found.needed:
        return f"too few inputs to tell: {found.n:,}, and it takes about {found.needed:,}"
    return "too few inputs to tell: the difference is about as large as the margin"


def least_inputs(rule: Rule, *, alpha: float) -> int:
    """How many inputs show "no worse" if none of them differs: (1 - margin / span)^n < alpha.

    Args:
        rule: a comparison with a margin.
        alpha: level.
    """
    assert rule.number is not None  # it has a margin
    return math.floor(math.log(alpha) / math.log1p(-rule.number / rule.span)) + 1
