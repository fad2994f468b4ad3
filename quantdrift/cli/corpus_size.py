"""`quantdrift corpus-size`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from quantdrift.cli import Interrupted
from quantdrift.cli.places import default_place
from quantdrift.cli.run import RunOptions, dataset_of
from quantdrift.cli.tables import cell, console, headed, noted, show
from quantdrift.compare.corpus_size import SizeEffect, compare_sizes
from quantdrift.display import print_json
from quantdrift.engine.refusals import check_pair
from quantdrift.metrics import measure, parse_metric
from quantdrift.records import check_writable
from quantdrift.runs import Run
from quantdrift.spec import parse

SHOWN = ("flip@1", "separation", "at_risk", "epsilon", "gap")
WITH_INTERVAL = SHOWN[:2]
"""The two that are compared; the table has no room for the intervals of all."""


def corpus_size_command(options: RunOptions, sizes: str | None) -> None:
    """Measure at every size, write a run folder for each, print the table and what it says.

    Args:
        options: as of `quantdrift run`; `out` is the folder that holds the runs.
        sizes: as typed; `default_sizes` if None.

    Raises:
        QuantDriftError: anything wrong with sizes, spec, data, model or disk.
    """
    spec = parse(options.spec)
    dataset = dataset_of(options)
    check_pair(spec, dataset)
    out = options.out or default_place(spec, dataset, "_by_corpus_size")
    check_writable(out / "docs", what="the runs")
    # torch, after all that needs none
    from quantdrift.engine.sizes import default_sizes, parse_sizes, run_sizes  # noqa: PLC0415

    n_documents = len(dataset.document_ids)
    numbers = default_sizes(n_documents) if sizes is None else parse_sizes(sizes, n_documents)
    try:
        runs = run_sizes(
            spec,
            dataset,
            out=out,
            sizes=numbers,
            settings=options.settings,
            store=options.store,
            progress=options.progress,
            device=options.device,
            revision=options.revision,
        )
    except KeyboardInterrupt:
        raise Interrupted("run folders that are there are whole" + options.kept) from None
    effect = compare_sizes(runs[0].evidence(), runs[-1].evidence())
    if options.json_output:
        records = [{**run.record, "path": str(run.path)} for run in runs]
        found = {"runs": records, "effect": effect.to_json()}
        print_json(found)
    else:
        _print(runs, effect)


def _print(runs: Sequence[Run], effect: SizeEffect) -> None:
    record, out = runs[-1].record, console(wide=True)
    size = record["data"]["corpus_size"]
    parts = f"parts of {size['of']:,} documents drawn with seed {size['seed']}"
    told = f" on {size['corpus']}: {record['data']['n_queries']:,} queries, {parts}"
    out.print()
    out.print(headed(record["spec"], told))
    for warning in record["data"]["warnings"]:
        out.print(noted(warning))
    out.print(_table(runs))
    out.print("Rates and medians; in brackets 95 % intervals.")
    if size["relevant_inside"] is not None:
        out.print("Relevant inside: queries with all, some and none of their relevant documents there.")
    for line in effect.explain():
        out.print(line)
    folder = runs[0].path.parent
    out.print(f"\nrun folders: {folder}", soft_wrap=True)
    out.print(f"more metrics: quantdrift metrics {folder}", soft_wrap=True)


def _table(runs: Sequence[Run]) -> Table:
    table = Table()
    table.add_column("documents", justify="right", no_wrap=True)
    labelled = runs[0].record["data"]["corpus_size"]["relevant_inside"] is not None
    if labelled:
        table.add_column("relevant inside\nall / some / none", justify="right", no_wrap=True)
    for name in SHOWN:
        table.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        size = run.record["data"]["corpus_size"]
        cells = [f"{size['n']:,}"]
        if labelled:
            cells.append(" / ".join(f"{count:,}" for count in size["relevant_inside"].values()))
        estimates = measure(run.evidence(), [parse_metric(name) for name in SHOWN])
        for name, estimate in estimates.items():
            told = cell if name in WITH_INTERVAL else show
            cells.append(told(parse_metric(name), estimate).replace(" (", "\n("))
        table.add_row(*cells)
    return table
