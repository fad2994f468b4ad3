"""From p-values to the outcome of a rule, and why."""

from __future__ import annotations

import math
from dataclasses import replace

from quantdrift.gate.result import Judgement, Outcome
from quantdrift.gate.rule import Rule

__all__ = ["all_noise", "decide", "least_inputs"]


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
    if rule.number is None:
        outcome = (
            ("fail", "worse than the baseline") if harmed else ("pass", "not shown to be worse")
        )
    elif cleared:
        less = "worse, but shown to be by less than the margin"
        outcome = ("pass", less if harmed else "shown to be no worse")
    elif harmed:
        outcome = (
            "fail",
            f"shown to be worse, and by {rule.number:g} or more cannot be ruled out",
        )
    else:
        outcome = ("underpowered", _undecided(found, alpha=alpha))
    return replace(found, outcome=outcome[0], reason=outcome[1])


def _undecided(found: Judgement, *, alpha: float) -> str:
    if found.p_no_worse is None and found.set_aside:
        return all_noise(found.set_aside)
    if found.p_no_worse is None:
        return "too few inputs differ, and nothing bounds by how much one of them can"
    if not (found.worse or found.better):
        least = least_inputs(found.rule, alpha=alpha)
        few = "1 input is" if found.n == 1 else f"{found.n:,} inputs are"
        return f"nothing differs, but {few} too few to show it; {least:,} would"
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


def all_noise(aside: int) -> str:
    """Why nothing can be shown where noise changes more inputs than the margin."""
    return f"noise alone changes {aside:,} inputs, more than the margin, so nothing can be shown"
