"""`quantdrift study`: many runs from one file, that go on where they were stopped."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from quantdrift.ask import State
from quantdrift.base.display import clean, duration, note
from quantdrift.base.errors import DiskError, StudyError
from quantdrift.base.progress import Progress, Silent, Terminal
from quantdrift.base.text import counted, percent
from quantdrift.cli import Interrupted
from quantdrift.cli.options import ENGINE, KEEP, METRIC, WORKERS, argument, flag, option, prints
from quantdrift.cli.run import RUNS
from quantdrift.show.output import Shown
from quantdrift.show.tables import Grid
from quantdrift.study.folder import (
    STUDY,
    FailedCell,
    PlannedCell,
    StudyFolder,
    StudyKind,
    check_folder,
    open_study,
    plan_into,
)
from quantdrift.study.plan import Cell, Study, cells_of, read_study
from quantdrift.study.sources import Data, fingerprint_of
from quantdrift.study.suites import load_suite

if TYPE_CHECKING:
    from quantdrift.compare.pooled import Pooled
    from quantdrift.engine.study import Work
    from quantdrift.metrics import Metric
    from quantdrift.study.results import Sized

FILE = "STUDY: The study.yaml."
FOLDER = "STUDY: The folder of a study, or its study.yaml."
OUT = "FOLDER: Where the study lies, if its study.yaml was run with --out."


@dataclass(frozen=True, kw_only=True)
class Running:
    """The options of `quantdrift study run`."""

    file: Path | None = argument(FILE, default=None)
    suite: str | None = option(
        "NAME: In place of a study.yaml, a study that has a name, such as those of the paper: quantdrift list suites."
    )
    offline: bool = flag("Of a suite: its small variant of what is at hand, without a hub.")
    models: list[str] | None = option("--models NAME: Of a suite: your model in place of its own; may be repeated.")
    data: list[str] | None = option("--data DATA: Of a suite: your folder or task in its place; may be repeated.")
    out: Path | None = option(
        "FOLDER: Where the study lies; by default quantdrift-runs/NAME, after file or suite. The same command goes on "
        "in it."
    )
    plan: bool = flag("Print what there is to do, and stop.")
    probe: bool = option("Load each model to tell how long it will take.", default=True)
    device: str | None = option("NAME: cpu, cuda, cuda:1 or mps; by default the fastest one found.")
    cache: bool = option("Keep embeddings and quantized layers on disk and reuse them in later runs.", default=True)
    quiet: bool = option("-q --quiet: No progress bars.", default=False)
    engine: str | None = option(ENGINE)
    workers: int | None = option(WORKERS, min=1, max=4096)
    keep: bool = flag(KEEP)


@prints("json", "markdown")
def run(options: Running) -> Shown:
    """Measure every cell of a study: models x schemes x data x seeds.

    What there is to do is printed first. Then every cell becomes a run folder, FOLDER/cells/NAME. The same command
    again goes on: finished cells are not measured again, also after Ctrl-C or a crash, and two processes may share the
    work. A cell that fails is kept with its reason, and the others go on.

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
def retry(options: Running) -> Shown:
    """Measure the cells that failed once more, and those that are open."""
    return _measured(options, again=True)


@prints("json", "markdown")
def status(*, study: Path = argument(FOLDER), out: Path | None = option(OUT)) -> Shown:
    """Which cells are done, open, running or failed, and why."""
    folder = _opened(study, out)
    states = {cell.name: folder.state(cell) for cell in folder.cells}
    reasons = {cell.name: failed.reason for cell in folder.cells if (failed := folder.failure(cell)) is not None}
    rows = [
        [cell.model, str(cell.spec).rpartition("@")[2], cell.data.called, states[cell.name], reasons.get(cell.name, "")]
        for cell in folder.cells
    ]
    told = Counter(states.values())
    return Shown(
        data={
            "path": str(folder.path),
            "cells": [{"name": name, "state": state, "reason": reasons.get(name)} for name, state in states.items()],
        },
        title=f"{folder.path}: {', '.join(f'{n:,} {state}' for state, n in told.items())} of {len(states):,} cells",
        grids=[
            Grid(head=["model", "scheme", "data", "state", "why"], rows=rows, words={"scheme", "data", "state", "why"})
        ],
        code=0,
    )


