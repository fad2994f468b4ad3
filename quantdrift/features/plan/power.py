"""How many inputs the rules of a gate need, from the disagreement in a pilot."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import RunError
from quantdrift.gate.baseline import Snapshot
from quantdrift.gate.judge import Matched, match, noisy_inputs
from quantdrift.gate.rules import NOISE, Rule
from quantdrift.gate.target import Target
from quantdrift.statistics.estimates import Estimate, as_json, mean_estimate, rate_estimate
from quantdrift.statistics.verdicts import Spread, inputs_for_mean, inputs_for_rate, shrunken_spread

Values = NDArray[np.float64]
_MOST = 10**9
"""Inputs that nobody has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """What one rule needs. Numbers of inputs count those too that have no value or are set aside.

    Attributes:
        rule: what will be asked.
        margin: of the rule.
        pilot: the value in the pilot, with its 95 % interval.
        usable: share of the pilot's inputs that count: with a value, and not set aside as noise.
        differs: share of these that differ from the baseline.
        difference: of the pilot from the baseline, where there is one.
        to_pass: inputs to show what the rule asks for.
        to_pass_low: the same if the inputs differ as little as the interval of the pilot allows.
        to_pass_high: the same if they differ as much.
        there: inputs that the data have.
        smallest: the smallest margin that these can show.
        reason: why something is None.
    """

    rule: Rule
    margin: float
    pilot: Estimate
    usable: float
    differs: float | None = None
    difference: Estimate | None = None
    to_pass: int | None = None
    to_pass_low: int | None = None
    to_pass_high: int | None = None
    there: int
    smallest: float | None = None
    reason: str = ""

    @property
    def enough(self) -> bool:
        """Whether the data have the inputs to pass."""
        return self.to_pass is not None and self.to_pass <= self.there

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; the rule is its string."""
        return {**as_json(self), "rule": str(self.rule), "metric": str(self.rule.metric), "enough": self.enough}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of every rule.

    Attributes:
        there: how many inputs the data have.
        alpha: level of the tests.
        power: probability to show what is true, of one rule.
    """

    there: int
    alpha: float
    power: float


def needed_by(
    rules: Sequence[Rule], pilot: Target, baseline: Target | None = None, *, question: Question
) -> list[Needed]:
    """What each rule needs, by the inputs of a pilot.

    That is how many inputs show "no worse by the margin" if neither is better, at alpha, with the power, which is that
    of one rule.

    How much the run and its baseline differ is measured where there is a baseline. Otherwise it is taken as if both
    changed as much as the pilot, each on other inputs than the other but for chance; two candidates that are alike
    differ on fewer.

    Args:
        rules: what will be asked, comparisons all.
        pilot: a run on some inputs.
        baseline: a run that has these inputs too.
        question: inputs of the data, level and power.

    Raises:
        RunError: pilot and baseline are not of the same, or share no inputs.
    """
    metrics = [*dict.fromkeys(rule.metric for rule in rules), NOISE]
    now = pilot.snapshot(metrics)
    before = now if baseline is None else _same_inputs(now, baseline.snapshot(metrics))
    matched = match(now, before)
    if matched.differs:
        raise RunError(f"the pilot and the run to compare with are not of the same: {'; '.join(matched.differs)}")
    return [_needed(rule, pilot, matched, question, independent=baseline is None) for rule in rules]


def _same_inputs(now: Snapshot, before: Snapshot) -> Snapshot:
    """The rows of a baseline that a pilot has."""
    place = {name: row for row, name in enumerate(before.input_ids)}
    rows = [place[name] for name in now.input_ids if name in place]
    if len(rows) < len(now.input_ids):
        missing = len(now.input_ids) - len(rows)
        raise RunError(f"the run to compare with lacks {missing:,} of the pilot's {len(now.input_ids):,} inputs")
    return before.part(rows)


