"""Metrics of quantdrift by name, beside those that beir itself knows by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quantdrift.display import complain
from quantdrift.errors import UnknownNameError, UnsupportedError
from quantdrift.metrics import FAMILIES, Metric, default_metrics, parse_metric
from quantdrift.metrics.base import MetricError, cutoff_text
from quantdrift_beir.results import DEPTH, PairedResults, Qrels

BEIR_METRICS = (
    "mrr",
    "mrr@k",
    "mrr_cut",
    "recall_cap",
    "r_cap",
    "r_cap@k",
    "hole",
    "hole@k",
    "acc",
    "top_k_acc",
    "accuracy",
    "accuracy@k",
    "top_k_accuracy",
)
"""What beir computes by these names; they come before metrics of ours that are called the same."""


def evaluate_custom(
    original: Callable[..., Any], qrels: Qrels, results: Any, k_values: Sequence[int], metric: str
) -> Any:
    """EvaluateRetrieval.evaluate_custom, which knows every metric of quantdrift too.

    Args:
        original: beir's own function.
        qrels: query id to document id to grade.
        results: of a search.
        k_values: cut-offs of a metric that is named without one.
        metric: a name of beir's, a metric such as "gold_lost@10", or a family such as "flip".

    Returns:
        Metric to value, None where it is undefined; of beir's own metrics what beir gives.

    Raises:
        UnknownNameError: neither beir nor quantdrift has it; carries the nearest names.
        MetricError: it has no such cut-off, or one deeper than the stored ranks.
        UnsupportedError: the results are of one model, or have lost their drift.
    """
    if metric.lower() in BEIR_METRICS:
        return original(qrels, results, k_values, metric)
    chosen = metrics_named(metric, k_values)
    if not isinstance(results, PairedResults):
        raise UnsupportedError(
            f"{metric} compares two arms, and these results are of one. Wrap the model before the "
            'search: DenseRetrievalExactSearch(QuantizedPair(model, "W4-rtn")). Two finished '
            "searches: quantdrift diff A B. A copy made by dict(results) or {**results} has lost "
            "its drift: give the object that the search returned, or results.copy()"
        )
    evidence = results.drift.with_qrels(qrels).evidence
    found: dict[str, float | None] = {}
    for one in chosen:
        try:
            estimate = one(evidence)
        except MetricError as error:
            why = (
                f"{one} looks deeper than the {evidence.depth} ranks that were compared; expected "
                f"a smaller cut-off, or a search for more documents (up to {DEPTH} are compared)"
            )
            if "@" in metric.partition(":")[0]:
                raise MetricError(why) from error
            complain(why)  # of a family those are given that the ranks allow
            continue
        if estimate.value is None:
            complain(f"{one} is undefined: {estimate.reason}")
        found[str(one)] = estimate.value
    return found


def metrics_named(text: str, k_values: Sequence[int]) -> list[Metric]:
    """The metrics that a name means.

    >>> [str(metric) for metric in metrics_named("change.ndcg", [5, 10])]
    ['change.ndcg@5', 'change.ndcg@10']
    >>> [str(metric) for metric in metrics_named("flip", [5, 10])]
    ['flip@1']

    Args:
        text: a metric, or one without its cut-off, which then means all of them.
        k_values: cut-offs of a metric that takes any rank.

    Raises:
        UnknownNameError: there is none of that name.
        MetricError: it has no such cut-off or arm, or its slice cannot be read.
    """
    whole, colon, condition = text.strip().partition(":")
    family = FAMILIES.get(whole.rpartition(".")[2])
    if family is None or not family.cutoffs:
        try:
            return [parse_metric(text)]
        except UnknownNameError as error:
            known = [*FAMILIES, *(str(metric) for metric in default_metrics()), *BEIR_METRICS]
            raise UnknownNameError("metric", error.name, known, hint=error_hint()) from error
    any_rank = family.cutoff_is == "rank" and family.other_cutoffs
    cutoffs = sorted(set(k_values)) if any_rank else family.cutoffs
    return [parse_metric(f"{whole}@{cutoff_text(cutoff)}{colon}{condition}") for cutoff in cutoffs]


def error_hint() -> str:
    """Where all names are listed."""
    return "(quantdrift list metrics shows all of quantdrift's)"