@prints("json", "markdown")
def results(
    *,
    study: Path = argument(FOLDER),
    out: Path | None = option(OUT),
    metric: list[str] | None = option(METRIC),
    pooled: str | None = option(
        "METRIC: Also compare every scheme with the first one over all corpora, by flip@1 or ndcg@10, say."
    ),
    table: Path | None = option("FILE: Write one row a cell into .csv or .parquet, for pandas or DuckDB."),
) -> Shown:
    """What the finished cells say, one row a cell; and which schemes are worse over all corpora."""
    from quantdrift.metrics import parse_metric
    from quantdrift.metrics.numbers import show
    from quantdrift.study.results import pooled as pooled_of
    from quantdrift.study.results import results_of, sized_of, write_table

    folder = _opened(study, out)
    found, metrics = results_of(folder, [parse_metric(name) for name in dict.fromkeys(metric or ())])
    if table is not None:
        write_table([result.row() for result in found], table)
        note(f"wrote {table}")
    rows = [
        [
            result.cell.model,
            result.scheme,
            result.cell.data.called,
            *(show(each, result.metrics[str(each)]) for each in metrics),
        ]
        for result in found
        if result.run is not None
    ]
    head = ["model", "scheme", "data", *map(str, metrics)]
    grids = [Grid(head=head, rows=rows, words={"scheme", "data"})]
    sized = sized_of((result.cell, result.run) for result in found)
    grids += [_sizes_grid(sized)] if sized else []
    compared = [] if pooled is None else pooled_of(found, parse_metric(pooled))
    if pooled is not None:
        grids.append(_pooled_grid(parse_metric(pooled), compared))
    missing = Counter(result.state for result in found if result.run is None)
    lines = [f"{n:,} {'cell is' if n == 1 else 'cells are'} {state}" for state, n in missing.items()]
    shown = Shown(
        data={
            "path": str(folder.path),
            "cells": [each.row() for each in found],
            "pooled": [each.to_json() for each in compared],
            "corpus_sizes": [
                {"model": one.model, "scheme": one.scheme, "corpus": one.corpus, **one.effect.to_json()}
                for one in sized
            ],
        },
        title=f"{folder.path}: {counted(len(rows), 'run')}",
        grids=grids,
        lines=lines,
    )
    if folder.capture is not None:
        lines.append(f"what each criterion keeps, from a checkout: python -m quantdrift_paper capture {folder.path}")
    elif rows and table is None:
        lines.append("with 95 % intervals: --table FILE.csv, or --json")
    return replace(shown, lines=lines)


