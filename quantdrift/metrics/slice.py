"""The inputs that a metric is computed over: those whose value of another lies in a range."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence import Evidence
from quantdrift.metrics.base import MetricError

if TYPE_CHECKING:  # a metric may hold a slice, and a slice is by a metric
    from quantdrift.metrics.metric import Metric

__all__ = ["Slice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The inputs whose value of one metric lies in a half-open range, low <= value < high.

    Written `separation=0.05..0.1`, or `separation=1..` without an upper end.

    Attributes:
        by: what is looked at.
        low: least value that belongs.
        high: least value above the range; +inf for none, which lets infinite values in.

    Raises:
        MetricError: the range is empty, or `by` is itself a metric over a slice.
    """

    by: Metric
    low: float
    high: float = math.inf

    def __post_init__(self) -> None:
        if self.by.where is not None or self.by.arm == "relative":
            raise MetricError(f"a slice is by a value that every input has; got {self.by}")
        if math.isinf(self.low) or not self.low < self.high:
            raise MetricError(
                "a slice needs a finite lower end below its upper end; got "
                f"{self.low:g}..{self.high:g}"
            )

    def __str__(self) -> str:
        high = "" if math.isinf(self.high) else _shortest(self.high)
        return f"{self.by}={_shortest(self.low)}..{high}"

    def of(self, evidence: Evidence) -> NDArray[np.bool_]:
        """Which inputs belong, bool [n_inputs]; those without a value do not.

        Raises:
            MetricError: for some input the stored ranks do not tell.
        """
        values = self.by.per_input(evidence)
        open_end = math.isinf(self.high)
        if self.by.family.censored is not None and np.isposinf(values).any():
            known = self.by.family.censored(evidence)
            if not (self.high <= known or (open_end and self.low <= known)):
                raise MetricError(
                    f"{self} cannot be told: with {evidence.depth} stored ranks, values beyond "
                    f"{known} are only known to be that large; end the range at {known} or "
                    f"before, ask for {self.by}={known}.. or less, or run again with a larger --k"
                )
        return (values >= self.low) & (open_end | (values < self.high))


def _shortest(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(float(number))
