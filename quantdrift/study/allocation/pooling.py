"""Several studies as one: other corpora on the same grid, or the part of it that all have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quantdrift.errors import QuantDriftError
from quantdrift.study.allocation.cells import CorpusCells
from quantdrift.study.allocation.plan import AllocationPlan
from quantdrift.study.allocation.record import AllocationStudy

__all__ = ["at_budgets", "pooled"]


def at_budgets(study: AllocationStudy, budgets: Sequence[float]) -> AllocationStudy:
    """The part of a study at some of its budgets.

    Args:
        study: whole.
        budgets: bits per weight, in the order wanted.

    Raises:
        QuantDriftError: one of them was not measured.
    """
    absent = [budget for budget in budgets if budget not in study.plan.budgets]
    if absent:
        names = ", ".join(corpus.corpus for corpus in study.corpora)
        raise QuantDriftError(
            f"the study of {names} has no budget {absent[0]:g}, only "
            + ", ".join(f"{budget:g}" for budget in study.plan.budgets)
        )
    return replace(
        study,
        plan=replace(study.plan, budgets=tuple(budgets)),
        corpora=[
            replace(corpus, cells=[cell for cell in corpus.cells if cell.budget in budgets])
            for corpus in study.corpora
        ],
    )


def pooled(studies: Sequence[AllocationStudy]) -> tuple[AllocationPlan, list[CorpusCells]]:
    """The grid of studies and the corpora of all of them.

    Raises:
        QuantDriftError: they are of different grids or models, or a corpus is there twice.
    """
    first = studies[0]
    corpora = [corpus for study in studies for corpus in study.corpora]
    # how many queries are held out is no part of the grid: corpora are of different sizes anyway
    if len({replace(study.plan, held_out=1) for study in studies}) > 1:
        raise QuantDriftError(
            "these studies are of different grids (criteria, budgets, quantizers, seeds, sizes, "
            "depth); expected one grid over different corpora"
        )
    if len({corpus.fingerprint for corpus in corpora}) > 1:
        raise QuantDriftError("these studies are of different models; expected one")
    names = [corpus.corpus for corpus in corpora]
    if len(set(names)) < len(names):
        raise QuantDriftError(f"expected every corpus once; got {', '.join(names)}")
    return first.plan, corpora
