"""The tables of a study of allocations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from rich.table import Table

from quantdrift.cli.tables import console, headed
from quantdrift.cli.values import decimals
from quantdrift.console import Console
from quantdrift.display import clean, print_json
from quantdrift.statistics import Estimate
from quantdrift.study.allocation.agreement import between_seeds, rank_correlation, with_size
from quantdrift.study.allocation.capture import Captured, capture
from quantdrift.study.allocation.cells import Cell, CorpusCells
from quantdrift.study.allocation.plan import AllocationPlan
from quantdrift.study.allocation.pooling import at_budgets, pooled
from quantdrift.study.allocation.record import AllocationStudy, read_study
from quantdrift.study.allocation.summary import AXES, capture_by_labels, summary

__all__ = ["print_study", "show_studies"]

_ROUNDING = 1e-9


def show_studies(files: Sequence[Path], *, budgets: str | None, json_output: bool) -> None:
    """Print the tables of studies that were written, pooled.

    Args:
        files: that hold them.
        budgets: of which cells are shown, with commas between; all if None.
        json_output: print a JSON object instead.

    Raises:
        QuantDriftError: a file is none, or they are not of one model and one grid.
    """
    studies = [read_study(file) for file in files]
    if budgets is not None:
        wanted = decimals(budgets, "--budgets")
        studies = [at_budgets(study, wanted) for study in studies]
    print_study(studies, json_output=json_output)


def print_study(studies: Sequence[AllocationStudy], *, json_output: bool) -> None:
    """Print the tables of one study, or of several over the same grid.

    Raises:
        QuantDriftError: they are of different models or grids.
    """
    plan, corpora = pooled(studies)
    if json_output:
        found_all = summary(studies[0].model, plan, corpora)
        print_json(found_all)
        return
    out = console(wide=True)
    _print_corpora(out, studies[0].model, plan, corpora)
    found = capture(corpora, plan.criteria)
    _print_capture(out, found, capture_by_labels(plan, corpora))
    for axis, place in AXES.items():
        values = list(
            dict.fromkeys(place(part.corpus, cell) for part in corpora for cell in part.cells)
        )
        if len(values) > 1:
            _print_axis(out, plan, corpora, axis, values)
    _print_agreement(out, plan, corpora)
    out.print(f"\n{_verdict(found)}", soft_wrap=True)


def _print_corpora(
    out: Console, model: str, plan: AllocationPlan, corpora: Sequence[CorpusCells]
) -> None:
    told = f", {plan.group}: answers among the first {plan.depth} documents of each query"
    out.print()
    out.print(headed(model, told))
    table = Table(box=None, pad_edge=False)
    table.add_column("corpus")
    table.add_column("queries", justify="right")
    widths = (plan.low, plan.high)
    for quantizer in plan.quantizers:
        for width in widths:
            table.add_column(f"other first, W{width} {quantizer}", justify="right")
    for corpus in corpora:
        rates = [
            f"{100 * float(np.mean(arm[quantizer] != corpus.reference)):.1f} %"
            for quantizer in plan.quantizers
            for arm in (corpus.low, corpus.high)
        ]
        table.add_row(clean(corpus.corpus), str(len(corpus.query_ids)), *rates)
    out.print(table)


def _print_capture(
    out: Console, flips: Sequence[Captured], others: dict[str, list[Captured]]
) -> None:
    first, n_cells = flips[0].criterion, flips[0].n_cells
    out.print(
        f"\nShare of the wider width's benefit that is kept, pooled over {n_cells} "
        f"cell{'' if n_cells == 1 else 's'} (95 % intervals over queries):",
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("criterion")
    for name in ("flip@1", f"{first} is ahead by", "best in", *others):
        table.add_column(name, justify="right")
    for row, found in enumerate(flips):
        table.add_row(
            found.criterion,
            _ratio(found.ratio),
            "" if found.difference is None else _ratio(found.difference, signed=True),
            f"{found.first_in} of {found.n_cells}",
            *(_ratio(part[row].ratio, short=True) for part in others.values()),
        )
    out.print(table)


def _print_axis(
    out: Console,
    plan: AllocationPlan,
    corpora: Sequence[CorpusCells],
    axis: str,
    values: Sequence[object],
) -> None:
    place = AXES[axis]
    out.print(f"\nThe same for flip@1, by {axis}:")
    table = Table(box=None, pad_edge=False)
    table.add_column("criterion")
    columns = []
    for value in values:
        table.add_column(clean(str(value)), justify="right")
        columns.append(
            capture(
                corpora,
                plan.criteria,
                chosen=partial(_is, place, value),
            )
        )
    for row, criterion in enumerate(plan.criteria):
        table.add_row(criterion, *(_ratio(column[row].ratio, short=True) for column in columns))
    out.print(table)


def _is(place: Callable[[str, Cell], object], value: object, corpus: str, cell: Cell) -> bool:
    return place(corpus, cell) == value


def _print_agreement(out: Console, plan: AllocationPlan, corpora: Sequence[CorpusCells]) -> None:
    first = plan.criteria[0]
    columns: dict[str, Callable[[str], float | None]] = {}
    if len(plan.criteria) > 1:
        columns[f"Spearman with {first}"] = lambda name: rank_correlation(corpora, first, name)
    if len(plan.seeds) > 1:
        columns["same width, two seeds"] = lambda name: between_seeds(corpora, name)
    if len(plan.sizes) > 1:
        most = max(plan.sizes)
        for size in sorted(plan.sizes)[:-1]:
            columns[f"{size} as with {most}"] = partial(
                with_size, corpora, n_queries=size, standard=most
            )
    if not columns:
        return
    out.print("\nHow layers are ranked, and how many get the same width:")
    table = Table(box=None, pad_edge=False)
    table.add_column("criterion")
    for name in columns:
        table.add_column(name, justify="right")
    for criterion in plan.criteria:
        values = [of(criterion) for of in columns.values()]
        table.add_row(criterion, *("-" if value is None else f"{value:.2f}" for value in values))
    out.print(table)


def _verdict(found: Sequence[Captured]) -> str:
    ours = found[0]
    if len(found) == 1:
        return f"{ours.criterion} was compared with nothing"
    if ours.ratio.value is None:
        return f"no criterion is ahead: {ours.ratio.reason}"
    ahead = [part for part in found[1:] if (_value(part.difference) or 0.0) < -_ROUNDING]
    if ahead:
        best = min(ahead, key=lambda part: _value(part.difference) or 0.0)
        assert best.difference is not None  # all but the first have one
        shown = _ratio(best.difference, signed=True)
        return f"{ours.criterion} is not the best: {best.criterion} keeps more ({shown})"
    tied = [
        part.criterion
        for part in found[1:]
        if part.difference is not None and not (part.difference.low or 0.0) > 0
    ]
    if tied:
        return (
            f"{ours.criterion} keeps most; {', '.join(tied)} could still be as good (no interval "
            "is above 0)"
        )
    return f"{ours.criterion} keeps most, beyond chance against every other criterion"


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value


def _ratio(estimate: Estimate, *, signed: bool = False, short: bool = False) -> str:
    sign = "+" if signed else ""
    if estimate.value is None:
        return "-"
    if short or estimate.low is None or estimate.high is None:
        return f"{estimate.value:{sign}.2f}"
    return f"{estimate.value:{sign}.2f} ({estimate.low:{sign}.2f} to {estimate.high:{sign}.2f})"
