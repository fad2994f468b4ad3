"""Metrics as keys in a harness's result: `gold_lost@10` becomes `drift_gold_lost_at_10`."""

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from quantdrift.evidence.record import Evidence
from quantdrift.metrics import default_metrics, parse_metric, staged_metrics
from quantdrift.metrics.base import Metric, MetricError, cutoff_text
from quantdrift.statistics.estimates import undefined

BOUNDS = {None: "", "lower": "_at_least", "upper": "_at_most"}
"""The endings of keys of metrics that are only bounds."""

VARIABLE = "QUANTDRIFT_METRICS"
"""The environment variable with metrics to add to a harness's result."""


def key_of(metric: Metric) -> str:
    """The key of a metric, of letters, digits, dots and underscores; a median ends in "_median".

    >>> key_of(parse_metric("separation")), key_of(parse_metric("change.ndcg@10"))
    ('drift_separation_median', 'drift_change_ndcg_at_10')
    >>> key_of(parse_metric("index.flip@1"))
    'drift_index_flip_at_1'
    >>> key_of(parse_metric("harm:separation=0.05..0.1"))
    'drift_harm_where_separation_0.05_to_0.1'
    >>> key_of(parse_metric("coverage@0.1"))
    'drift_coverage_at_0.10'
    """
    arm = (f"{metric.stage}_" if metric.stage else "") + ("" if metric.arm == "candidate" else f"{metric.arm}_")
    cutoff = f"_at_{cutoff_text(metric.cutoff)}" if metric.cutoff else ""
    median = metric.uncertainty == "order statistics" and metric.family.cutoff_is == "rank"
    key = f"drift_{arm}{metric.family.name}{cutoff}" + ("_median" if median else "")
    if metric.where is None:
        return key
    by, _, limits = str(metric.where).partition("=")
    low, _, high = limits.partition("..")
    name = by.replace("@", "_at_").replace(".", "_")
    return f"{key}_where_{name}_" + (f"from_{low}" if not high else f"{low}_to_{high}")


def harness_metrics() -> list[Metric]:
    """The default metrics and those in the environment variable QUANTDRIFT_METRICS."""
    chosen = default_metrics()
    asked = re.split(r"[\s,]+", os.environ.get(VARIABLE, "").strip())
    for name in filter(None, asked):
        try:
            metric = parse_metric(name)
        except MetricError as error:
            raise MetricError(f"{VARIABLE}: {error}") from error
        if metric not in chosen:
            chosen.append(metric)
    return chosen


def drift_keys(evidence: Evidence, metrics: Iterable[Metric], *, warn: Callable[[str], None]) -> dict[str, Any]:
    """Values of metrics by key, as JSON values; with an index also the changes by its codes and its search alone."""
    keys: dict[str, Any] = {}
    stages = staged_metrics() if evidence.exhaustive_top is not None else []
    for metric in dict.fromkeys([*metrics, *stages]):
        try:
            estimate = metric(evidence)
        except MetricError as error:
            warn(str(error))
            estimate = undefined(str(error))
        key, entry = key_of(metric) + BOUNDS[estimate.bound], estimate.to_json()
        keys[key] = entry["value"]
        if entry["value"] is not None and (metric.unit == "rate" or metric.arm == "change"):
            keys[f"{key}_low"], keys[f"{key}_high"] = entry["low"], entry["high"]
    return keys
