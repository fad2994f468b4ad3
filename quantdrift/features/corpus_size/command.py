"""`quantdrift corpus-size`: one pair on growing parts of one corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quantdrift.cli.measuring import default_place
from quantdrift.cli.options import DATA, SPEC, SPLIT, TASK, Measuring, argument, corpus, option, prints
from quantdrift.show.output import Shown
from quantdrift.show.tables import Grid
from quantdrift.spec.grammar import parse

if TYPE_CHECKING:
    from quantdrift.runs.folder import Run

_METRICS = ("flip@1", "separation", "at_risk", "epsilon", "gap")
_WITH_INTERVAL = _METRICS[:2]
"""The two that are compared; the table has no room for the intervals of all."""


@dataclass(frozen=True, kw_only=True)
class SizeOptions(Measuring):
    """The options of `quantdrift corpus-size`."""

    spec: str = argument(SPEC)
    data: Path | None = option(DATA)
    task: str | None = option(TASK)
    split: str = option(SPLIT, default="test")
    sizes: str | None = option(
        "N,N,...: Corpus sizes in rising order, such as 250,1000,all; by default an eighth, a quarter, a half and"
        " all of the corpus."
    )
    out: Path | None = option(
        "FOLDER: Folder for the run folders, one per size; by default quantdrift-runs/SPEC_on_DATA_by_corpus_size."
    )
    noise_floor: bool = option("Run the reference a second time at the largest size.", default=False)
    seed: int = option("Random seed for drawing the parts of the corpus, and for the noise floor.", default=0, min=0)


@prints("json")
def command(options: SizeOptions) -> Shown:
    """Compare a model with its quantized self on growing parts of one corpus, same queries.

    Every part contains the smaller ones, and embeddings are computed once. One run folder is written per size, and an
    exact McNemar test compares the smallest with the largest.
    """
    spec = parse(options.spec)
    dataset = corpus(options.data, options.task, options.split)
    from quantdrift.base.records import check_writable
    from quantdrift.compare.corpus_size import compare_sizes
    from quantdrift.engine.refusals import check_pair
    from quantdrift.engine.sizes import default_sizes, parse_sizes

    check_pair(spec, dataset)
    out, n = options.out or default_place(spec, dataset, "_by_corpus_size"), len(dataset.document_ids)
    check_writable(out / "docs", what="the runs")
    sizes = default_sizes(n) if options.sizes is None else parse_sizes(options.sizes, n)
    from quantdrift.engine.run import run_sizes

    with options.stoppable("run folders that are there are whole"):
        runs = run_sizes(spec, dataset, out=out, sizes=sizes, **options.how)
    effect = compare_sizes(runs[0].evidence(), runs[-1].evidence())
    record = runs[-1].record
    size = record["data"]["corpus_size"]
    return Shown(
        data={"runs": [{**run.record, "path": str(run.path)} for run in runs], "effect": effect.to_json()},
        title=f"{record['spec']} on {size['corpus']}: {record['data']['n_queries']:,} queries, parts of "
        f"{size['of']:,} documents drawn with seed {size['seed']}",
        about=[f"note: {warning}" for warning in record["data"]["warnings"]],
        grids=[_grid(runs)],
        lines=["Rates and medians; in brackets 95 % intervals.", *effect.explain()],
        next=[f"\nrun folders: {out}", f"more metrics: quantdrift metrics {out}"],
    )


def _grid(runs: Sequence[Run]) -> Grid:
    from quantdrift.metrics import measure, parse_metric
    from quantdrift.metrics.numbers import cell, show

    inside = "queries with all / some / no relevant documents inside"
    labelled = runs[0].record["data"]["corpus_size"]["relevant_inside"] is not None
    rows = []
    for run in runs:
        size = run.record["data"]["corpus_size"]
        row = [f"{size['n']:,}"]
        if labelled:
            row.append(" / ".join(f"{count:,}" for count in size["relevant_inside"].values()))
        for name, estimate in measure(run.evidence(), _METRICS).items():
            row.append((cell if name in _WITH_INTERVAL else show)(parse_metric(name), estimate))
        rows.append(row)
    head = ["documents", *([inside] if labelled else []), *_METRICS]
    return Grid(head=head, rows=rows, stacked=True, words={inside})
