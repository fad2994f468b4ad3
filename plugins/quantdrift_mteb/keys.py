"""Names of the drift figures in mteb's results."""

from __future__ import annotations

from typing import Any

from quantdrift.evidence import Evidence
from quantdrift.metrics import Metric, default_metrics

__all__ = ["drift_keys", "key_of_metric"]


def key_of_metric(metric: Metric) -> str:
    """`gold_lost@10` becomes `drift_gold_lost_at_10`; a median says so.

    Args:
        metric: any metric.
    """
    name = str(metric).replace("@", "_at_").replace(".", "_")
    median = "_median" if metric.family.uncertainty == "order statistics" else ""
    return f"drift_{name}{median}"


def drift_keys(evidence: Evidence) -> dict[str, Any]:
    """The figures that go into mteb's result beside its own.

    The candidate's quality figures are left out: mteb's own keys are those.

    Args:
        evidence: of one task, split and subset.

    Returns:
        Key to number, None where it is undefined; rates with `_low` and `_high`, the ends of
        their 95 % interval.
    """
    keys: dict[str, Any] = {"drift_n_inputs": evidence.n_inputs}
    for metric in default_metrics():
        if metric.family.needs_labels and metric.family.arms and metric.arm == "candidate":
            continue
        entry = metric(evidence).to_json()
        key = key_of_metric(metric)
        keys[key] = entry["value"]
        if metric.family.unit == "rate" and entry["value"] is not None:
            keys[f"{key}_low"], keys[f"{key}_high"] = entry["low"], entry["high"]
    return keys
