"""What is compared, what comes out, and which verdict that is."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.statistics.equivalence import Better
from quantdrift.statistics.estimates import Estimate

__all__ = ["Kind", "PairedComparison", "PairedSample", "Verdict", "verdict_of"]

Kind = Literal["rate", "mean", "quantile"]

Verdict = Literal[
    "no worse",
    "worse",
    "underpowered",
    "inconclusive",
    "better",
    "no difference shown",
]
"""With a margin: "no worse" (shown to be worse by less than it), "worse" (not that, and
significantly worse), "underpowered" (neither, with fewer inputs than it takes) or "inconclusive"
(neither, with enough). Without one: "worse", "better" (significantly) or "no difference shown"."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairedSample:
    """The values of one metric for two systems on the same inputs.

    Attributes:
        metric: its string.
        kind: what is compared: a rate (values 0 and 1), a mean or a quantile.
        better: which way is better; None if neither.
        a: float64 [n_inputs], values of the first system.
        b: likewise, of the second.
        span: greatest possible difference of two values; may be infinite.
        q: which quantile, for that kind.
        reason: why there is nothing to compare, or what to know of the comparison.
    """

    metric: str
    kind: Kind
    better: Better | None
    a: NDArray[np.float64]
    b: NDArray[np.float64]
    span: float = 1.0
    q: float = 0.5
    reason: str | None = None

    @property
    def tested(self) -> bool:
        """Whether there is a test: for rates and means of finite values."""
        finite = bool(np.isfinite(self.a).all() and np.isfinite(self.b).all())
        return self.kind != "quantile" and len(self.a) > 0 and finite


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """What there is to say on one metric of two systems; B is compared with A.

    Attributes:
        metric: its string.
        n: inputs with a value from both.
        value_a: the rate, mean or quantile of A.
        value_b: of B.
        difference: B minus A, with its 95 % interval.
        higher_a: inputs where A's value is the higher one (of a rate: only A has the event).
        higher_b: inputs where B's is.
        p_value: two-sided, of no difference: McNemar's exact test or a randomization test.
        p_holm: the same, adjusted for the number of metrics.
        p_no_worse: one-sided, of "B is worse by the margin or more".
        p_no_worse_holm: the same, adjusted.
        inputs_needed: to show "no worse" with power 0.8 if there is no difference, at alpha over
            the number of metrics, which is what Holm's adjustment asks of the first of them.
        verdict: None where there is no test.
        reason: why something is None, or what to know of it.
    """

    metric: str
    n: int
    value_a: float | None
    value_b: float | None
    difference: Estimate
    higher_a: int = 0
    higher_b: int = 0
    p_value: float | None = None
    p_holm: float | None = None
    p_no_worse: float | None = None
    p_no_worse_holm: float | None = None
    inputs_needed: int | None = None
    verdict: Verdict | None = None
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; the difference is one too, and an infinite value is null."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        for name in ("value_a", "value_b"):
            if values[name] is not None and not math.isfinite(values[name]):
                values[name] = None
        return {**values, "difference": self.difference.to_json()}


def verdict_of(
    found: PairedComparison, *, better: Better | None, margin: float | None, alpha: float
) -> Verdict | None:
    """The verdict that adjusted p-values, difference and sample size come to.

    Args:
        found: a comparison, all but its verdict.
        better: which way is better; None if neither, and then there is no verdict.
        margin: None if no worse was not asked for.
        alpha: level.
    """
    change = found.difference.value
    if better is None or found.p_holm is None or change is None:
        return None
    significant = found.p_holm < alpha
    worse = significant and (change > 0 if better == "lower" else change < 0)
    if margin is None:
        return "worse" if worse else "better" if significant else "no difference shown"
    if found.p_no_worse_holm is not None and found.p_no_worse_holm < alpha:
        return "no worse"
    if worse:
        return "worse"
    if found.inputs_needed is None:
        return None
    return "underpowered" if found.n < found.inputs_needed else "inconclusive"
