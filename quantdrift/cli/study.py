"""`quantdrift study`: measure many runs from one file; the same command resumes them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quantdrift.base.display import note
from quantdrift.base.errors import StudyError
from quantdrift.base.paths import RUNS
from quantdrift.base.text import counted, percent
from quantdrift.cli.options import (
    LIMIT,
    MEAN_TOLERANCE,
    METRIC,
    TOLERANCE,
    OnCells,
    Streaming,
    argument,
    flag,
    option,
    prints,
    share_option,
    tolerances_given,
)
from quantdrift.cli.studying import measured
from quantdrift.compare.corpus_size import SizeEffect
from quantdrift.compare.pooled import Pooled, in_words
from quantdrift.metrics import Metric, parse_metric
from quantdrift.metrics.numbers import show_p
from quantdrift.runs.verdict import verdict
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, Grid, records, table, write_table
from quantdrift.statistics.estimates import as_json
from quantdrift.study.folder import STUDY, StudyFolder, open_study
from quantdrift.study.plan import Study, read_study
from quantdrift.study.results import Sized, columns_of, results_of, sized_of
from quantdrift.study.results import pooled as pooled_of
from quantdrift.study.suites import load_suite

FOLDER = "STUDY: The folder of a study, or its study.yaml."
OUT = "FOLDER: The folder of the study, if its study.yaml was run with --out."


@dataclass(frozen=True, kw_only=True)
class Running(Streaming, OnCells):
    """The options of `quantdrift study run`."""

    file: Path | None = argument("STUDY: The study.yaml.", default=None)
    suite: str | None = option(
        "NAME: Instead of a study.yaml, a built-in study, such as those of the paper: quantdrift list suites."
    )
    offline: bool = flag("The small variant of the suite, which downloads nothing.")
    models: list[str] | None = option("--models NAME: A model instead of the suite's own; may be repeated.")
    data: list[str] | None = option("--data DATA: A folder or task instead of the suite's own; may be repeated.")
    out: Path | None = option(
        "FOLDER: The folder of the study; by default quantdrift-runs/NAME, with the name of the file or suite."
    )
    limit: int | None = option(LIMIT, min=1)
    cache: bool = option("Keep embeddings and quantized layers on disk and reuse them in later runs.", default=True)


@prints("json", "markdown")
def run(options: Running) -> Output:
    """Measure every cell of a study: models x schemes x data x seeds.

    The open cells are printed first. Then every cell becomes a run folder, FOLDER/cells/NAME. The same command resumes
    the study after Ctrl-C or a crash: finished cells are not measured again, and two processes may share the work. If a
    cell fails, its reason is kept, and the others are measured.

    \b
    A study.yaml:
        models: [minilm, ./my-model]
        schemes: [W8, W4, W4-gptq, W3-g64-hqq]
        data: [./cranfield, PythonDocsRetrieval]
        seeds: [0, 1]                       # for schemes that draw calibration data
        settings: {k: 200, batch_size: 32}
        exclude: [{model: my-model, scheme: "W8*"}]

    \b
    Without a file:
        quantdrift study run --suite text --models minilm --data ./cranfield
    """
    return _measured(options, again=False)


@prints("json", "markdown")
def retry(options: Running) -> Output:
    """Measure the failed cells again, and those that are open."""
    return _measured(options, again=True)


@prints("json", "markdown")
def status(*, study: Path = argument(FOLDER), out: Path | None = option(OUT)) -> Output:
    """Show which cells are done, open, running or failed, and why."""
    folder = _opened(study, out)
    failures = {cell.name: failed.reason for cell in folder.cells if (failed := folder.failure(cell)) is not None}
    states = {cell.name: folder.state(cell) for cell in folder.cells}
    columns = [
        Column("model", "model", kind="words", key=""),
        Column("scheme", lambda cell: str(cell.spec).rpartition("@")[2], kind="words"),
        Column("data", "data.called", kind="words", key=""),
        Column("", "name"),
        Column("state", lambda cell: states[cell.name], kind="words", key="state"),
        Column("why", lambda cell: failures.get(cell.name), lambda reason: reason or "", kind="words", key="reason"),
    ]
    counts = Counter(states.values())
    return Output(
        data={"path": str(folder.path), "cells": records(columns, folder.cells)},
        title=f"{folder.path}: {', '.join(f'{n:,} {state}' for state, n in counts.items())} of {len(states):,} cells",
        grids=[table(columns, folder.cells)],
    )


@prints("json", "markdown")
def results(
    *,
    study: Path = argument(FOLDER),
    out: Path | None = option(OUT),
    metric: list[str] | None = option(METRIC),
    pooled: str | None = option(
        "METRIC: Also compare every scheme with the first one over all corpora, by a metric such as flip@1 or ndcg@10."
    ),
    tolerance: float | None = share_option(TOLERANCE),
    mean_tolerance: float | None = share_option(MEAN_TOLERANCE),
    file: Path | None = option("--table FILE: Write one row per cell into a .csv or .parquet file."),
) -> Output:
    """Show the metrics of the finished cells, and with --pooled which schemes are worse over all corpora."""
    folder = _opened(study, out)
    cells, metrics = results_of(folder, [parse_metric(name) for name in dict.fromkeys(metric or ())])
    columns = columns_of(metrics)
    if file is not None:
        write_table(columns, cells, file)
        note(f"wrote {file}")
    done = [result for result in cells if result.run is not None]
    given = tolerances_given(tolerance, mean_tolerance)
    judged = Column("verdict", "run", lambda run: verdict(run.record, given).word, kind="words")
    grids = [table([*columns, judged], done)]
    sized = sized_of((result.cell, result.run) for result in cells)
    grids += [_sizes(sized)] if sized else []
    compared = [] if pooled is None else pooled_of(cells, parse_metric(pooled))
    if pooled is not None:
        grids.append(_pooled(parse_metric(pooled), compared))
    missing = Counter(result.state for result in cells if result.run is None)
    lines = [f"{n:,} {'cell is' if n == 1 else 'cells are'} {state}" for state, n in missing.items()]
    if folder.record.capture is not None:
        lines.append(f"the comparison of criteria, from a checkout: python -m quantdrift_paper capture {folder.path}")
    elif done and file is None:
        lines.append("to get 95 % intervals: --table FILE.csv, or --json")
    return Output(
        data={
            "path": str(folder.path),
            "cells": records(columns, cells),
            "pooled": as_json(compared),
            "corpus_sizes": [
                {"model": row.model, "scheme": row.scheme, "corpus": row.corpus, **as_json(row.effect)} for row in sized
            ],
        },
        title=f"{folder.path}: {counted(len(done), 'run')}",
        grids=grids,
        lines=lines,
    )


def _sizes(sized: Sequence[Sized]) -> Grid:
    def rates(effect: SizeEffect) -> str:
        return " to ".join(percent(flips / effect.n, 1) for flips in (effect.flip_small, effect.flip_large))

    def separations(effect: SizeEffect) -> str:
        ends = (effect.separation_small, effect.separation_large)
        return " to ".join("-" if value is None else f"{value:.3f}" for value in ends)

    columns = [
        Column("scheme", lambda row: f"{row.model} {row.scheme}", kind="words"),
        Column("corpus", "corpus", kind="words"),
        Column("documents", "effect", lambda effect: f"{effect.small:,} to {effect.large:,}"),
        Column("flip@1", "effect", rates),
        Column("p (McNemar)", "effect.p_flip", show_p),
        Column("separation", "effect", separations),
        Column("p (sign)", "effect.p_separation", show_p),
    ]
    lines = ["the same queries on the smallest and the largest part of a corpus; each part contains the smaller ones"]
    return table(columns, sized, title="Effect of the corpus size", lines=lines)


def _pooled(metric: Metric, compared: Sequence[Pooled]) -> Grid:
    factor, digits, units = (100, 1, (", %", ", pp")) if metric.unit == "rate" else (1, 4, ("", ""))

    def spread(value: float, error: float | None, sign: str = "") -> str:
        return f"{factor * value:{sign}.{digits}f}" + (f" ± {factor * error:.{digits}f}" if error else "")

    def corpora(row: Pooled) -> str:
        seeds = f" x {row.n_seeds} seeds" if row.n_seeds > 1 else ""
        return f"{row.n_corpora}{seeds}, worse on {row.corpora_worse}"

    def interval(row: Pooled) -> str:
        return f"{spread(row.low, None, '+')} to {spread(row.high, None, '+')}"

    columns = [
        Column("scheme", lambda row: f"{row.model} {row.scheme}", kind="words"),
        Column("corpora", corpora),
        Column(f"{metric}{units[0]} ± s.e.", lambda row: spread(row.mean, row.se)),
        Column(f"difference{units[1]} ± s.e.", lambda row: spread(row.difference, row.difference_se, "+")),
        Column("95 % interval", interval),
        Column("worse : better", lambda row: f"{row.worse:,} : {row.better:,}"),
        Column("p (Holm)", "p_holm", show_p),
        Column("verdict", "verdict", kind="words"),
    ]
    tests = " or ".join(sorted({row.test for row in compared})) or "paired"
    lines = [
        *in_words(compared, metric),
        *(f"Note: {row.model} {row.scheme}: {note}." for row in compared for note in row.notes),
        f"s.e. over corpora; intervals by resampling the inputs of each corpus; p-values of the {tests} test",
    ]
    against = compared[0].against if compared else "the first scheme"
    return table(columns, compared, title=f"{metric} against {against}", lines=lines)


# --- running --------------------------------------------------------------------------------------


def _measured(options: Running, *, again: bool) -> Output:
    study, name = _asked_for(options)
    if options.limit is not None:
        data = [entry.model_copy(update={"limit": options.limit}) for entry in study.data]
        study, name = study.model_copy(update={"data": data}), f"{name}_first{options.limit}"
    return measured(study, options.out or RUNS / name, options, again=again, **options.streaming)


def _asked_for(options: Running) -> tuple[Study, str]:
    """The study that the options name, and the name of its folder."""
    if (options.file is None) == (options.suite is None):
        raise StudyError("expected either a study.yaml or --suite NAME; quantdrift list suites shows all suites")
    if options.suite is not None:
        suite = load_suite(options.suite)
        study = suite.study(offline=options.offline, models=options.models or (), data=options.data or ())
        suite.refuse_missing(study)
        return study, f"{suite.name}-offline" if options.offline else suite.name
    if options.offline or options.models or options.data:
        raise StudyError("--offline, --models and --data are for a suite; leave them out with a study.yaml")
    assert options.file is not None  # checked above
    return read_study(options.file), options.file.stem


def _opened(study: Path, out: Path | None) -> StudyFolder:
    """Open the folder of a study, which may be named by its study.yaml."""
    if study.suffix in {".yaml", ".yml"}:
        return open_study(out or RUNS / study.stem)
    if out is not None:
        raise StudyError(f"expected --out with a study.yaml; got it with {study}, which is a folder")
    if not (study / STUDY).is_file() and study.name != STUDY:
        raise StudyError(f"expected the folder of a study, with {STUDY}, or its study.yaml; got {study}")
    return open_study(study)


COMMANDS = {"run": run, "status": status, "results": results, "retry": retry}
