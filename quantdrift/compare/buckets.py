"""Metrics within buckets of inputs: top-1 change rate and harm by separation, by contenders.

Source: paper, appendix, the tables of flips against relevance and of rates by contender count.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from quantdrift.evidence.record import Evidence
from quantdrift.metrics import Metric, MetricError, Slice
from quantdrift.statistics.estimates import Estimate

EDGES: Mapping[str, tuple[float, ...]] = {
    "separation": (0, 0.05, 0.1, 0.2, 0.5, 1),
    "contenders": (0, 1, 2, 3, 4, 5, 11, 51, 121),
}
"""The lower ends of the paper's buckets; the last bucket has no upper end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The inputs whose value of one quantity lies in a range: how many, and the metrics over them."""

    where: Slice
    n: int
    estimates: Mapping[str, Estimate]


def breakdown(group: Sequence[Evidence], *, by: Metric, metrics: Sequence[Metric]) -> tuple[Bucket, ...]:
    """Metrics over the inputs of each bucket, pooled over runs."""
    if by.family.when_cut != "the same" and not all(evidence.exact for evidence in group):
        raise MetricError(
            f"inputs cannot be sorted by {by}: for truncated lists, or answers without scores, it is at best a bound. "
            "Sort by another metric, e.g. gap or candidate_gap"
        )
    if sliced := [metric for metric in metrics if metric.where is not None]:
        raise MetricError(f"the buckets are the slices; leave them out of {sliced[0]}")
    buckets = []
    for low, high in pairwise((*edges_of(by, group), math.inf)):
        where = Slice(by=by, low=low, high=high)
        estimates = {str(metric): replace(metric, where=where).over(group) for metric in metrics}
        n = sum(int(where.of(evidence).sum()) for evidence in group)
        buckets.append(Bucket(where=where, n=n, estimates=estimates))
    return tuple(buckets)


def edges_of(by: Metric, group: Sequence[Evidence]) -> tuple[float, ...]:
    """Default edges: the paper's for separation and contenders, quartiles for anything else.

    If runs stored too few ranks to distinguish large counts of contenders, the buckets of these are merged.
    """
    if str(by) in EDGES:
        censored = by.family.censored
        limit = min((censored(run) for run in group if run.cut_short), default=math.inf) if censored else math.inf
        return tuple(edge for edge in EDGES[str(by)] if edge <= limit)
    if by.unit == "rate":  # yes or no
        return (0, 1)
    values = np.concatenate([np.empty(0), *(by.per_input(evidence) for evidence in group)])
    values = values[np.isfinite(values)]
    if not len(values):
        raise MetricError(f"no input has a finite value of {by} to sort by")
    return tuple(dict.fromkeys(np.quantile(values, [0, 0.25, 0.5, 0.75], method="inverted_cdf").tolist()))


def range_words(where: Slice) -> str:
    """A bucket in words: "0.1 to below 0.2", "1 or more"."""
    low, high = f"{where.low:.4g}", f"{where.high:.4g}"
    if math.isinf(where.high):
        return f"{low} or more"
    if where.by.unit not in {"items", "rank"}:
        return f"{low} to below {high}"
    last = math.ceil(where.high) - 1
    return low if last <= where.low else f"{low} to {last}"