def _sizes_grid(sized: Sequence[Sized]) -> Grid:
    from quantdrift.metrics.numbers import show_p

    def ratio(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    rows = [
        [
            f"{one.model} {one.scheme}",
            one.corpus,
            f"{effect.small:,} to {effect.large:,}",
            " to ".join(percent(flips / effect.n, 1) for flips in (effect.flip_small, effect.flip_large)),
            show_p(effect.p_flip),
            f"{ratio(effect.separation_small)} to {ratio(effect.separation_large)}",
            show_p(effect.p_separation),
        ]
        for one in sized
        for effect in (one.effect,)
    ]
    head = ["scheme", "corpus", "documents", "flip@1", "p (McNemar)", "separation", "p (sign)"]
    lines = ["the same queries on the smallest and the largest part of a corpus; the parts nest"]
    return Grid(title="What the size of the corpus does", head=head, rows=rows, words={"corpus"}, lines=lines)


def _pooled_grid(metric: Metric, compared: Sequence[Pooled]) -> Grid:
    from quantdrift.compare.pooled import in_words
    from quantdrift.metrics.numbers import show_p

    rate = metric.unit == "rate"

    def spread(value: float, error: float | None, sign: str = "") -> str:
        value, error = (100 * value, 100 * (error or 0.0)) if rate else (value, error or 0.0)
        digits = 1 if rate else 4
        return f"{value:{sign}.{digits}f}" + (f" ± {error:.{digits}f}" if error else "")

    rows = [
        [
            f"{each.model} {each.scheme}",
            f"{each.n_corpora}" + (f" x {each.n_seeds} seeds" if each.n_seeds > 1 else ""),
            spread(each.mean, each.se),
            spread(each.difference, each.difference_se, "+"),
            f"{each.worse:,} : {each.better:,}",
            show_p(each.p_holm),
            each.verdict,
        ]
        for each in compared
    ]
    against = compared[0].against if compared else "the first scheme"
    units = (", %", ", pp") if rate else ("", "")
    head = ["scheme", "corpora", f"{metric}{units[0]} ± s.e.", f"difference{units[1]} ± s.e."]
    head += ["worse : better", "p (Holm)", "verdict"]
    lines = in_words(compared, metric)
    lines += [f"Note: {each.model} {each.scheme}: {note}." for each in compared for note in each.notes]
    tests = sorted({each.test for each in compared})
    lines.append(
        f"s.e. over corpora; intervals by resampling the inputs of each; p of the {' or '.join(tests) or 'paired'} test"
    )
    return Grid(title=f"{metric} against {against}", head=head, rows=rows, words={"verdict"}, lines=lines)


# --- running --------------------------------------------------------------------------------------


def _measured(options: Running, *, again: bool) -> Shown:
    study, name = _asked_for(options)
    return measured(
        study,
        options.out or RUNS / name,
        options,
        again=again,
        plan=options.plan,
        probe=options.probe,
        engine=options.engine,
        workers=options.workers,
        keep=options.keep,
    )


def _asked_for(options: Running) -> tuple[Study, str]:
    """The study that was asked for, and what its folder is called."""
    if (options.file is None) == (options.suite is None):
        raise StudyError("expected a study.yaml or --suite NAME, one of the two; quantdrift list suites shows all")
    if options.suite is not None:
        suite = load_suite(options.suite)
        study = suite.study(offline=options.offline, models=options.models or (), data=options.data or ())
        suite.refuse_missing(study)
        return study, f"{suite.name}-offline" if options.offline else suite.name
    if options.offline or options.models or options.data:
        raise StudyError("--offline, --models and --data are of a suite; a study.yaml says itself what it measures")
    assert options.file is not None  # one of the two is there
    return read_study(options.file), options.file.stem


class Means(Protocol):
    """What a command that measures a study is told of how."""

    @property
    def device(self) -> str | None: ...  # noqa: D102 -- an option, as the next two
    @property
    def cache(self) -> bool: ...  # noqa: D102
    @property
    def quiet(self) -> bool: ...  # noqa: D102


def measured(
    study: Study,
    out: Path,
    options: Means,
    *,
    again: bool = False,
    plan: bool = False,
    probe: bool = True,
    kind: StudyKind = "grid",
    engine: str | None = None,
    workers: int | None = None,
    keep: bool = False,
) -> Shown:
    """Measure the open cells of a study in its folder; what is done in the end.

    Args:
        study: its cells.
        out: its folder.
        options: device, cache and display.
        again: whether cells that failed are tried again.
        plan: whether to say what there is to do, and stop.
        probe: whether each model is loaded first, to tell how long it will take.
        kind: what its results are read as.
        engine: who works through corpora in shards.
        workers: how many.
        keep: whether embeddings of their documents are kept.
    """
    cells = cells_of(study)
    check_folder(out)
    data = Data(progress=Silent() if options.quiet else Terminal())
    folder = plan_into(
        out, cells, [fingerprint_of(cell, data) for cell in cells], study.capture, kind=kind, shows=study.shows
    )
    pairs = list(zip(cells, folder.cells, strict=True))
    states = {planned.name: folder.state(planned) for planned in folder.cells}
    left = {"done"} if again else {"done", "failed"}
    to_do = [(cell, planned) for cell, planned in pairs if states[planned.name] not in left]
    if not to_do:
        return _plan(folder, states, [], 0)
    from quantdrift.engine.store import EmbeddingStore, default_store
    from quantdrift.engine.study import run_cells, survey
    from quantdrift.engine.workers import Workers

    store = default_store() if options.cache else EmbeddingStore(None)
    bars: Progress = Silent() if options.quiet else Terminal()
    works = []
    if probe:
        timed = [run.record for _, planned in pairs if (run := folder.run(planned)) is not None]
        works = survey(to_do, data, store=store, progress=bars, device=options.device, timed=timed)
    told = _plan(folder, states, works, len(to_do))
    if plan:
        return told
    for line in (told.title, *_told(works), *told.lines):
        note(line)
    if again:
        for _, planned in to_do:
            folder.forget_failure(planned)
    expected = {name: seconds for work in works for name, seconds in work.of_cells.items()}
    display = Display(len(to_do), expected, quiet=options.quiet)
    try:
        with display.shown():
            run_cells(
                to_do,
                folder,
                data,
                store=store,
                progress=display,
                announce=display.announce,
                failed=lambda cell, why: note(f"failed: {cell.name}: {why.reason}"),
                device=options.device,
                workers=Workers(engine=engine or "local", n=workers),
                keep=keep,
            )
    except KeyboardInterrupt:
        raise Interrupted(f"finished cells are in {out}; the same command goes on from there") from None
    except DiskError as error:
        raise DiskError(f"{error}. Finished cells are in {out}; the same command goes on from there") from error
    return _ended(folder)


class Display:
    """One display for a whole study: the cells, and the stage that the cell is at; lines where there is no terminal."""

    def __init__(self, n_cells: int, expected: Mapping[str, float], *, quiet: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bars
        from rich.table import Column

        from quantdrift.base.console import console

        out = console(error=True)
        named = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True))
        left = TextColumn("{task.fields[left]}", markup=False)
        columns = (named, BarColumn(bar_width=16), MofNCompleteColumn(), left)
        self._bars = Bars(*columns, console=out, transient=True, expand=True, disable=quiet)
        self._lines = not quiet and not out.is_terminal
        self._n, self._at, self._start = n_cells, 0, time.monotonic()
        self._expected, self._before, self._passed = expected, 0.0, 0.0
        self._all = self._bars.add_task("", total=n_cells, left="")
        self._stage = self._bars.add_task("", total=None, left="")

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Inside, the display is there."""
        with self._bars:
            yield

    def announce(self, cell: Cell) -> None:
        """Say which cell comes now, and how long the rest takes if it goes on like this."""
        done, spent = self._at, time.monotonic() - self._start
        self._at += 1
        self._passed, self._before = self._passed + self._before, self._expected.get(cell.name, 0.0)
        left = f"about {duration(self._left(spent, done))} left" if done else ""
        named = f"{cell.called}@{cell.spec.scheme} on {cell.data.called}"
        self._bars.update(self._all, completed=done, description=clean(named), left=left)
        if self._lines:
            note(f"cell {self._at:,} of {self._n:,}: {named}{left and f'; {left}'}")

    def _left(self, spent: float, done: int) -> float:
        """Seconds for the rest, if it goes on like this; cells weigh what was expected of them, where that is known."""
        rest = sum(self._expected.values()) - self._passed
        return spent * rest / self._passed if self._passed else spent / done * (self._n - done)

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """A stage of the cell."""
        self._bars.reset(self._stage, total=total, description=f"  {clean(name)}")
        yield lambda steps: self._bars.advance(self._stage, steps)


def _plan(folder: StudyFolder, states: Mapping[str, State], works: Sequence[Work], to_do: int) -> Shown:
    told = Counter(states.values())
    seconds, size = sum(work.seconds for work in works), sum(work.bytes for work in works)
    rows = [
        [
            work.model,
            work.data,
            f"{work.cells:,}",
            f"{work.inputs:,}",
            f"{work.passes:.1f}",
            "kept" if work.kept else "to make",
            duration(work.seconds),
            duration(work.calibrating),
            _size(work.bytes),
        ]
        for work in works
        if not work.problem
    ]
    head = ["model", "data", "cells", "inputs", "passes", "reference", "encoding", "calibrating", "on disk"]
    lines = [f"cannot be measured: {work.model} on {work.data}: {work.problem}" for work in works if work.problem]
    if seconds:
        calibrating = sum(work.calibrating for work in works)
        lines.append(
            f"in all about {duration(seconds)} of encoding, {duration(calibrating)} of calibration and choice of "
            f"widths, and {_size(size)} in the cache"
        )
    if told["failed"]:
        lines.append(f"{counted(told['failed'], 'cell')} failed before: quantdrift study retry tries again")
    return Shown(
        data={
            "path": str(folder.path),
            "cells": len(states),
            "states": dict(told),
            "to_do": to_do,
            "work": [asdict(work) for work in works],
        },
        title=f"{folder.path}: {counted(len(states), 'cell')}, {told['done']:,} done, {to_do:,} to do",
        grids=[Grid(head=head, rows=rows, words={"data", "reference"})] if rows else [],
        lines=lines,
        code=1 if told["failed"] and not to_do else 0,
    )


def _told(works: Sequence[Work]) -> Iterator[str]:
    for work in works:
        if not work.problem:
            reference = "the reference is kept from before" if work.kept else "the reference is to be made"
            seconds = work.seconds + work.calibrating
            yield (
                f"{work.model} on {work.data}: {counted(work.cells, 'cell')}, {work.passes:.1f} passes of "
                f"{work.inputs:,} inputs ({reference}){(seconds and f', about {duration(seconds)}') or ''}"
            )


def _ended(folder: StudyFolder) -> Shown:
    told = Counter(folder.state(cell) for cell in folder.cells)
    failed = [(cell, why) for cell in folder.cells if (why := folder.failure(cell)) is not None]
    return Shown(
        data={
            "path": str(folder.path),
            "states": dict(told),
            "failed": [{"name": cell.name, "reason": why.reason} for cell, why in failed],
        },
        title=f"{folder.path}: {told['done']:,} of {counted(len(folder.cells), 'cell')} done",
        lines=list(_reasons(failed)),
        next=[
            f"\nwhat they say: quantdrift study results {shlex.quote(str(folder.path))}",
            *(["to try again what failed: the same line with retry in place of run"] if failed else []),
        ],
        code=1 if failed else 0,
    )


def _reasons(failed: Sequence[tuple[PlannedCell, FailedCell]]) -> Iterator[str]:
    """Why cells failed, each reason once."""
    names: dict[str, list[str]] = {}
    for cell, why in failed:
        names.setdefault(why.reason, []).append(cell.name)
    for reason, cells in names.items():
        others = f" and {len(cells) - 1:,} more" if cells[1:] else ""
        yield f"failed: {cells[0]}{others}: {reason}"


def _opened(study: Path, out: Path | None) -> StudyFolder:
    """The folder of a study, also where its study.yaml is named."""
    if study.suffix in {".yaml", ".yml"}:
        return open_study(out or RUNS / study.stem)
    if out is not None:
        raise StudyError(f"expected --out with a study.yaml; got it with {study}, which is a folder")
    if not (study / STUDY).is_file() and study.name != STUDY:
        raise StudyError(f"expected the folder of a study, with {STUDY}, or its study.yaml; got {study}")
    return open_study(study)


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:,.0f} MB" if n_bytes < 1e9 else f"{n_bytes / 1e9:,.1f} GB"  # noqa: PLR2004 -- a gigabyte


COMMANDS = {"run": run, "status": status, "results": results, "retry": retry}
