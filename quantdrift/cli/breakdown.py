"""`quantdrift breakdown`: metrics within buckets of inputs, without torch."""

from __future__ import annotations

from pathlib import Path

from quantdrift.base.text import counted
from quantdrift.cli.options import METRIC, RUNS, argument, decimals, option, prints
from quantdrift.compare.buckets import breakdown, range_words
from quantdrift.metrics import parse_metric
from quantdrift.metrics.numbers import cell
from quantdrift.runs.folder import find_runs, refuse_copies
from quantdrift.show.output import Shown
from quantdrift.show.tables import Grid
from quantdrift.statistics.estimates import as_json

_DEFAULT = ("flip@1", "harm", "benefit")


@prints("json", "markdown")
def command(
    *,
    runs: list[Path] = argument(RUNS),
    by: str = option("NAME: separation, contenders, or any other metric.", default="separation"),
    metric: list[str] | None = option(METRIC),
    edges: str | None = option(
        "A,B,...: Where buckets begin, e.g. 0,0.1,1; the last has no upper end. The paper's for separation and "
        "contenders, quartiles for others, if not given."
    ),
) -> Shown:
    """Sort inputs into buckets, and compute metrics in each: which inputs change, which are harmed.

    Without -m these are flip@1, harm and benefit. Several runs are pooled: every input of every run counts once.
    """
    sorted_by = parse_metric(by)
    metrics = list(dict.fromkeys(parse_metric(name) for name in metric or _DEFAULT))
    starts = None if edges is None else decimals(edges, "--edges", "0,0.1,1")
    found = find_runs(runs)
    refuse_copies(found)
    evidence = [run.evidence() for run in found]
    buckets = breakdown(evidence, by=sorted_by, metrics=metrics, edges=starts)
    rows = [[range_words(each.where), f"{each.n:,}", *map(cell, metrics, each.estimates.values())] for each in buckets]
    outside = sum(one.n_inputs for one in evidence) - sum(bucket.n for bucket in buckets)
    note = f"{outside:,} inputs are in no bucket: below the first edge, or without a value of {sorted_by}."
    return Shown(
        data={
            "runs": [str(run.path) for run in found],
            "by": by,
            "buckets": [
                as_json({"low": each.where.low, "high": each.where.high, "n": each.n, "metrics": each.estimates})
                for each in buckets
            ],
        },
        title=f"{counted(len(found), 'run')}, 95 % intervals",
        grids=[Grid(head=[by, "inputs", *map(str, metrics)], rows=rows)],
        lines=[note] if outside else [],
    )
