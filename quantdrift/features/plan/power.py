"""Compute how many inputs the rules of a gate need, from how many differ in a pilot."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import bisect

from quantdrift.base.errors import RunError
from quantdrift.gate.baseline import Snapshot
from quantdrift.gate.judge import Matched, match, noisy_inputs
from quantdrift.gate.rules import NOISE, Rule
from quantdrift.gate.target import Target
from quantdrift.statistics.estimates import Estimate, as_json, mean_estimate, rate_estimate
from quantdrift.statistics.verdicts import Spread, inputs_for_mean, inputs_for_rate, shrunken_spread

Values = NDArray[np.float64]
_LARGEST = 1e6
"""Largest margin of a metric without bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """The inputs that one rule needs, including those without a value and those set aside.

    Attributes:
        rule: the rule.
        margin: its margin.
        pilot: value of the metric in the pilot, with its 95 % interval.
        usable: share of the pilot's inputs that have a value and are not set aside as noise.
        differs: share of these that differ from the baseline.
        difference: the pilot minus the baseline, if there is one.
        to_pass: inputs needed to pass.
        to_pass_low: inputs needed if the share that differs is at the lower end of its interval.
        to_pass_high: inputs needed if it is at the upper end.
        there: inputs in the data.
        smallest: the smallest margin that these can show.
        reason: why a field is None.
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
        """True if the data have enough inputs to pass."""
        return self.to_pass is not None and self.to_pass <= self.there

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; the rule is its string."""
        return {**as_json(self), "rule": str(self.rule), "metric": str(self.rule.metric), "enough": self.enough}


def needed_by(
    rules: Sequence[Rule], pilot: Target, baseline: Target | None = None, *, there: int, **at: float
) -> list[Needed]:
    """Compute how many inputs each rule needs to pass, if neither the run nor its baseline is better.

    With a baseline, the pilot shows on how many inputs the two differ. Without one, both are assumed to change as many
    inputs as the pilot, independently of each other; two similar candidates differ on fewer.

    Args:
        rules: comparisons, each with a margin.
        pilot: a run on some inputs.
        baseline: a run that has these inputs too.
        there: inputs in the data.
        at: `alpha`, the level of the tests, and `power`, the probability that one rule passes if neither side is
            better.

    Raises:
        RunError: pilot and baseline are not comparable, or the baseline lacks inputs.
    """
    metrics = [*dict.fromkeys(rule.metric for rule in rules), NOISE]
    now = pilot.snapshot(metrics)
    before = now if baseline is None else _same_inputs(now, baseline.snapshot(metrics))
    matched = match(now, before)
    if matched.differs:
        raise RunError(f"the pilot and the run of --against are not comparable: {'; '.join(matched.differs)}")
    return [_needed(rule, pilot, matched, there=there, at=at, independent=baseline is None) for rule in rules]


def _same_inputs(now: Snapshot, before: Snapshot) -> Snapshot:
    """The part of a baseline on the inputs of a pilot."""
    place = {name: row for row, name in enumerate(before.input_ids)}
    rows = [place[name] for name in now.input_ids if name in place]
    if len(rows) < len(now.input_ids):
        missing = len(now.input_ids) - len(rows)
        raise RunError(f"the run of --against lacks {missing:,} of the pilot's {len(now.input_ids):,} inputs")
    return before.part(rows)


def _needed(
    rule: Rule, pilot: Target, matched: Matched, *, there: int, at: Mapping[str, float], independent: bool
) -> Needed:
    assert rule.number is not None  # every rule of a plan has a margin
    after, before = (side.values[str(rule.metric)] for side in (matched.now, matched.before))
    defined = ~np.isnan(after)
    kept = defined & ~np.isnan(before) & ~noisy_inputs(rule, matched)
    n, usable = int(kept.sum()), float(kept.mean())
    value = rule.metric.estimate(after[defined]) if defined.any() else Estimate(value=None)
    needed = Needed(rule=rule, margin=rule.number, pilot=value, usable=usable, there=there)
    if not n:
        return replace(needed, reason=rule.metric.family.undefined_when)
    step = (_changes(rule, pilot, after) if independent else after - before)[kept]
    needed = replace(needed, difference=None if independent else mean_estimate(step))
    rate, span = rule.metric.kind == "rate", rule.metric.span
    spreads = _spreads(step, span=span, independent=independent, rate=rate)
    if spreads is None:
        return replace(needed, reason="no input of the pilot differs, and the metric has no bounds")

    def to_pass(spread: Spread, margin: float) -> int:
        tests: dict[str, float] = {"margin": margin, **at}
        n = inputs_for_rate(spread.share, **tests) if rate else inputs_for_mean(spread, span=span, **tests)
        return math.ceil(n / usable)

    typical = spreads[0]
    ends = [to_pass(spread, rule.number) for spread in spreads]
    smallest = smallest_margin(lambda margin: to_pass(typical, margin), there, span=span)
    needed = replace(needed, differs=typical.share, smallest=smallest)
    return replace(needed, to_pass=ends[0], to_pass_low=min(ends), to_pass_high=max(ends))


def smallest_margin(inputs: Callable[[float], int], n: int, *, span: float) -> float | None:
    """The smallest margin that takes at most n inputs; None if no margin below the span does.

    Args:
        inputs: function from a margin to the inputs that it takes; it falls as the margin rises.
        n: inputs in the data.
        span: largest margin; may be infinite.
    """
    low, high = 1e-9, min(span, _LARGEST) * (1 - 1e-9)
    if n < 1 or inputs(high) > n:
        return None
    if inputs(low) <= n:
        return low
    return float(bisect(lambda margin: inputs(margin) - n - 0.5, low, high, xtol=1e-12, rtol=1e-6)) * (1 + 2e-6)


def _changes(rule: Rule, pilot: Target, after: Values) -> Values:
    """The change of each input's value from full precision; for a metric without one there, from the mean."""
    if rule.metric.kind == "rate" and not rule.metric.family.arms:
        return after  # the metric is itself a change
    if rule.metric.family.arms:
        return after - pilot.values(replace(rule.metric, arm="reference"))
    return cast(Values, after - np.nanmean(after))


def _spreads(step: Values, *, span: float, independent: bool, rate: bool) -> tuple[Spread, Spread, Spread] | None:
    """The spread of the differences, and the spreads at the two ends of their intervals.

    Two independent changes differ where either is, and the square of their difference is twice that of one.
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
        if rate:  # no difference where both have the event
            share = 2 * spread.share * (1 - spread.share)
        return Spread(share=share, mean_square=share if rate else 2 * spread.mean_square)

    spreads = [doubled(spread) if independent else spread for spread in (typical, *ends)]
    # where few inputs differ, the typical spread may lie outside the ends
    every, squared = [spread.share for spread in spreads], [spread.mean_square for spread in spreads]
    least = Spread(share=min(every), mean_square=min(squared))
    most = Spread(share=max(every), mean_square=max(squared))
    return spreads[0], least, most
