"""`quantdrift metrics`: from run folders, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from quantdrift.cli.tables import (
    cell,
    console,
    has_value,
    metric_table,
    one_format,
    print_markdown,
    show,
    show_interval,
)
from quantdrift.display import clean, one_line, print_json, say
from quantdrift.errors import QuantDriftError
from quantdrift.evidence import Evidence
from quantdrift.metrics import Metric, default_metrics, measure, parse_metric
from quantdrift.runs import Run, classifies, find_runs
from quantdrift.statistics import Estimate

OF_MANY = ("flip@1", "separation", "relative.ndcg@10", "gold_lost@1")
OF_MANY_CLASSIFIED = ("flip@1", "separation", "change.accuracy", "coverage@0.10")


def metrics_command(
    paths: Sequence[Path], names: Sequence[str], *, per_input: bool, json_output: bool, markdown: bool
) -> None:
    """Print metrics of one run, or of many as a table with one row per run.

    Args:
        paths: run folders, or folders that hold some.
        names: metric strings; if there are none, the default metrics of one run, or those few of
            many that a table has room for.
        per_input: one row per input, of one run.
        json_output: print one JSON object.
        markdown: print a Markdown table.

    Raises:
        QuantDriftError: no such run or metric, or --per-input for several runs.
    """
    one_format(json_output=json_output, markdown=markdown)
    asked = list(dict.fromkeys(parse_metric(name) for name in names))
    runs = find_runs(paths)
    if len(runs) > 1:
        if per_input:
            raise QuantDriftError(f"--per-input is for one run; got {len(runs)}")
        classified = all(classifies(run.record) for run in runs)
        few = [parse_metric(name) for name in (OF_MANY_CLASSIFIED if classified else OF_MANY)]
        _many(runs, asked or few, json_output=json_output, markdown=markdown)
        return
    run = runs[0]
    evidence = run.evidence()
    if per_input:
        _per_input(evidence, asked or _with_own_values(evidence), json_output=json_output)
        return
    estimates = measure(evidence, asked or None)
    if json_output:
        print_json(_json(run, estimates))
    elif markdown:
        rows = [
            (
                name,
                show(parse_metric(name), estimate),
                show_interval(parse_metric(name), estimate)
                if has_value(estimate)
                else str(estimate.to_json()["reason"]),
                f"{estimate.n:,}",
            )
            for name, estimate in estimates.items()
        ]
        print_markdown(("metric", "value", "95 % interval", "n"), rows)
    else:
        title = f"{run.record['spec']} on {run.record['data']['name']}"
        console().print(metric_table(clean(title), estimates))


def _with_own_values(evidence: Evidence) -> list[Metric]:
    """The default metrics whose values are not another's, and that the stored ranks allow."""
    estimates = measure(evidence)
    return [
        metric
        for metric in default_metrics()
        if metric.family.cutoff_is != "percentile" and estimates[str(metric)].value is not None
    ]


def _json(run: Run, estimates: dict[str, Estimate]) -> dict[str, object]:
    values = {name: estimate.to_json() for name, estimate in estimates.items()}
    data = run.record["data"]["name"]
    return {"path": str(run.path), "data": data, "spec": run.record["spec"], "metrics": values}


def _many(runs: Sequence[Run], chosen: Sequence[Metric], *, json_output: bool, markdown: bool) -> None:
    """One row per run; the interval stands below the value, or behind it in Markdown."""
    if json_output:
        listed = [_json(run, measure(run.evidence(), chosen)) for run in runs]
        print_json({"runs": listed})
        return
    head = ("data", "spec", *(str(metric) for metric in chosen))
    joint = " " if markdown else "\n"
    rows = []
    for run in runs:
        estimates = measure(run.evidence(), chosen)
        cells = [cell(metric, estimate, joint) for metric, estimate in zip(chosen, estimates.values(), strict=True)]
        rows.append((str(run.record["data"]["name"]), str(run.record["spec"]), *cells))
    if markdown:
        print_markdown(head, rows)
        return
    table = Table(show_lines=True)
    table.add_column("run", overflow="fold")
    for name in head[2:]:
        table.add_column(name, justify="right", no_wrap=len(chosen) <= len(OF_MANY))
    for data, spec, *cells in rows:
        table.add_row(f"{clean(spec)}\non {clean(data)}", *cells)
    console(wide=True).print(table)


def _per_input(evidence: Evidence, chosen: Sequence[Metric], *, json_output: bool) -> None:
    columns = {str(metric): metric.per_input(evidence) for metric in chosen}
    if json_output:
        rows = {
            str(name): {
                metric: float(values[row]) if np.isfinite(values[row]) else None for metric, values in columns.items()
            }
            for row, name in enumerate(evidence.input_ids)
        }
        print_json({"inputs": rows})
        return
    say("\t".join(["input_id", *columns]))
    for row, name in enumerate(evidence.input_ids):
        cells = ("" if np.isnan(values[row]) else f"{values[row]:.6g}" for values in columns.values())
        say("\t".join([one_line(str(name)), *cells]))