def _needed(rule: Rule, pilot: Target, matched: Matched, question: Question, *, independent: bool) -> Needed:
    assert rule.number is not None  # whoever asks gives a margin
    after, before = (side.values[str(rule.metric)] for side in (matched.now, matched.before))
    defined = ~np.isnan(after)
    kept = defined & ~np.isnan(before) & ~noisy_inputs(rule, matched)
    n, usable = int(kept.sum()), float(kept.mean())
    needed = Needed(
        rule=rule,
        margin=rule.number,
        pilot=rule.metric.estimate(after[defined]) if defined.any() else Estimate(value=None),
        usable=usable,
        there=question.there,
    )
    if not n:
        return replace(needed, reason=rule.metric.family.undefined_when)
    step = (_changes(rule, pilot, after) if independent else after - before)[kept]
    needed = replace(needed, difference=None if independent else mean_estimate(step))
    rate, span = rule.metric.kind == "rate", rule.metric.span
    spreads = _spreads(step, span=span, independent=independent, rate=rate)
    if spreads is None:
        return replace(needed, reason="no input of the pilot differs, and nothing bounds by how much")

    def to_pass(spread: Spread, margin: float) -> int:
        at = {"margin": margin, "alpha": question.alpha, "power": question.power}
        n = inputs_for_rate(spread.share, **at) if rate else inputs_for_mean(spread, span=span, **at)
        return math.ceil(n / usable)

    typical = spreads[0]
    ends = [to_pass(spread, rule.number) for spread in spreads]
    return replace(
        needed,
        differs=typical.share,
        to_pass=ends[0],
        to_pass_low=min(ends),
        to_pass_high=max(ends),
        smallest=smallest_margin(lambda margin: to_pass(typical, margin), question.there, span=span),
    )


def smallest_margin(inputs: Callable[[float], int], n: int, *, span: float) -> float | None:
    """The smallest margin that takes at most n inputs; None if none below the span does.

    Args:
        inputs: how many a margin takes; falls as the margin rises.
        n: how many there are.
        span: greatest margin; may be infinite.
    """
    high = span
    if math.isinf(span):
        high = 1.0
        while inputs(high) > n and high < _MOST:
            high *= 2
    low, high = 0.0, high * (1 - 1e-9)
    if n < 1 or inputs(high) > n:
        return None
    while high - low >= 1e-6 * high and high > 1 / _MOST:
        middle = (low + high) / 2
        low, high = (low, middle) if inputs(middle) <= n else (middle, high)
    return high


def _changes(rule: Rule, pilot: Target, after: Values) -> Values:
    """By how much each input's value is another than at full precision; of metrics without such, than the mean."""
    if rule.metric.kind == "rate" and not rule.metric.family.arms:
        return after  # a change itself, which the reference has none of
    if rule.metric.family.arms:
        return after - pilot.values(replace(rule.metric, arm="reference"))
    return cast(Values, after - np.nanmean(after))


def _spreads(step: Values, *, span: float, independent: bool, rate: bool) -> tuple[Spread, Spread, Spread] | None:
    """The spread of differences, and with shares and squares at either end of their intervals.

    Of independent changes the difference of two of them: it is there if either is, and its square is twice that of one.
    """
    typical = shrunken_spread(step, span=span)
    if typical is None:
        return None
    shares = rate_estimate((step != 0).astype(np.float64))
    squares = mean_estimate(np.square(step))
    ends = [
        Spread(share=cast(float, share), mean_square=cast(float, share if rate else square))
        for share, square in ((shares.low, squares.low), (shares.high, squares.high))
    ]

    def doubled(spread: Spread) -> Spread:
        share = 1 - (1 - spread.share) ** 2
        if rate:  # both have the event, or neither: no difference
            share = 2 * spread.share * (1 - spread.share)
        return Spread(share=share, mean_square=share if rate else 2 * spread.mean_square)

    spreads = [doubled(spread) if independent else spread for spread in (typical, *ends)]
    # of the ends the typical one may lie outside, where few inputs differ
    every, squared = [spread.share for spread in spreads], [spread.mean_square for spread in spreads]
    least = Spread(share=min(every), mean_square=min(squared))
    most = Spread(share=max(every), mean_square=max(squared))
    return spreads[0], least, most
