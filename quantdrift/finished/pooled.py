"""Metrics over all parts of a comparison, where every input counts once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quantdrift.finished.diff import PartDiff, Values
from quantdrift.metrics import Metric, MetricError
from quantdrift.statistics import Estimate, mean_estimate, undefined

__all__ = ["change_of", "estimate_of", "pooled_estimate"]


def estimate_of(metric: Metric, part: PartDiff) -> Estimate:
    """A metric of one part; undefined where it cannot be had."""
    if part.evidence is None:
        return undefined(part.reason or "no answer that could change")
    try:
        return metric(part.evidence)
    except MetricError as error:
        return undefined(str(error))


def pooled_estimate(metric: Metric, parts: Sequence[PartDiff]) -> Estimate:
    """A metric over the inputs of all parts that have evidence.

    Parts that hold the same inputs (experiments of mteb, filters of lm-eval) are averaged first,
    input by input: a mean of means, with a bootstrap interval over inputs.

    Args:
        metric: which.
        parts: of one comparison.
    """
    known = [part for part in parts if part.evidence is not None]
    if not known:
        return undefined("no part has an answer that could change")
    by_inputs: dict[str, list[PartDiff]] = {}
    for part in known:
        by_inputs.setdefault(part.inputs, []).append(part)
    try:
        if all(len(group) == 1 for group in by_inputs.values()):
            return metric.over([part.evidence for part in known if part.evidence is not None])
        if metric.uncertainty == "order statistics" or metric.arm == "relative":
            return undefined("has no mean over parts that hold the same inputs")
        values = np.concatenate(
            [_averaged(metric, group) for group in by_inputs.values()] or [np.empty(0)]
        )
    except MetricError as error:
        return undefined(str(error))
    values = values[~np.isnan(values)]
    return mean_estimate(values) if len(values) else undefined(metric.family.undefined_when)


def _averaged(metric: Metric, group: Sequence[PartDiff]) -> NDArray[np.float64]:
    """The mean over the parts, of every input that has a value in one of them."""
    rows = []
    order: dict[str, int] = {}
    for part in group:
        assert part.evidence is not None
        if metric.family.needs_labels and part.evidence.judgements is None:
            continue
        ids = [str(name) for name in part.evidence.input_ids]
        for name in ids:
            order.setdefault(name, len(order))
        rows.append((ids, metric.per_input(part.evidence)))
    table = np.full((len(rows), len(order)), np.nan)
    for number, (ids, values) in enumerate(rows):
        table[number, [order[name] for name in ids]] = values
    counted = ~np.isnan(table)
    sums = np.where(counted, table, 0.0).sum(axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / counted.sum(axis=0))


def change_of(values: Values) -> tuple[float | None, float | None, Estimate]:
    """One of the harness's own metrics: mean in A, mean in B, and the change with its interval.

    Args:
        values: of every document, in A and in B; documents without a value in one are left out.
    """
    before, after = values
    both = ~(np.isnan(before) | np.isnan(after))
    if not both.any():
        return None, None, undefined("no document has a value in both")
    before, after = before[both], after[both]
    return float(before.mean()), float(after.mean()), mean_estimate(after - before)
