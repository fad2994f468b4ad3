"""Every metric there is, computed from stored evidence; needs no torch.

>>> str(parse_metric("gold_lost@10"))
'gold_lost@10'
"""

from __future__ import annotations

from collections.abc import Iterable

from quantdrift.evidence import Evidence
from quantdrift.metrics import quality, ranking, separation
from quantdrift.metrics.base import Family, Metric, MetricError, parse_in
from quantdrift.statistics import Estimate

__all__ = [
    "FAMILIES",
    "Family",
    "Metric",
    "MetricError",
    "default_metrics",
    "measure",
    "parse_metric",
]

FAMILIES: dict[str, Family] = {
    family.name: family for family in (*ranking.FAMILIES, *separation.FAMILIES, *quality.FAMILIES)
}


def parse_metric(text: str) -> Metric:
    """The metric that a string names, e.g. `flip@1` or `reference.ndcg@10`.

    Raises:
        UnknownNameError: no such metric; carries the nearest names.
        MetricError: a cut-off is missing or not taken, or there is no such arm.
    """
    return parse_in(text, FAMILIES)


def default_metrics() -> list[Metric]:
    """What a run reports when nobody asks for particular metrics, in order."""
    return [member for family in FAMILIES.values() for member in family.members()]


def measure(evidence: Evidence, metrics: Iterable[Metric] | None = None) -> dict[str, Estimate]:
    """Estimates by metric string, in the order asked for.

    Args:
        evidence: of one run.
        metrics: which; the default ones if not given.
    """
    chosen = default_metrics() if metrics is None else metrics
    return {str(metric): metric(evidence) for metric in chosen}
