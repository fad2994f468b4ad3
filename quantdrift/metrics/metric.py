"""Metric objects: a metric is what its own string parses back to.

>>> from quantdrift.metrics import parse_metric
>>> metric = parse_metric("flip@1:separation=0.05..0.1")
>>> metric.cutoff, metric.where.low, parse_metric(str(metric)) == metric
(1, 0.05, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence import Evidence
from quantdrift.metrics.base import Arm, Direction, Family, MetricError, Uncertainty
from quantdrift.metrics.cutoffs import check_cutoff, cutoff_text
from quantdrift.metrics.slice import Slice
from quantdrift.statistics import (
    Estimate,
    mean_estimate,
    quantile_estimate,
    rate_estimate,
    relative_change_estimate,
    undefined,
)

__all__ = ["Metric", "Slice", "members"]

_PERCENTILES = 100
_MEDIAN = 50
_NOT_BOUNDED = "the typical list ends too early, or holds no change, and so says nothing of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric: a family, its cut-off, the arm it is about and the inputs it is computed over.

    Attributes:
        family: what it means.
        cutoff: a rank, a percentile or a level, as the family has it; 0 if it has none.
        arm: of a metric that is about one arm; otherwise "candidate".
        where: only the inputs of a slice; all inputs if None.

    Raises:
        MetricError: the family has no such cut-off or arm, or a slice by a slice was asked for.
    """

    family: Family
    cutoff: float = 0
    arm: Arm = "candidate"
    where: Slice | None = None

    def __post_init__(self) -> None:
        family = self.family
        check_cutoff(family, self.cutoff)
        if self.arm != "candidate" and not family.arms:
            raise MetricError(
                f"{family.name!r} compares the two arms; it has no '{self.arm}.' form"
            )

    def __str__(self) -> str:
        arm = "" if self.arm == "candidate" else f"{self.arm}."
        cutoff = f"@{cutoff_text(self.cutoff)}" if self.cutoff else ""
        return f"{arm}{self.family.name}{cutoff}" + (f":{self.where}" if self.where else "")

    @property
    def direction(self) -> Direction:
        """Which way is better."""
        return self.family.direction

    @property
    def low(self) -> float:
        """Least possible value."""
        if self.arm == "relative":
            return -1.0
        return self.family.low - self.family.high if self.arm == "change" else self.family.low

    @property
    def high(self) -> float:
        """Greatest possible value."""
        if self.arm == "relative":
            return math.inf
        return self.family.high - self.family.low if self.arm == "change" else self.family.high

    @property
    def unit(self) -> str:
        """What it is counted in; a relative change is a rate."""
        return "rate" if self.arm == "relative" else self.family.unit

    @property
    def uncertainty(self) -> Uncertainty:
        """How its interval is made."""
        return "paired bootstrap" if self.arm in {"change", "relative"} else self.family.uncertainty

    def per_input(self, evidence: Evidence) -> NDArray[np.float64]:
        """The value of every input, float64 [n_inputs], NaN where it is undefined.

        Where not all deltas are known, it is what `Family.when_cut` says.

        Raises:
            MetricError: the cut-off is deeper than the stored ranking, and that ranking was cut; it
                is a relative change, which is one of means; or it is not known, as not all deltas
                are.
        """
        if why := self._unknown([evidence]):
            raise MetricError(f"{self}: {why}")
        if self.arm == "relative":
            change = str(replace(self, arm="change"))
            raise MetricError(f"{self} is a ratio of means: an input has none. Ask for {change}")
        return self._values(evidence)

    def _values(self, evidence: Evidence) -> NDArray[np.float64]:
        self._check_depth(evidence)
        values = self._arm(evidence, "reference" if self.arm == "reference" else "candidate")
        if self.arm in {"change", "relative"}:
            values = values - self._arm(evidence, "reference")
        return values

    def __call__(self, evidence: Evidence) -> Estimate:
        """The estimate over all inputs for which the metric is defined."""
        return self.over([evidence])

    def over(self, group: Sequence[Evidence]) -> Estimate:
        """The estimate over all inputs of several runs, pooled: every input counts once.

        Runs without labels take no part in a metric that needs them.

        Raises:
            MetricError: as `per_input`.
        """
        if self.family.needs_labels:
            group = [evidence for evidence in group if evidence.judgements is not None]
            if not group:
                return undefined("no relevance labels")
        if why := self._unknown(group):
            return undefined(why)
        values = self.told_apart(_joined(self._values(evidence) for evidence in group), group)
        defined = ~np.isnan(values)
        if not defined.any():
            return undefined(self._why_undefined(group))
        if self.arm == "relative":
            reference = _joined(self._arm(evidence, "reference") for evidence in group)[defined]
            return relative_change_estimate(values[defined] + reference, reference)
        estimate = replace(self.estimate(values[defined]), bound=self._bound(group))
        if estimate.value is not None and math.isinf(estimate.value):
            reason = self.family.infinite_when if estimate.bound != "upper" else _NOT_BOUNDED
            return replace(estimate, reason=reason)
        return estimate

    def _unknown(self, group: Sequence[Evidence]) -> str | None:
        """Why the metric is unknown where not all deltas are known; None where it is known."""
        deltas = {evidence.deltas for evidence in group} - {"all"}
        if not deltas:
            return None
        if self.where is not None and self.where.by.family.when_cut != "the same":
            return f"{self.where.by} is not known of every input (not all scores are)"
        if "none" in deltas and self.family.when_cut != "the same":
            return "the answers have no scores"
        if "none" in deltas and self.family.unit == "gain":
            return "the answers are no rankings"
        if self.family.when_cut == "undefined":
            return "needs every item's score in both arms, and these are lists that were cut short"
        return None

    def _bound(self, group: Sequence[Evidence]) -> Literal["lower", "upper"] | None:
        if all(evidence.exact for evidence in group):
            return None
        bounds: dict[str, Literal["lower", "upper"]] = {"at least": "lower", "at most": "upper"}
        return bounds.get(self.family.when_cut)

    def _why_undefined(self, group: Sequence[Evidence]) -> str:
        too_few = self.family.too_few and self.family.too_few(group, self.cutoff)
        if too_few:
            return too_few
        if self.where is None:
            return self.family.undefined_when
        if not any(self.where.of(evidence).any() for evidence in group):
            return f"no input has {self.where}"
        return f"{self.family.undefined_when} (of those with {self.where})"

    def told_apart(
        self, values: NDArray[np.float64], group: Sequence[Evidence]
    ) -> NDArray[np.float64]:
        """Values of several runs, +inf from where one of them only knows "more than was stored".

        Args:
            values: of inputs of these runs.
            group: the runs.
        """
        if self.family.censored is None:
            return values
        known = min((self.family.censored(run) for run in group if run.cut_short), default=math.inf)
        return np.where(values >= known, np.inf, values)

    def estimate(self, values: NDArray[np.float64]) -> Estimate:
        """The estimate from values of inputs, as the metric makes it from evidence.

        Args:
            values: float64, at least one, no NaN.
        """
        if self.uncertainty == "wilson":
            return rate_estimate(values)
        if self.uncertainty == "order statistics":
            percentile = self.cutoff if self.family.cutoff_is == "percentile" else _MEDIAN
            return quantile_estimate(values, percentile / _PERCENTILES)
        return mean_estimate(values)

    def _arm(self, evidence: Evidence, arm: Any) -> NDArray[np.float64]:
        values = self.family.per_input(evidence, self.cutoff, arm)
        return values if self.where is None else np.where(self.where.of(evidence), values, np.nan)

    def _check_depth(self, evidence: Evidence) -> None:
        cutoff = int(self.cutoff) if self.family.cutoff_is == "rank" else 0
        needed = max(cutoff + self.family.ranks_beyond, self.family.ranks)
        if needed > evidence.depth and evidence.cut_short:
            if not evidence.exact:
                raise MetricError(
                    f"{self} looks at {needed} ranks, but these lists are {evidence.depth} deep"
                )
            raise MetricError(
                f"{self} looks at {needed} ranks, but this run stored {evidence.depth}; "
                f"run again with --k {min(needed, int(evidence.n_items.max()))} or more"
            )


def _joined(parts: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate([np.empty(0), *parts])


def members(family: Family) -> list[Metric]:
    """The members of a family that are computed when nobody asks for particular ones."""
    arms: tuple[Arm, ...] = ("candidate", "reference", "change") if family.arms else ("candidate",)
    return [
        Metric(family=family, cutoff=cutoff, arm=arm)
        for cutoff in family.cutoffs or (0,)
        for arm in arms
    ]
