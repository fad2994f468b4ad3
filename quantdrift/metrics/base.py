"""What a metric means: a `Family` states it once, for every cut-off and arm.

`quantdrift.metrics.metric.Metric` is a member of a family: `gold_lost@10`, `change.ndcg@10`,
`flip@1:separation=0.05..0.1`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import QuantDriftError
from quantdrift.evidence import Evidence

__all__ = [
    "Arm",
    "Direction",
    "Family",
    "MetricError",
    "PerInput",
    "Section",
    "Uncertainty",
    "Unit",
    "WhenCut",
]

Direction = Literal["lower", "higher", "none"]
"""Which way is better; "none" for a description that is neither."""

Uncertainty = Literal["wilson", "order statistics", "bootstrap", "paired bootstrap"]
"""How the interval is made, and so the statistic: a rate (Wilson score interval), a median or
quantile (distribution-free, between two order statistics), a mean (seeded percentile bootstrap), a
mean difference or ratio of means of the two arms (the same, inputs resampled with both values)."""

Unit = Literal["rate", "score", "ratio", "gain", "rank", "items", "grade", "similarity"]

Arm = Literal["candidate", "reference", "change", "relative"]
"""What a metric of one arm is about: either arm, candidate minus reference, or that difference as
a share of the reference's mean."""

WhenCut = Literal["the same", "at least", "at most", "undefined"]
"""What a metric of lists that were cut short says of the whole ranking, as not all deltas are
known."""

Section = Literal[
    "top of the list", "gap and perturbation", "stability check", "relevance", "whole ranking"
]

PerInput = Callable[[Evidence, Any, Literal["candidate", "reference"]], NDArray[np.float64]]
"""Values by evidence, cut-off (a whole number, or a level) and arm."""

POSITION_TIES = "ties break by item position, the same way in both arms"


class MetricError(QuantDriftError):
    """A metric cannot be computed from this evidence as asked for (say, too deep a cut-off)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a metric means; everything a report or a gate must know of it.

    Attributes:
        name: as it stands in a metric's string.
        section: where it is listed.
        summary: one sentence.
        direction: which way is better.
        low: least possible value.
        high: greatest possible value.
        unit: "rate" (a share of inputs), "score" (score units), "ratio" (of two scores), "gain",
            "rank" (1 is the first), "items" (a count), "grade" (of relevance) or "similarity".
        uncertainty: how its interval is made; decides the statistic too.
        per_input: value of every input, NaN where it is undefined, given (evidence, cut-off, arm).
        undefined_when: why it can have no value at all, for the reason beside a null.
        too_few: for metrics that need so many inputs: why there are too few of them in some runs
            at a cut-off, or None. Goes before `undefined_when`.
        infinite_when: what an infinite estimate means, for the reason beside that null.
        needs_labels: whether relevance labels are needed.
        cutoffs: the cut-offs listed by default; empty if the metric has none.
        cutoff_is: "rank"; "percentile" for quantiles; "level" for the stability check.
        other_cutoffs: whether others than these can be asked for.
        ranks_beyond: how many ranks it looks at below the cut-off.
        ranks: how many ranks it looks at, whatever the cut-off.
        arms: whether it is about one arm (`reference.`, `change.` and `relative.` before its name
            mean the others).
        headline: whether it is shown where only the most telling metrics are; of a metric that
            takes a level, the first.
        of_reference: whether it is about the reference alone, so that two candidates share it.
        censored: for values of +inf that only mean "more than was stored", where evidence is cut
            short: how many are known for certain. Pooled runs are only told apart up to the least.
        when_cut: what it says where only some deltas are known: the same, a lower or upper bound
            of every input's value, or nothing.
        ties: tie policy.
    """

    name: str
    section: Section
    summary: str
    direction: Direction
    low: float
    high: float
    unit: Unit
    uncertainty: Uncertainty
    per_input: PerInput
    undefined_when: str
    infinite_when: str = "no finite value"
    too_few: Callable[[Sequence[Evidence], float], str | None] | None = None
    needs_labels: bool = False
    cutoffs: tuple[float, ...] = ()
    cutoff_is: Literal["rank", "percentile", "level"] = "rank"
    other_cutoffs: bool = True
    ranks_beyond: int = 0
    ranks: int = 0
    arms: bool = False
    headline: bool = False
    of_reference: bool = False
    censored: Callable[[Evidence], int] | None = None
    when_cut: WhenCut = "the same"
    ties: str = POSITION_TIES
