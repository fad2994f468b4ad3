"""`quantdrift breakdown`: metrics within buckets of inputs, without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from quantdrift.cli.tables import cell, console, one_format, print_markdown
from quantdrift.compare.buckets import Bucket, breakdown
from quantdrift.display import print_json
from quantdrift.errors import QuantDriftError
from quantdrift.evidence import Evidence
from quantdrift.metrics import Metric, parse_metric
from quantdrift.metrics.relevance import judged
from quantdrift.runs import Run, find_runs, refuse_copies

DEFAULT = ("flip@1", "harm", "benefit")


def breakdown_command(
    paths: Sequence[Path], *, by: str, names: Sequence[str], edges: str | None, json_output: bool, markdown: bool
) -> None:
    """Print one row per bucket, over the inputs of all runs.

    Args:
        paths: run folders, or folders that hold some.
        by: metric string of what the inputs are sorted by.
        names: metric strings; flip@1, harm and benefit if there are none.
        edges: where buckets begin, separated by commas.
        json_output: print one JSON object.
        markdown: print a Markdown table.

    Raises:
        QuantDriftError: no such run or metric, or edges that cannot be read.
    """
    one_format(json_output=json_output, markdown=markdown)
    sorted_by = parse_metric(by)
    metrics = list(dict.fromkeys(parse_metric(name) for name in names or DEFAULT))
    starts = None if edges is None else _edges(edges)
    runs = find_runs(paths)
    refuse_copies(runs)
    evidence = [run.evidence() for run in runs]
    buckets = breakdown(evidence, by=sorted_by, metrics=metrics, edges=starts)
    if json_output:
        print_json(_json([str(run.path) for run in runs], by, buckets))
        return
    head = [by, "inputs", *(str(metric) for metric in metrics)]
    rows = [
        [
            _range(bucket),
            f"{bucket.n:,}",
            *(cell(metric, estimate) for metric, estimate in zip(metrics, bucket.estimates.values(), strict=True)),
        ]
        for bucket in buckets
    ]
    if markdown:
        print_markdown(head, rows)
        return
    table = Table(title=f"{_count(len(runs), 'run')}, 95 % intervals", title_justify="left")
    for position, name in enumerate(head):
        table.add_column(name, justify="right" if position else "left", no_wrap=not position)
    for row in rows:
        table.add_row(*row)
    console(wide=True).print(table)
    for note in _notes(runs, evidence, buckets, metrics):
        console().print(note)


def _notes(
    runs: Sequence[Run], group: Sequence[Evidence], buckets: Sequence[Bucket], metrics: Sequence[Metric]
) -> list[str]:
    """What to know before reading the table."""
    notes = []
    outside = sum(one.n_inputs for one in group) - sum(bucket.n for bucket in buckets)
    if outside:
        notes.append(
            f"{outside:,} inputs are in no bucket: below the first edge, or without a value of {buckets[0].where.by}."
        )
    labelled = [str(metric) for metric in metrics if metric.family.needs_labels]
    unjudged = sum(int((~judged(one)).sum()) for one in group)
    if labelled and unjudged:
        notes.append(f"{unjudged:,} inputs without a relevance judgement are in no {' or '.join(labelled)}.")
    corpora = [run.record["data"].get("fingerprint") or run.path for run in runs]
    if len(set(corpora)) < len(corpora):
        notes.append(
            "The inputs of one corpus count once per run, though they are the same inputs: the "
            "intervals are narrower than they should be."
        )
    return notes


def _edges(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise QuantDriftError(f"expected numbers separated by commas, e.g. --edges 0,0.1,1; got {text!r}") from None


def _range(bucket: Bucket) -> str:
    where = bucket.where
    low, high = f"{where.low:.4g}", f"{where.high:.4g}"
    if math.isinf(where.high):
        return f"{low} or more"
    if where.by.unit not in {"items", "rank"}:
        return f"{low} to below {high}"
    last = math.ceil(where.high) - 1
    return low if last <= where.low else f"{low} to {last}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _json(paths: list[str], by: str, buckets: Sequence[Bucket]) -> dict[str, object]:
    return {
        "runs": paths,
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
    }
