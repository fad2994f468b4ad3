"""Two systems compared by several metrics: the test that fits each, p-values adjusted together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quantdrift.statistics.equivalence import Better, mean_no_worse, rate_no_worse
from quantdrift.statistics.estimates import undefined
from quantdrift.statistics.multiplicity import holm
from quantdrift.statistics.paired import (
    mcnemar_exact,
    paired_mean_difference,
    paired_rate_difference,
    randomization_test,
)
from quantdrift.statistics.paired_quantile import paired_quantile_difference, quantile
from quantdrift.statistics.sample_size import (
    inputs_for_mean,
    inputs_for_rate,
    shrunken_spread,
)
from quantdrift.statistics.verdict import PairedComparison, PairedSample, verdict_of

__all__ = ["compare_samples"]


def compare_samples(
    samples: Sequence[PairedSample],
    *,
    margin: float | None = None,
    alpha: float = 0.05,
    seed: int = 0,
) -> tuple[PairedComparison, ...]:
    """Compare two systems by several metrics.

    Args:
        samples: one per metric.
        margin: by how much B may be worse, in each metric's own unit; None for no such test.
        alpha: level of the verdicts: the chance of one or more wrong "no worse" stays below it, and
            so does that of one or more wrong "worse" or "better".
        seed: of resampling and permutations.

    Returns:
        One comparison per sample, in that order.

    Raises:
        QuantDriftError: the margin does not fit a metric.
    """
    found = [_compare(sample, margin=margin, seed=seed) for sample in samples]
    # only what can get a verdict is one of the tests to adjust for
    adjusted = holm(
        [
            each.p_value if sample.better is not None else None
            for sample, each in zip(samples, found, strict=True)
        ]
    )
    adjusted_no_worse = holm([each.p_no_worse for each in found])
    level = alpha / max(1, sum(each.p_no_worse is not None for each in found))
    results = []
    for sample, each, p, q in zip(samples, found, adjusted, adjusted_no_worse, strict=True):
        needed = None
        if margin is not None and each.p_no_worse is not None:
            needed = _needed(sample, margin=margin, level=level)
        full = replace(each, p_holm=p, p_no_worse_holm=q, inputs_needed=needed)
        verdict = verdict_of(full, better=sample.better, margin=margin, alpha=alpha)
        results.append(replace(full, verdict=verdict))
    return tuple(results)


def _compare(sample: PairedSample, *, margin: float | None, seed: int) -> PairedComparison:
    """All but what depends on the other metrics."""
    a, b = sample.a, sample.b
    found = PairedComparison(
        metric=sample.metric,
        n=len(a),
        value_a=None,
        value_b=None,
        difference=undefined(sample.reason or "no input has a value from both"),
        higher_a=int((a > b).sum()),
        higher_b=int((b > a).sum()),
        reason=sample.reason,
    )
    if not len(a):
        return replace(found, reason=found.difference.reason)
    if sample.kind == "quantile":
        step = paired_quantile_difference(a, b, q=sample.q, seed=seed)
        return replace(
            found,
            value_a=float(quantile(a, sample.q)),
            value_b=float(quantile(b, sample.q)),
            difference=step,
            reason=sample.reason
            or step.reason
            or "a median or quantile has an interval here, no test",
        )
    found = replace(found, value_a=float(a.mean()), value_b=float(b.mean()))
    if not sample.tested:
        reason = "infinite for some inputs, so there is no mean to compare"
        return replace(found, difference=undefined(reason), reason=reason)
    if sample.kind == "rate":
        found = replace(
            found,
            difference=paired_rate_difference(a, b),
            p_value=mcnemar_exact(a, b).p_value,
        )
    else:
        found = replace(
            found,
            difference=paired_mean_difference(a, b, seed=seed),
            p_value=randomization_test(a, b, seed=seed),
        )
    if sample.better is None:
        return replace(found, reason=sample.reason or "neither way is better: no verdict")
    if margin is None:
        return found
    return _with_margin(found, sample, margin=margin, better=sample.better)


def _with_margin(
    found: PairedComparison, sample: PairedSample, *, margin: float, better: Better
) -> PairedComparison:
    a, b = sample.a, sample.b
    if sample.kind == "rate":
        return replace(found, p_no_worse=rate_no_worse(a, b, margin=margin, better=better))
    p_no_worse = mean_no_worse(a, b, margin=margin, better=better, span=sample.span)
    if p_no_worse is None:
        reason = "too few inputs differ, and the metric has no upper end that would bound them"
        return replace(found, reason=reason)
    return replace(found, p_no_worse=p_no_worse)


def _needed(sample: PairedSample, *, margin: float, level: float) -> int | None:
    spread = shrunken_spread(sample.b - sample.a, span=sample.span)
    if spread is None:
        return None
    if sample.kind == "rate":
        return inputs_for_rate(spread.share, margin=margin, alpha=level)
    return inputs_for_mean(spread, margin=margin, span=sample.span, alpha=level)
