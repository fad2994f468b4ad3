"""The figures of two runs of lm-eval on one task: of every document, and of the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence import Evidence
from quantdrift.finished.lm_eval.samples import LOGLIKELIHOOD, PairedFilter
from quantdrift.metrics import Metric, MetricError, default_metrics, parse_metric
from quantdrift.metrics.keys import drift_keys, harness_metrics, key_of
from quantdrift.statistics import (
    Estimate,
    mean_estimate,
    quantile_estimate,
    rate_estimate,
    undefined,
)

__all__ = [
    "HIGHER_IS_BETTER",
    "details_of",
    "medians_of",
    "per_document",
    "pooled_details",
    "scores_of",
]

Values = NDArray[np.float64]

RIGHT_TO_WRONG, WRONG_TO_RIGHT = "drift_right_to_wrong_", "drift_wrong_to_right_"
CHANGE = f"drift_change_{LOGLIKELIHOOD}"
EPSILON = "drift_epsilon_median"

HIGHER_IS_BETTER: dict[str, bool | None] = {
    "drift_flip_at_1": False,
    "drift_at_risk": False,
    "drift_separation_median": True,
    EPSILON: False,
    CHANGE: None,
    RIGHT_TO_WRONG: False,
    WRONG_TO_RIGHT: True,
}
"""Figure to the better direction; names that end in an underscore go before one of a metric."""

_RATES = ("flip@1", "at_risk", "noise_floor")
_MEDIANS = ("separation",)
_RANKING = (
    "set_kept",
    "new_top_rank",
    "cut_separation",
    "ndcg",
    "recall",
    "mrr",
    "served_relevance",
    "rbo",
    "tau_b",
)
"""Families of metrics that say something of longer rankings than a question's few choices."""
_GOLD = ("gold_lost", "gold_gained")
_SCORES = ("gap", "epsilon", "separation")


def per_document(paired: PairedFilter) -> dict[str, Values]:
    """Figures that every document has; those of a task are their means.

    Args:
        paired: both arms after one filter.

    Returns:
        Name to float64 [n_documents], no NaN.
    """
    figures: dict[str, Values] = {}
    if paired.evidence is not None:
        for name in _RATES:
            metric = parse_metric(name)
            values = _per_input(metric, paired.evidence)
            if values is not None and not np.isnan(values).any():
                figures[key_of(metric)] = values
    for name in paired.right_or_wrong:
        before, after = paired.values[name]
        figures[RIGHT_TO_WRONG + name] = before * (1 - after)
        figures[WRONG_TO_RIGHT + name] = (1 - before) * after
    change = _change(paired)
    if change is not None:
        figures[CHANGE] = change
    return figures


def scores_of(paired: PairedFilter) -> dict[str, Values]:
    """What the scores of every document say: gap, epsilon and separation ratio.

    Args:
        paired: both arms after one filter.

    Returns:
        Name to float64 [n_documents], NaN and +inf where it has no finite value.
    """
    found = {}
    for name in _SCORES:
        values = (
            None if paired.evidence is None else _per_input(parse_metric(name), paired.evidence)
        )
        if values is not None and not np.isnan(values).all():
            found[f"drift_{name}"] = values
    return found


def medians_of(parts: Sequence[PairedFilter]) -> dict[str, Estimate]:
    """Medians over the documents of one task, or of several pooled.

    Args:
        parts: both arms after one filter, of every task.

    Returns:
        Name to the estimate, where it has a finite value.
    """
    found = {}
    for name in _MEDIANS:
        metric = parse_metric(name)
        found[key_of(metric)] = _over(metric, _evidence(parts))
    changes = [change for part in parts if (change := _change(part)) is not None]
    if changes:
        found[EPSILON] = quantile_estimate(np.abs(np.concatenate(changes)))
    return {
        name: estimate
        for name, estimate in found.items()
        if estimate.value is not None and np.isfinite(estimate.value)
    }


def details_of(paired: PairedFilter, *, warn: Callable[[str], None]) -> dict[str, Any]:
    """Everything that is known of a task after one filter, as JSON has it.

    Args:
        paired: both arms.
        warn: told of metrics that cannot be computed.

    Returns:
        The default metrics that fit by their keys, null where undefined; what right_to_wrong
        and the like are, and each of lm-eval's metrics that is one number: of the reference and its
        change. Rates and changes with `_low` and `_high`, the ends of their 95 % interval.
    """
    details: dict[str, Any] = {
        "kind": paired.kind,
        "drift_n_inputs": len(paired.doc_ids),
        "judged_by": paired.judged_by,
    }
    if paired.evidence is None:
        details["no_evidence"] = paired.reason
    else:
        details |= drift_keys(paired.evidence, _metrics(), warn=warn)
    return details | _written(_estimates([paired])) | _written(_value_estimates(paired))


def pooled_details(parts: Sequence[PairedFilter]) -> dict[str, Any]:
    """The same of several tasks, every document counting once; without lm-eval's metrics.

    Args:
        parts: both arms after one filter, of every task.
    """
    evidence = _evidence(parts)
    estimates = {key_of(metric): _over(metric, evidence) for metric in _metrics()}
    return {
        "drift_n_inputs": sum(len(part.doc_ids) for part in parts),
        **_written(estimates),
        **_written(_estimates(parts)),
    }


def _metrics() -> list[Metric]:
    """The default metrics that fit, and those that the user asks for."""
    known = default_metrics()
    return [
        metric
        for metric in harness_metrics()
        if metric not in known
        or not (
            metric.family.name in _RANKING or (metric.family.name in _GOLD and metric.cutoff > 1)
        )
    ]


def _estimates(parts: Sequence[PairedFilter]) -> dict[str, Estimate]:
    figures = [per_document(part) for part in parts]
    names = dict.fromkeys(name for own in figures for name in own)
    found = {}
    for name in names:
        values = np.concatenate([own[name] for own in figures if name in own])
        found[name] = mean_estimate(values) if name == CHANGE else rate_estimate(values)
    medians = medians_of(parts)
    return found | {name: medians[name] for name in (EPSILON,) if name in medians}


def _value_estimates(paired: PairedFilter) -> dict[str, Estimate]:
    found = {}
    for name, (before, after) in paired.values.items():
        here = ~(np.isnan(before) | np.isnan(after))
        if here.any():
            found[f"drift_reference_{name}"] = mean_estimate(before[here])
            found[f"drift_change_{name}"] = mean_estimate((after - before)[here])
    return found


def _written(estimates: Mapping[str, Estimate]) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for name, estimate in estimates.items():
        entry = estimate.to_json()
        written[name] = entry["value"]
        if entry["value"] is not None and entry["low"] is not None:
            written[f"{name}_low"], written[f"{name}_high"] = entry["low"], entry["high"]
    return written


def _change(paired: PairedFilter) -> Values | None:
    """Of every document with one text, how much its log-likelihood changed."""
    if LOGLIKELIHOOD not in paired.values:
        return None
    before, after = paired.values[LOGLIKELIHOOD]
    return after - before if np.isfinite(after - before).all() else None


def _evidence(parts: Sequence[PairedFilter]) -> list[Evidence]:
    return [part.evidence for part in parts if part.evidence is not None]


def _per_input(metric: Metric, evidence: Evidence) -> Values | None:
    try:
        return metric.per_input(evidence)
    except MetricError:
        return None


def _over(metric: Metric, group: Sequence[Evidence]) -> Estimate:
    if not group:
        return undefined("no task has answers to compare")
    try:
        return metric.over(group)
    except MetricError as error:
        return undefined(str(error))
