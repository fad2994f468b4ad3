"""The drift figures in mteb's results."""

from __future__ import annotations

from typing import Any

from quantdrift.display import complain
from quantdrift.evidence import Evidence
from quantdrift.metrics.keys import drift_keys, harness_metrics


def mteb_keys(evidence: Evidence, *, searched: bool = True) -> dict[str, Any]:
    """The figures that go into mteb's result beside its own.

    Of a search the candidate's quality figures are left out: mteb's own keys are those. Elsewhere
    its accuracy is there, for mteb's own is of other classifiers or another threshold.

    Args:
        evidence: of one task, split and subset.
        searched: whether the task is a search.

    Returns:
        Key to number, None where it is undefined; rates and changes with `_low` and `_high`, the
        ends of their 95 % interval.
    """
    chosen = [
        metric
        for metric in harness_metrics()
        if not (metric.family.arms and metric.arm == "candidate" and metric.where is None)
        or (str(metric) == "accuracy" and not searched)
    ]
    return {"drift_n_inputs": evidence.n_inputs} | drift_keys(evidence, chosen, warn=complain)
