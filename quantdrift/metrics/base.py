"""Metric objects: a metric is what its own string parses back to.

A `Family` states once what a metric means (direction, range, unit, ties, labels, uncertainty);
a `Metric` is a member of it, with its cut-off and the arm it is about: `gold_lost@10`,
`reference.ndcg@10`, `separation`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import QuantDriftError, UnknownNameError
from quantdrift.evidence import Evidence
from quantdrift.statistics import (
    Estimate,
    mean_estimate,
    quantile_estimate,
    rate_estimate,
    undefined,
)

__all__ = ["Direction", "Family", "Metric", "MetricError", "Uncertainty"]

Direction = Literal["lower", "higher", "none"]
"""Which way is better; "none" for a description that is neither."""

Uncertainty = Literal["wilson", "order statistics", "bootstrap"]

Arm = Literal["reference", "candidate"]

PerInput = Callable[[Evidence, int, Arm], NDArray[np.float64]]

_ESTIMATORS: dict[Uncertainty, Callable[[NDArray[np.float64]], Estimate]] = {
    "wilson": rate_estimate,
    "order statistics": quantile_estimate,
    "bootstrap": mean_estimate,
}

POSITION_TIES = "ties break by item position, the same way in both arms"


class MetricError(QuantDriftError):
    """A metric cannot be computed from this evidence as asked for (say, too deep a cut-off)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a metric means; everything a report or a gate must know of it.

    Attributes:
        name: as it stands in a metric's string.
        summary: one sentence.
        direction: which way is better.
        low: least possible value.
        high: greatest possible value.
        unit: "rate" (a share of inputs), "score" (score units), "ratio" or "gain".
        uncertainty: how its interval is made; decides the statistic too: a rate with a Wilson
            interval, a median with order statistics, a mean with a bootstrap.
        per_input: value of every input, NaN where it is undefined, given (evidence, cut-off, arm).
        undefined_when: why it can have no value at all, for the reason beside a null.
        needs_labels: whether relevance labels are needed.
        cutoffs: the cut-offs listed by default; empty if the metric has none.
        other_cutoffs: whether others than these can be asked for.
        arms: whether it is about one arm (`reference.` in front of its name means that one).
        ties: tie policy.
    """

    name: str
    summary: str
    direction: Direction
    low: float
    high: float
    unit: Literal["rate", "score", "ratio", "gain"]
    uncertainty: Uncertainty
    per_input: PerInput
    undefined_when: str
    needs_labels: bool = False
    cutoffs: tuple[int, ...] = ()
    other_cutoffs: bool = True
    arms: bool = False
    ties: str = POSITION_TIES

    def members(self) -> list[Metric]:
        """The members that are computed when nobody asks for particular ones."""
        arms: tuple[Arm, ...] = ("candidate", "reference") if self.arms else ("candidate",)
        return [
            Metric(family=self, cutoff=cutoff, arm=arm)
            for cutoff in self.cutoffs or (0,)
            for arm in arms
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric: a family, its cut-off (0 if it has none) and the arm it is about.

    Raises:
        MetricError: the family has no such cut-off or arm.
    """

    family: Family
    cutoff: int = 0
    arm: Arm = "candidate"

    def __post_init__(self) -> None:
        if bool(self.family.cutoffs) != (self.cutoff > 0):
            example = f"{self.family.name}@{self.family.cutoffs[0]}" if self.family.cutoffs else ""
            wants = f"needs a cut-off, e.g. {example}" if example else "takes no cut-off"
            raise MetricError(f"the metric {self.family.name!r} {wants}; got @{self.cutoff}")
        if not self.family.other_cutoffs and self.cutoff not in self.family.cutoffs:
            only = " and ".join(f"{self.family.name}@{cutoff}" for cutoff in self.family.cutoffs)
            raise MetricError(f"of {self.family.name!r} there is only {only}; got @{self.cutoff}")
        if self.arm == "reference" and not self.family.arms:
            raise MetricError(
                f"{self.family.name!r} compares the two arms; it has no 'reference.' form"
            )

    def __str__(self) -> str:
        arm = "reference." if self.arm == "reference" else ""
        return f"{arm}{self.family.name}" + (f"@{self.cutoff}" if self.cutoff else "")

    def per_input(self, evidence: Evidence) -> NDArray[np.float64]:
        """The value of every input, float64 [n_inputs], NaN where it is undefined.

        Raises:
            MetricError: the cut-off is deeper than the stored ranking, and that ranking was cut.
        """
        cut_short = int(evidence.n_items.max(initial=0)) > evidence.depth
        if self.cutoff > evidence.depth and cut_short:
            raise MetricError(
                f"{self} looks at {self.cutoff} ranks, but this run stored {evidence.depth}; "
                f"run again with --k {self.cutoff} or more"
            )
        return self.family.per_input(evidence, self.cutoff, self.arm)

    def __call__(self, evidence: Evidence) -> Estimate:
        """The estimate over all inputs for which the metric is defined."""
        if self.family.needs_labels and evidence.judgements is None:
            return undefined("no relevance labels")
        values = self.per_input(evidence)
        defined = values[~np.isnan(values)]
        if not len(defined):
            return undefined(self.family.undefined_when)
        return _ESTIMATORS[self.family.uncertainty](defined)


_PATTERN = re.compile(
    r"(?P<arm>reference\.|candidate\.)?(?P<name>[A-Za-z_]+)(@(?P<k>[1-9][0-9]*))?"
)


def parse_in(text: str, families: dict[str, Family]) -> Metric:
    """The metric a string names; `str` of it parses back to the same object.

    Args:
        text: `[reference.]NAME[@CUTOFF]`.
        families: the families there are, by name.

    Raises:
        UnknownNameError: no such family; carries the nearest.
        MetricError: a cut-off is missing or not taken, or there is no such arm.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None or match["name"] not in families:
        known = [str(member) for family in families.values() for member in family.members()]
        raise UnknownNameError("metric", text, known, hint="(quantdrift list metrics shows all)")
    family = families[match["name"]]
    arm: Arm = "reference" if match["arm"] == "reference." else "candidate"
    return Metric(family=family, cutoff=int(match["k"] or 0), arm=arm)
