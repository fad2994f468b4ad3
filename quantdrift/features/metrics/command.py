"""`quantdrift metrics`: compute metrics from run folders, without torch."""

from operator import attrgetter, itemgetter
from pathlib import Path

import numpy as np

from quantdrift.base.display import one_line
from quantdrift.base.errors import QuantDriftError
from quantdrift.base.text import counted
from quantdrift.cli.options import METRIC, RUNS, argument, option, prints
from quantdrift.compare.buckets import breakdown, range_words
from quantdrift.evidence.record import Evidence
from quantdrift.metrics import Metric, default_metrics, measure, parse_metric
from quantdrift.runs.folder import Run, find_runs, refuse_copies
from quantdrift.runs.identity import classifies
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, metric_columns, metric_grid, records, table
from quantdrift.statistics.estimates import as_json

_OF_MANY = ("flip@1", "separation", "relative.ndcg@10", "gold_lost@1")
_OF_BUCKETS = ("flip@1", "harm", "benefit")
_OF_MANY_CLASSIFIED = ("flip@1", "separation", "change.accuracy", "coverage@0.10")


@prints("json", "markdown")
def command(
    *,
    runs: list[Path] = argument(RUNS),
    metric: list[str] | None = option(METRIC),
    per_input: bool = option("Show one row per input instead of the mean or median.", default=False),
    by: str | None = option(
        "NAME: Put inputs into buckets by separation or contenders (the paper's), or any other metric (quartiles), and "
        "compute metrics in each."
    ),
) -> Output:
    """Compute metrics from run folders, without the model and without torch.

    Of one run you see every metric with its interval and meaning; of several, one row per run. The default metrics of
    several runs are flip@1, separation, relative.ndcg@10 and gold_lost@1, with change.accuracy and coverage@0.10 in
    place of the last two if all runs are on classification data. With --by all inputs of all runs are put together, and
    the default metrics are flip@1, harm and benefit.

    For example: quantdrift metrics RUN -m gold_lost@3 -m flip@1:separation=0..0.05

    More: docs/reference/metrics.md
    """
    if by is not None and per_input:
        raise QuantDriftError("expected one of --per-input and --by")
    chosen = list(dict.fromkeys(parse_metric(name) for name in metric or ()))
    measured_runs = find_runs(runs)
    if per_input:
        if len(measured_runs) > 1:
            raise QuantDriftError(f"--per-input is for one run; got {len(measured_runs)}")
        return _per_input(measured_runs[0].evidence(), chosen)
    if by is not None:
        return _in_buckets(measured_runs, by, chosen or [parse_metric(name) for name in _OF_BUCKETS])
    if len(measured_runs) > 1:
        classified = all(classifies(run.record) for run in measured_runs)
        chosen = chosen or [parse_metric(name) for name in (_OF_MANY_CLASSIFIED if classified else _OF_MANY)]
    measured = [(run, measure(run.evidence(), chosen or None)) for run in measured_runs]
    columns = [
        Column("", lambda row: str(row[0].path), key="path"),
        Column("data", lambda row: row[0].record["data"]["name"], kind="words", key="data"),
        Column("spec", lambda row: row[0].record["spec"], kind="words", key="spec"),
        Column("", itemgetter(1), key="metrics"),
        *metric_columns(chosen, itemgetter(1)),
    ]
    data = records(columns, measured)
    if len(data) == 1:
        title = f"{data[0]['spec']} on {data[0]['data']}"
        return Output(data=data[0], grids=[metric_grid(measured[0][1], title)])
    return Output(data={"runs": data}, grids=[table(columns, measured, stacked=True)])


def _in_buckets(runs: list[Run], by: str, metrics: list[Metric]) -> Output:
    refuse_copies(runs)
    evidence = [run.evidence() for run in runs]
    buckets = breakdown(evidence, by=parse_metric(by), metrics=metrics)
    columns = [
        Column(by, "where", range_words, key=""),
        Column("", "where.low", key="low"),
        Column("", "where.high", key="high"),
        Column("inputs", "n", "{:,}".format),
        Column("", "estimates", key="metrics"),
        *metric_columns(metrics, attrgetter("estimates")),
    ]
    outside = sum(part.n_inputs for part in evidence) - sum(bucket.n for bucket in buckets)
    note = f"{outside:,} inputs are in no bucket: below the first edge, or without a value of {by}."
    return Output(
        data={"runs": [str(run.path) for run in runs], "by": by, "buckets": records(columns, buckets)},
        title=f"{counted(len(runs), 'run')}, 95 % intervals",
        grids=[table(columns, buckets)],
        lines=[note] if outside else [],
    )


def _per_input(evidence: Evidence, chosen: list[Metric]) -> Output:
    if not chosen:  # metrics with values of their own that the stored ranks allow
        estimates = measure(evidence)
        chosen = [
            metric
            for metric in default_metrics()
            if metric.family.cutoff_is != "percentile" and estimates[str(metric)].value is not None
        ]
    columns = [metric.per_input(evidence).astype(float).tolist() for metric in chosen]
    names, rows = map(str, evidence.input_ids), zip(*columns, strict=True)
    values = {name: dict(zip(map(str, chosen), row, strict=True)) for name, row in zip(names, rows, strict=True)}
    lines = [["input_id", *map(str, chosen)]]
    for name, row in values.items():
        lines.append([one_line(name), *("" if np.isnan(value) else f"{value:.6g}" for value in row.values())])
    return Output(data={"inputs": as_json(values)}, text="\n".join(map("\t".join, lines)))
