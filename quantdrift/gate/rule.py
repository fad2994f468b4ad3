"""What is asked of a run, one line each: a limit, or a comparison with the baseline.

    RULE  := METRIC [ "[" SLICE "]" ] TEST
    TEST  := ( "<=" | ">=" ) NUMBER             a limit on what is observed
           | "no worse" [ "by" NUMBER ]         than the baseline, by that or more

A number may be written as a share: 25 % is 0.25.

>>> rule = parse_rule("flip@1 [german] no worse by 3 %")
>>> str(rule), rule.number, parse_rule(str(rule)) == rule
('flip@1 [german] no worse by 0.03', 0.03, True)
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, cast

from quantdrift.errors import QuantDriftError
from quantdrift.metrics import Metric, parse_metric

__all__ = ["NOISE", "Rule", "RuleError", "Test", "parse_rule"]

Test = Literal["<=", ">=", "no worse"]

NOISE = parse_metric("noise_floor")
"""The reference against itself, which is all of a flip that quantization has no part in."""

_EXAMPLES = "'flip@1 <= 0.25', 'flip@1 no worse by 0.03' or 'ndcg@10 [german] >= 0.6'"
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_PERCENT = 100

_OF_CANDIDATE = {
    "flip_to_irrelevant": "harm",
    "flip_to_relevant": "benefit",
    "gold_gained": "recall@10",
}
"""Metrics of the inputs that the candidate's own answers choose, which are others in every run;
and what asks the like of all inputs."""

_RULE = re.compile(
    r"""\s*(?P<metric>[^\s\[\]<>]+?)
    \s*(?:\[\s*(?P<slice>[^\[\]]*?)\s*\])?
    \s*(?:
        (?P<limit><=|>=)\s*(?P<at>[^\s%]+)\s*(?P<share>%)?
      | \b(?P<worse>no\s+worse)(?:\s+by\s+(?P<by>[^\s%]+)\s*(?P<by_share>%)?)?
    )\s*""",
    re.VERBOSE,
)

_GONE = {
    "within": "ask for 'no worse by' that much, which lets the run be better",
    "shown": "a limit is on what is observed; leave the word out",
    "beyond noise": "ask for 'flip@1 <= NUMBER' and 'noise_floor <= NUMBER', or compare with a "
    "baseline: 'flip@1 no worse by NUMBER' sets aside what noise changes",
}
"""Words of rules that there were, and what to ask in their place."""


class RuleError(QuantDriftError):
    """A rule cannot be read, or asks for what its metric does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that is asked of a run.

    Attributes:
        metric: of what.
        test: a limit ("<=", ">="), or a comparison with the baseline ("no worse").
        number: the limit, or the margin, in the metric's own unit; None for "no worse" without one.
        on: name of the slice of inputs it looks at; None for all.

    Raises:
        RuleError: the metric has no such test.
    """

    metric: Metric
    test: Test
    number: float | None = None
    on: str | None = None

    def __post_init__(self) -> None:
        if problem := self._no_comparison() if self.compares else self._no_limit():
            raise RuleError(f"the rule '{self}' cannot be judged: {problem}")

    def __str__(self) -> str:
        words = [str(self.metric)]
        if self.on is not None:
            words.append(f"[{self.on}]")
        words.append(self.test)
        if self.number is not None:
            words += ["by"] if self.test == "no worse" else []
            words.append(repr(float(self.number)).removesuffix(".0"))
        return " ".join(words)

    @property
    def compares(self) -> bool:
        """Whether it needs a baseline."""
        return self.test == "no worse"

    @property
    def kind(self) -> Literal["rate", "mean", "quantile"]:
        """What is tested: a rate (0 or 1 per input), a mean or a quantile."""
        kinds = {"wilson": "rate", "order statistics": "quantile"}
        return cast(Literal["rate", "mean", "quantile"], kinds.get(self.metric.uncertainty, "mean"))

    @property
    def span(self) -> float:
        """Greatest possible difference of two values of an input."""
        family = self.metric.family
        # in a change the reference, which both runs share, cancels
        return family.high - family.low if math.isfinite(family.low) else math.inf

    def _no_limit(self) -> str | None:
        metric, number = self.metric, self.number
        if number is None or not math.isfinite(number):
            return "a limit is a finite number"
        if not metric.low <= number <= metric.high:
            return (
                f"{metric} lies from {metric.low:g} to {metric.high:g}, all on one side of it; 25 "
                "% is 0.25"
            )
        if metric.arm == "relative" and self.on is not None:
            other = str(metric).replace("relative.", "change.", 1)
            return f"a ratio of means has no value per input; ask for {other}"
        return None

    def _no_comparison(self) -> str | None:
        metric, number = self.metric, self.number
        by = None if metric.where is None else metric.where.by
        margin = number is None or 0 < number < self.span
        checks = (
            (
                _of_reference(metric) or metric == NOISE,
                f"{metric} is of the reference, which the baseline shares; give a limit",
            ),
            (
                metric.direction == "none",
                f"neither way is better for {metric}; give a limit",
            ),
            (
                metric.family.cutoff_is == "level",
                f"each run calibrates its own threshold for {metric}; give a limit",
            ),
            (
                metric.family.name in _OF_CANDIDATE,
                f"{metric} is of inputs that the candidate's answers choose, others in every run; "
                f"ask for {_OF_CANDIDATE.get(metric.family.name)}, or give a limit",
            ),
            (
                self.kind == "quantile",
                f"{metric} is a median or quantile, which has no paired test; give a limit",
            ),
            (
                metric.arm == "relative",
                "a ratio of means has no value per input; ask for "
                + str(metric).replace("relative.", "change.", 1),
            ),
            (
                by is not None and not _of_reference(by),
                f"a slice by {by} holds other inputs in every run; take one by the reference, "
                "such as gap, or a slice of names",
            ),
            (
                not margin,
                "a margin lies above 0 and below the greatest difference there can be "
                f"({self.span:g}); for 2 percentage points give 0.02",
            ),
        )
        return next((problem for wrong, problem in checks if wrong), None)


def _of_reference(metric: Metric) -> bool:
    return metric.family.of_reference or metric.arm == "reference"


def parse_rule(text: str) -> Rule:
    """The rule that a line names; `str` of it parses back to an equal one.

    Args:
        text: for example `flip@1 no worse by 0.03`.

    Raises:
        RuleError: it cannot be read, or its metric has no such test.
        UnknownNameError: there is no such metric; carries the nearest names.
        MetricError: the metric's cut-off, arm or slice cannot be read.
    """
    match = _RULE.fullmatch(text)
    if match is None:
        outside = " ".join(re.sub(r"\[.*?\]", " ", text).split()[1:])
        for word, instead in _GONE.items():
            if re.search(rf"\b{word}\b", outside):
                raise RuleError(f"a rule has no {word!r}: {instead}; got {text!r}")
        raise RuleError(f"expected a rule such as {_EXAMPLES}; got {text!r}")
    if match["slice"] == "":
        raise RuleError(f"expected the name of a slice between the brackets; got {text!r}")
    number: float | None
    if match["limit"]:
        test, number = match["limit"], _number(match["at"], match["share"], text)
    else:
        test = "no worse"
        number = None if match["by"] is None else _number(match["by"], match["by_share"], text)
    return Rule(
        metric=parse_metric(match["metric"]),
        test=cast(Test, test),
        number=number,
        on=match["slice"],
    )


def _number(text: str, share: str | None, rule: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise RuleError(f"expected a number in the rule {rule!r}, got {text!r}")
    # in decimals: 0.7 % is 0.007, to the last bit
    return float(Decimal(text) / (_PERCENT if share else 1))
