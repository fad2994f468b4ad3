"""`quantdrift breakdown`: metrics within buckets of inputs, without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from quantdrift.cli.options import METRIC, RUNS, argument, decimals, option, prints
from quantdrift.cli.output import Grid, Shown, counted
from quantdrift.compare.buckets import Bucket, breakdown
from quantdrift.evidence import Evidence
from quantdrift.metrics import Metric, parse_metric
from quantdrift.metrics.numbers import cell
from quantdrift.metrics.relevance import judged
from quantdrift.runs import Run, find_runs, refuse_copies

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
    rows = [
        [
            _range(bucket),
            f"{bucket.n:,}",
            *(cell(each, estimate) for each, estimate in zip(metrics, bucket.estimates.values(), strict=True)),
        ]
        for bucket in buckets
    ]
    return Shown(
        data={
            "runs": [str(run.path) for run in found],
            "by": by,
            "buckets": [
                {
                    "low": bucket.where.low,
                    "high": None if math.isinf(bucket.where.high) else bucket.where.high,
                    "n": bucket.n,
                    "metrics": {name: estimate.to_json() for name, estimate in bucket.estimates.items()},
                }
                for bucket in buckets
            ],
        },
        title=f"{counted(len(found), 'run')}, 95 % intervals",
        grids=[Grid(head=[by, "inputs", *map(str, metrics)], rows=rows)],
        lines=list(_notes(found, evidence, buckets, metrics)),
    )


def _notes(
    runs: Sequence[Run], group: Sequence[Evidence], buckets: Sequence[Bucket], metrics: Sequence[Metric]
) -> Iterator[str]:
    """What to know before reading the table."""
    outside = sum(one.n_inputs for one in group) - sum(bucket.n for bucket in buckets)
    if outside:
        by = buckets[0].where.by
        yield f"{outside:,} inputs are in no bucket: below the first edge, or without a value of {by}."
    labelled = [str(metric) for metric in metrics if metric.family.needs_labels]
    unjudged = sum(int((~judged(one)).sum()) for one in group)
    if labelled and unjudged:
        yield f"{unjudged:,} inputs without a relevance judgement are in no {' or '.join(labelled)}."
    corpora = [run.record["data"].get("fingerprint") or run.path for run in runs]
    if len(set(corpora)) < len(corpora):
        yield (
            "The inputs of one corpus count once per run, though they are the same inputs: the intervals are narrower "
            "than they should be."
        )


def _range(bucket: Bucket) -> str:
    where = bucket.where
    low, high = f"{where.low:.4g}", f"{where.high:.4g}"
    if math.isinf(where.high):
        return f"{low} or more"
    if where.by.unit not in {"items", "rank"}:
        return f"{low} to below {high}"
    last = math.ceil(where.high) - 1
    return low if last <= where.low else f"{low} to {last}"
