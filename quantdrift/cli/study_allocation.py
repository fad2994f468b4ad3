"""`quantdrift study allocation`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quantdrift.cli import Interrupted
from quantdrift.cli.measuring import ModelOptions
from quantdrift.cli.study_tables import print_study
from quantdrift.cli.values import decimals, names, parse_group, refuse_scheme, whole_numbers
from quantdrift.datasets.retrieval import RetrievalDataset, read_beir_folder
from quantdrift.datasets.tasks import load_task
from quantdrift.display import one_line, say
from quantdrift.errors import QuantDriftError
from quantdrift.grammar import CRITERIA
from quantdrift.models.full_precision import full_precision
from quantdrift.study.allocation.cells import CorpusCells
from quantdrift.study.allocation.plan import AllocationPlan
from quantdrift.study.allocation.record import AllocationStudy, check_place, write_study

__all__ = ["StudyOptions", "study_command"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions(ModelOptions):
    """The options of `quantdrift study allocation`, as typed by the user."""

    model: str
    data: Sequence[Path]
    tasks: Sequence[str]
    split: str
    criteria: str | None
    budgets: str
    quantizers: str
    seeds: str
    sizes: str
    held_out: int
    depth: int
    group: str
    solver: str
    out: Path


def study_command(options: StudyOptions) -> None:
    """Measure corpus by corpus, write the study after each, print the tables.

    Raises:
        QuantDriftError: anything wrong with the grid, model, data or disk.
    """
    refuse_scheme(
        options.model,
        "criteria, budgets and quantizers have options of their own; use quantdrift study "
        "allocation {}",
    )
    plan = _plan(options)
    check_place(options.out)
    full_precision(options.model)
    datasets = _datasets(options)
    from quantdrift.study.allocation.grid import study_corpus  # noqa: PLC0415 -- torch

    corpora: list[CorpusCells] = []
    try:
        for dataset in datasets:
            cells = study_corpus(
                options.model,
                dataset,
                plan,
                settings=options.settings,
                store=options.store,
                progress=options.progress,
                device=options.device,
                revision=options.revision,
            )
            corpora.append(cells)
            study = AllocationStudy(model=options.model, plan=plan, corpora=tuple(corpora))
            write_study(options.out, study)
    except KeyboardInterrupt:
        there = f"{options.out} has {len(corpora)} of {len(datasets)} corpora"
        raise Interrupted(
            (there if corpora else f"{options.out} was not written")
            + (
                "; what was answered is kept, and the same command goes on"
                if options.store.root
                else ""
            )
        ) from None
    print_study([study], json_output=options.json_output)
    if not options.json_output:
        say(f"\nstudy: {one_line(str(options.out))}")


def _plan(options: StudyOptions) -> AllocationPlan:
    size = parse_group(options.group)
    return AllocationPlan(
        criteria=CRITERIA if options.criteria is None else names(options.criteria),
        budgets=decimals(options.budgets, "--budgets"),
        quantizers=names(options.quantizers),
        seeds=whole_numbers(options.seeds, "--seeds", least=0),
        sizes=whole_numbers(options.sizes, "--sizes", least=1),
        held_out=options.held_out,
        depth=options.depth,
        group="channel" if size is None else f"g{size}",
        solver=options.solver,
    )


def _datasets(options: StudyOptions) -> list[RetrievalDataset]:
    found = [load_task(name) for name in options.tasks]
    found += [read_beir_folder(folder, options.split) for folder in options.data]
    shown = [dataset.name for dataset in found]
    if not found:
        raise QuantDriftError(
            "expected --task NAME (quantdrift list tasks) or --data FOLDER (BEIR layout), once or "
            "several times"
        )
    if len(set(shown)) < len(shown):
        raise QuantDriftError(f"expected corpora of different names; got {', '.join(shown)}")
    return found
