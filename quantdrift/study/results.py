"""What the finished cells of a study say: a row a cell, and schemes compared over all corpora."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, parquet

from quantdrift.ask import State
from quantdrift.base.errors import StudyError
from quantdrift.base.records import whole_file
from quantdrift.compare.corpus_size import SizeEffect, compare_sizes
from quantdrift.compare.pooled import Pooled, adjusted, check_pooled, pool
from quantdrift.evidence.record import Evidence
from quantdrift.metrics import Metric, parse_metric
from quantdrift.metrics.base import estimates
from quantdrift.runs.folder import Run
from quantdrift.runs.identity import classifies, is_part
from quantdrift.spec.grammar import Scheme
from quantdrift.statistics.estimates import Estimate
from quantdrift.study.folder import StudyFolder
from quantdrift.study.plan import Cell

SHOWN = ("flip@1", "gold_lost@1", "change.ndcg@10", "separation")
"""Metrics of a study of searches, where none are asked for."""
SHOWN_OF_CLASSES = ("flip@1", "gold_lost@1", "change.accuracy", "separation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One cell: where it stands, and what was measured where it is done."""

    cell: Cell
    state: State
    run: Run | None
    metrics: dict[str, Estimate]

    @property
    def scheme(self) -> str:
        """The scheme of the candidate, canonical."""
        return str(self.parsed)

    @property
    def parsed(self) -> Scheme:
        """The scheme of the candidate."""
        return self.cell.spec.scheme

    def row(self) -> dict[str, Any]:
        """Give a row of a table: names, bits, then value, low and high of every metric; None where there is none."""
        record = {} if self.run is None else self.run.record
        bits, data = record.get("bits_per_weight") or {}, record.get("data") or {}
        row: dict[str, Any] = {
            "model": self.cell.model,
            "scheme": self.scheme,
            "data": self.cell.data.called,
            "state": self.state,
            "bits": bits.get("linear"),
            "bits_with_scales": bits.get("linear_with_scales"),
            "n_inputs": data.get("n_queries", data.get("n_inputs")),
        }
        for name, estimate in self.metrics.items():
            ends = (estimate.value, estimate.low, estimate.high)
            columns = zip((name, f"{name} low", f"{name} high"), ends, strict=True)
            row |= {column: None if end is None or not isfinite(end) else end for column, end in columns}
        return {**row, "spec": str(self.cell.spec), "run": str(self.run.path) if self.run else None}


def results_of(folder: StudyFolder, metrics: Sequence[Metric] = ()) -> tuple[list[Result], list[Metric]]:
    """Every cell in the order of the study, with metrics computed from its evidence; and these metrics.

    Without metrics they are those that are shown of runs of this kind.
    """
    rows, runs = [], [folder.run(cell) for cell in folder.cells]
    if not metrics:
        done = [run for run in runs if run is not None]
        default = SHOWN_OF_CLASSES if done and all(classifies(run.record) for run in done) else SHOWN
        metrics = [parse_metric(name) for name in default]
    for cell, run in zip(folder.cells, runs, strict=True):
        known = {} if run is None else metrics_of(run.evidence(), metrics)
        rows.append(Result(cell=cell, state="done" if run is not None else folder.state(cell), run=run, metrics=known))
    return rows, list(metrics)


def metrics_of(evidence: Evidence, metrics: Sequence[Metric]) -> dict[str, Estimate]:
    """Metrics by their strings; those of more ranks than are kept are undefined."""
    return dict(zip(map(str, metrics), estimates(metrics, evidence), strict=True))


_TEXTS = {"model", "scheme", "data", "state", "spec", "run", "metric", "quantizer", "criterion", "against"}
_COUNTS = {"n_inputs", "activations", "seed", "size", "points", "best_in", "ahead", "behind"}


def write_table(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows into .csv, or into .parquet, which DuckDB and pandas read.

    Raises:
        StudyError: the name ends in something else, or it cannot be written.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    kinds = [pa.string() if name in _TEXTS else pa.int64() if name in _COUNTS else pa.float64() for name in columns]
    schema = pa.schema(list(zip(columns, kinds, strict=True)))
    table = pa.Table.from_pylist([{name: row.get(name) for name in columns} for row in rows], schema=schema)
    writers = {".csv": csv.write_csv, ".parquet": parquet.write_table}
    if path.suffix.lower() not in writers:
        raise StudyError(f"the name of a table tells its format: expected .csv or .parquet; got {str(path)!r}")
    try:
        with whole_file(path) as partial:
            writers[path.suffix.lower()](table, partial)
    except OSError as error:
        raise StudyError(f"{path} was not written: {error.strerror or error}. Choose another place") from error


# --- one corpus at several sizes ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A scheme on the smallest and on the largest part of a corpus that were measured.

    Attributes:
        model: as the study calls it.
        scheme: of the candidate, canonical.
        corpus: as the study calls it, without a size.
        large: the run on the largest part.
        effect: both compared, query by query.
    """

    model: str
    scheme: str
    corpus: str
    large: Run
    effect: SizeEffect


def sized_of(cells: Iterable[tuple[Cell, Run | None]]) -> list[Sized]:
    """Each scheme on each corpus of which two sizes or more are done."""
    runs_of: dict[tuple[str, str, str], list[Run]] = {}
    for cell, run in cells:
        if run is not None and run.record["data"].get("corpus_size"):
            key = (cell.model, str(cell.spec.scheme), cell.data.corpus)
            runs_of.setdefault(key, []).append(run)
    compared = []
    for (model, scheme, corpus), runs in runs_of.items():
        if len(runs) > 1:
            small, *_, large = sorted(runs, key=lambda run: int(run.record["data"]["corpus_size"]["n"]))
            effect = compare_sizes(small.evidence(), large.evidence())
            compared.append(Sized(model=model, scheme=scheme, corpus=corpus, large=large, effect=effect))
    return compared


# --- schemes compared over all corpora ------------------------------------------------------------


def pooled(results: Sequence[Result], metric: Metric) -> list[Pooled]:
    """Every scheme against the first one of its model, over all whole corpora; the seeds of a scheme are one.

    Raises:
        QuantDriftError: the metric cannot be pooled.
    """
    check_pooled(metric)
    compared = []
    for model in dict.fromkeys(result.cell.model for result in results):
        runs: dict[str, dict[str, list[Run]]] = {}
        for result in results:
            if result.cell.model == model and result.run is not None and not is_part(result.run.record):
                runs.setdefault(_unseeded(result.parsed), {}).setdefault(result.cell.data.called, []).append(result.run)
        first = next(iter(runs), "")
        tests = []
        for scheme, of_scheme in list(runs.items())[1:]:
            strata = {data: (runs[first][data], seeds) for data, seeds in of_scheme.items() if data in runs[first]}
            if test := pool(strata, metric, model=model, scheme=scheme, against=first):
                tests.append(test)
        compared += adjusted(tests, metric)
    return compared


def _unseeded(scheme: Scheme) -> str:
    """The scheme without the seed of its draws."""
    return str(replace(scheme, options=tuple(option for option in scheme.options if option[0] != "seed")))
