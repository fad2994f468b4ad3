"""What a study found, as JSON values, and the axes it is looked at along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quantdrift.study.allocation.agreement import between_seeds, rank_correlation, with_size
from quantdrift.study.allocation.capture import COSTS, Captured, capture
from quantdrift.study.allocation.cells import Cell, CorpusCells
from quantdrift.study.allocation.plan import AllocationPlan

__all__ = ["AXES", "capture_by_labels", "summary"]

AXES: dict[str, Callable[[str, Cell], object]] = {
    "budget": lambda _corpus, cell: f"{cell.budget:g}",
    "quantizer": lambda _corpus, cell: cell.quantizer,
    "corpus": lambda corpus, _cell: corpus,
    "queries": lambda _corpus, cell: cell.n_queries,
}
"""Name to what capture is split by, from the name of a corpus and a cell of it."""


def capture_by_labels(
    plan: AllocationPlan, corpora: Sequence[CorpusCells]
) -> dict[str, list[Captured]]:
    """Capture of what needs labels, where there are any."""
    if all(corpus.relevant is None for corpus in corpora):
        return {}
    return {cost: capture(corpora, plan.criteria, cost) for cost in COSTS[1:]}


def summary(model: str, plan: AllocationPlan, corpora: Sequence[CorpusCells]) -> dict[str, Any]:
    """Capture pooled and by corpus, correlations and agreement, as JSON values.

    Args:
        model: name of it.
        plan: the grid.
        corpora: what was measured.
    """
    first, most = plan.criteria[0], max(plan.sizes)
    costs = {COSTS[0]: capture(corpora, plan.criteria), **capture_by_labels(plan, corpora)}
    return {
        "model": model,
        "corpora": [corpus.corpus for corpus in corpora],
        "capture": {cost: [_captured(part) for part in parts] for cost, parts in costs.items()},
        "capture_by_corpus": {
            corpus.corpus: [_captured(part) for part in capture([corpus], plan.criteria)]
            for corpus in corpora
        },
        "spearman": {name: rank_correlation(corpora, first, name) for name in plan.criteria},
        "same_width_between_seeds": {name: between_seeds(corpora, name) for name in plan.criteria},
        "same_width_between_sizes": {
            name: {
                str(size): with_size(corpora, name, size, most)
                for size in sorted(plan.sizes)
                if size != most
            }
            for name in plan.criteria
        },
    }


def _captured(part: Captured) -> dict[str, Any]:
    return {
        "criterion": part.criterion,
        "ratio": part.ratio.to_json(),
        "difference": part.difference and part.difference.to_json(),
        "mean_rate": part.cost if part.n_cells else None,
        "best_in": part.first_in,
        "n_cells": part.n_cells,
    }
