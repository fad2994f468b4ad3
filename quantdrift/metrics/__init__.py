"""All metrics, computed from stored evidence without torch.

>>> str(parse_metric("gold_lost@10"))
'gold_lost@10'
"""

from collections.abc import Iterable

from quantdrift.evidence.record import Evidence
from quantdrift.metrics import ranking, relevance, trusted  # noqa: F401 -- they define the families
from quantdrift.metrics.base import (
    BUILT_IN,
    FAMILIES,
    SECTIONS,
    Family,
    Metric,
    MetricError,
    Slice,
    estimates,
    members,
    metric,
    parse_metric,
)
from quantdrift.statistics.estimates import Estimate

__all__ = [
    "BUILT_IN",
    "FAMILIES",
    "Family",
    "Metric",
    "MetricError",
    "Slice",
    "default_metrics",
    "measure",
    "members",
    "metric",
    "parse_metric",
    "staged_metrics",
]

for _family in sorted(BUILT_IN.values(), key=lambda family: SECTIONS.index(family.section)):
    BUILT_IN[_family.name] = BUILT_IN.pop(_family.name)


def default_metrics() -> list[Metric]:
    """The metrics that a run reports by default, in order."""
    return [member for family in FAMILIES.values() for member in members(family)]


def measure(evidence: Evidence, metrics: Iterable[Metric | str] | None = None) -> dict[str, Estimate]:
    """Compute metrics; returns estimates by metric string, in the given order.

    Args:
        evidence: evidence of one run.
        metrics: e.g. ["flip@1", "gold_lost@3"]; by default the default metrics, each undefined if it needs more ranks
            than are stored.

    Raises:
        UnknownNameError: there is no such metric.
        MetricError: a metric that was asked for needs more ranks than are stored.
    """
    if metrics is not None:
        asked = [metrics] if isinstance(metrics, str) else metrics
        chosen = [parse_metric(metric) if isinstance(metric, str) else metric for metric in asked]
        return {str(metric): metric(evidence) for metric in chosen}
    chosen = [*default_metrics(), *(staged_metrics() if evidence.exhaustive_top is not None else ())]
    return dict(zip(map(str, chosen), estimates(chosen, evidence), strict=True))


def staged_metrics() -> list[Metric]:
    """The metrics of the codes alone and of the index alone, which a run with an approximate index reports."""
    names = ("flip@1", "gold_lost@10", "change.ndcg@10", "overlap@10")
    return [parse_metric(f"{stage}.{name}") for name in names for stage in ("codes", "index")]
