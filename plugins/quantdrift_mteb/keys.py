"""The drift figures in mteb's results."""

from __future__ import annotations

import sys
from typing import Any

from quantdrift.evidence import Evidence
from quantdrift.metrics.keys import drift_keys, harness_metrics

__all__ = ["mteb_keys"]


def mteb_keys(evidence: Evidence) -> dict[str, Any]:
    """The figures that go into mteb's result beside its own.

    The candidate's quality figures are left out: mteb's own keys are those.

    Args:
        evidence: of one task, split and subset.

    Returns:
        Key to number, None where it is undefined; rates and changes with `_low` and `_high`, the
        ends of their 95 % interval.
    """
    chosen = [
        metric
        for metric in harness_metrics()
        if not (metric.family.arms and metric.arm == "candidate" and metric.where is None)
    ]
    return {"drift_n_inputs": evidence.n_inputs} | drift_keys(evidence, chosen, warn=_warn)


def _warn(message: str) -> None:
    print(f"quantdrift: {message}", file=sys.stderr)
