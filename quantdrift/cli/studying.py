"""The common part of commands that measure a study: its cells one by one, progress, and the words in the end."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from quantdrift.ask import State
from quantdrift.base.display import clean, duration, note
from quantdrift.base.errors import DiskError
from quantdrift.base.progress import Progress, Silent, Terminal
from quantdrift.base.text import counted
from quantdrift.cli import Interrupted
from quantdrift.cli.options import OnCells
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, records, table
from quantdrift.study.folder import FailedCell, StudyFolder, StudyKind, check_folder, plan_into
from quantdrift.study.plan import Cell, Study, cells_of
from quantdrift.study.sources import Data, fingerprint_of

if TYPE_CHECKING:
    from quantdrift.engine.study import Work


def measured(study: Study, out: Path, options: OnCells, *, again: bool = False, kind: StudyKind = "grid") -> Output:
    """Measure the open cells of a study in its folder; what is done in the end.

    Args:
        study: its cells.
        out: its folder.
        options: of the command.
        again: whether cells that failed are tried again.
        kind: what its results are read as.
    """
    cells = cells_of(study)
    check_folder(out)
    bars: Progress = Silent() if options.quiet else Terminal()
    data = Data(progress=bars)
    folder = plan_into(
        out, cells, [fingerprint_of(cell, data) for cell in cells], study.capture, kind=kind, shows=study.shows
    )
    states = {cell.name: folder.state(cell) for cell in folder.cells}
    left = {"done"} if again else {"done", "failed"}
    to_do = [cell for cell in folder.cells if states[cell.name] not in left]
    if not to_do:
        return _plan(folder, states, [], 0)
    from quantdrift.engine.store import EmbeddingStore, default_store
    from quantdrift.engine.study import run_cells, survey

    store = default_store() if options.cache else EmbeddingStore(None)
    works = survey(to_do, data, store=store, progress=bars, device=options.device) if options.probe else []
    counts = _plan(folder, states, works, len(to_do))
    if options.plan:
        return counts
    rows = [zip(grid.head, row, strict=True) for grid in counts.grids for row in grid.rows]
    for line in (counts.title, *(", ".join(map(" ".join, row)) for row in rows), *counts.lines):
        note(line)
    if again:
        for cell in to_do:
            folder.forget_failure(cell)
    expected = {name: seconds for work in works for name, seconds in work.of_cells.items()}
    display = Display(len(to_do), expected, quiet=options.quiet)
    try:
        with display.bars:
            run_cells(
                to_do,
                folder,
                data,
                store=store,
                progress=display,
                announce=display.announce,
                failed=lambda cell, why: note(f"failed: {cell.name}: {why.reason}"),
                device=options.device,
                streaming=options.streaming,
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
        self.bars = Bars(*columns, console=out, transient=True, expand=True, disable=quiet)
        self._lines = not quiet and not out.is_terminal
        self._n, self._at, self._start = n_cells, 0, time.monotonic()
        self._expected, self._before, self._passed = expected, 0.0, 0.0
        self._all = self.bars.add_task("", total=n_cells, left="")
        self._stage = self.bars.add_task("", total=None, left="")

    def announce(self, cell: Cell) -> None:
        """Say which cell comes now, and how long the rest takes if it goes on like this."""
        done, spent = self._at, time.monotonic() - self._start
        self._at += 1
        self._passed, self._before = self._passed + self._before, self._expected.get(cell.name, 0.0)
        left = f"about {duration(self._left(spent, done))} left" if done else ""
        named = f"{cell.model}@{cell.spec.scheme} on {cell.data.called}"
        self.bars.update(self._all, completed=done, description=clean(named), left=left)
        if self._lines:
            note(f"cell {self._at:,} of {self._n:,}: {named}{left and f'; {left}'}")

    def _left(self, spent: float, done: int) -> float:
        """Seconds for the rest, if it goes on like this; cells weigh what was expected of them, where that is known."""
        rest = sum(self._expected.values()) - self._passed
        return spent * rest / self._passed if self._passed else spent / done * (self._n - done)

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """A stage of the cell."""
        self.bars.reset(self._stage, total=total, description=f"  {clean(name)}")
        yield lambda steps: self.bars.advance(self._stage, steps)


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:,.0f} MB" if n_bytes < 1e9 else f"{n_bytes / 1e9:,.1f} GB"  # noqa: PLR2004 -- a gigabyte


_WORK = (
    Column("model", "model", kind="words"),
    Column("data", "data", kind="words"),
    Column("cells", "cells", "{:,}".format),
    Column("inputs", "inputs", "{:,}".format),
    Column("passes", "passes", "{:.1f}".format),
    Column("reference", "kept", lambda kept: "kept" if kept else "to make", kind="words"),
    Column("encoding", "seconds", duration),
    Column("on disk", "bytes", _size),
    Column("", "of_cells"),
    Column("", "problem"),
)


def _plan(folder: StudyFolder, states: Mapping[str, State], works: Sequence[Work], to_do: int) -> Output:
    counts = Counter(states.values())
    seconds, size = sum(work.seconds for work in works), sum(work.bytes for work in works)
    possible = [work for work in works if not work.problem]
    lines = [f"cannot be measured: {work.model} on {work.data}: {work.problem}" for work in works if work.problem]
    if seconds:
        lines.append(f"in all about {duration(seconds)} of encoding, and {_size(size)} in the cache")
    if counts["failed"]:
        lines.append(f"{counted(counts['failed'], 'cell')} failed before: quantdrift study retry tries again")
    return Output(
        data={
            "path": str(folder.path),
            "cells": len(states),
            "states": dict(counts),
            "to_do": to_do,
            "work": records(_WORK, works),
        },
        title=f"{folder.path}: {counted(len(states), 'cell')}, {counts['done']:,} done, {to_do:,} to do",
        grids=[table(_WORK, possible)] if possible else [],
        lines=lines,
        code=1 if counts["failed"] and not to_do else 0,
    )


def _ended(folder: StudyFolder) -> Output:
    counts = Counter(folder.state(cell) for cell in folder.cells)
    failed = [(cell, why) for cell in folder.cells if (why := folder.failure(cell)) is not None]
    return Output(
        data={
            "path": str(folder.path),
            "states": dict(counts),
            "failed": [{"name": cell.name, "reason": why.reason} for cell, why in failed],
        },
        title=f"{folder.path}: {counts['done']:,} of {counted(len(folder.cells), 'cell')} done",
        lines=list(_reasons(failed)),
        next=[
            f"\nwhat they say: quantdrift study results {shlex.quote(str(folder.path))}",
            *(["to try again what failed: the same line with retry in place of run"] if failed else []),
        ],
        code=1 if failed else 0,
    )


def _reasons(failed: Sequence[tuple[Cell, FailedCell]]) -> Iterator[str]:
    """Why cells failed, each reason once."""
    names: dict[str, list[str]] = {}
    for cell, why in failed:
        names.setdefault(why.reason, []).append(cell.name)
    for reason, cells in names.items():
        others = f" and {len(cells) - 1:,} more" if cells[1:] else ""
        yield f"failed: {cells[0]}{others}: {reason}"
