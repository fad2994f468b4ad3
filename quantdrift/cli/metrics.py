"""`quantdrift metrics`: from a run folder, without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from quantdrift.cli.tables import console, metric_table
from quantdrift.evidence import Evidence
from quantdrift.metrics import Metric, default_metrics, measure, parse_metric
from quantdrift.runs import read_run

__all__ = ["metrics_command"]


def metrics_command(
    path: Path, names: Sequence[str], *, per_input: bool, json_output: bool
) -> None:
    """Print metrics of a run.

    Args:
        path: run folder.
        names: metric strings; the default metrics if there are none.
        per_input: one row per input.
        json_output: print one JSON object.

    Raises:
        QuantDriftError: no such run or metric.
    """
    chosen = [parse_metric(name) for name in names] or default_metrics()
    run = read_run(path)
    evidence = run.evidence()
    if per_input:
        _per_input(evidence, chosen, json_output=json_output)
        return
    estimates = measure(evidence, chosen)
    if json_output:
        values = {name: estimate.to_json() for name, estimate in estimates.items()}
        print(json.dumps({"spec": run.record["spec"], "metrics": values}, indent=2))
        return
    console().print(metric_table(str(run.record["spec"]), estimates))


def _per_input(evidence: Evidence, chosen: Sequence[Metric], *, json_output: bool) -> None:
    columns = {str(metric): metric.per_input(evidence) for metric in chosen}
    if json_output:
        rows = {
            str(name): {
                metric: float(values[row]) if np.isfinite(values[row]) else None
                for metric, values in columns.items()
            }
            for row, name in enumerate(evidence.input_ids)
        }
        print(json.dumps({"inputs": rows}, indent=2))
        return
    print("\t".join(["input_id", *columns]))
    for row, name in enumerate(evidence.input_ids):
        cells = (
            "" if np.isnan(values[row]) else f"{values[row]:.6g}" for values in columns.values()
        )
        print("\t".join([str(name), *cells]))
