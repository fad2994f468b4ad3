"""The common part of commands that measure a study: its cells one by one, progress, and the words in the end."""

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quantdrift.asking.ask import State
from quantdrift.base.display import clean, duration, error_line, note
from quantdrift.base.errors import DiskError, QuantDriftError
from quantdrift.base.progress import progress_bars
from quantdrift.base.text import counted
from quantdrift.cli import Interrupted
from quantdrift.cli.options import OnCells
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, records, table
from quantdrift.study.folder import StudyFolder, StudyKind, check_folder, plan_into
from quantdrift.study.plan import Cell, CellSettings, DataEntry, ModelEntry, Study, cells_of
from quantdrift.study.sources import Data, fingerprint_of


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
    bars = progress_bars(quiet=options.quiet)
    data = Data(progress=bars)
    fingerprints, problems = list[str | None](), dict[str, str]()
    for cell in cells:
        try:
            fingerprints.append(fingerprint_of(cell, data))
        except (QuantDriftError, OSError) as error:
            fingerprints.append(None)
            problems[cell.name] = error_line(error)
    folder = plan_into(out, cells, fingerprints, study.capture, kind=kind, shows=study.shows)
    states = {cell.name: folder.state(cell) for cell in folder.cells}
    left = {"done"} if again else {"done", "failed"}
    to_do = [cell for cell in folder.cells if states[cell.name] not in left]
    counts = _plan(folder, states, to_do, problems)
    if options.plan or not to_do:
        return counts
    from quantdrift.models.store import EmbeddingStore, default_store
    from quantdrift.study.cells import run_cells

    rows = [zip(grid.head, row, strict=True) for grid in counts.grids for row in grid.rows]
    for line in (counts.title, *(", ".join(map(" ".join, row)) for row in rows), *counts.lines):
        note(line)
    if again:
        for cell in to_do:
            folder.forget_failure(cell)
    display = Display(len(to_do), quiet=options.quiet)
    try:
        with display.bars:
            run_cells(
                to_do,
                folder,
                data,
                store=default_store() if options.cache else EmbeddingStore(None),
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


def measured_schemes(
    model: str, schemes: Sequence[str], options: Any, out: Path, *, kind: StudyKind, **settings: Any
) -> Output:
    """Measure schemes of one model as a study, on the data and as the options of a command say."""
    folder = None if options.data is None else str(options.data.absolute())
    study = Study(
        models=[ModelEntry(model=model)],
        schemes=list(schemes),
        seeds=[0],
        data=[DataEntry(folder=folder, task=options.task, split=options.split, keep_own_ids=options.keep_own_ids)],
        settings=CellSettings(k=options.k, batch_size=options.batch_size, **settings),
    )
    return measured(study, out, options, kind=kind)


class Display:
    """One display for a whole study: the cells, and the stage that the cell is at; lines where there is no terminal."""

    def __init__(self, n_cells: int, *, quiet: bool) -> None:
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
        self._all = self.bars.add_task("", total=n_cells, left="")
        self._stage = self.bars.add_task("", total=None, left="")

    def announce(self, cell: Cell) -> None:
        """Say which cell comes now, and how long the rest takes if it goes on like this."""
        done, spent = self._at, time.monotonic() - self._start
        self._at += 1
        left = f"about {duration(spent / done * (self._n - done))} left" if done else ""
        named = f"{cell.model}@{cell.spec.scheme} on {cell.data.called}"
        self.bars.update(self._all, completed=done, description=clean(named), left=left)
        if self._lines:
            note(f"cell {self._at:,} of {self._n:,}: {named}{left and f'; {left}'}")

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """A stage of the cell."""
        self.bars.reset(self._stage, total=total, description=f"  {clean(name)}")
        yield lambda steps: self.bars.advance(self._stage, steps)


_WORK = (
    Column("model", "model", kind="words"),
    Column("data", "data", kind="words"),
    Column("cells", "cells", "{:,}".format),
)


def _plan(
    folder: StudyFolder, states: Mapping[str, State], to_do: Sequence[Cell], problems: Mapping[str, str]
) -> Output:
    counts = Counter(states.values())
    pairs = Counter((cell.model, cell.data.corpus) for cell in to_do)
    work = [{"model": model, "data": data, "cells": n} for (model, data), n in pairs.items()]
    ahead = {cell.name: problems[cell.name] for cell in to_do if cell.name in problems}
    lines = [*_reasons("cannot be measured", ahead)]
    if counts["failed"]:
        lines.append(f"{counted(counts['failed'], 'cell')} failed before: quantdrift study retry tries again")
    return Output(
        data={
            "path": str(folder.path),
            "cells": len(states),
            "states": dict(counts),
            "to_do": len(to_do),
            "work": records(_WORK, work),
        },
        title=f"{folder.path}: {counted(len(states), 'cell')}, {counts['done']:,} done, {len(to_do):,} to do",
        grids=[table(_WORK, work)] if work else [],
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
        lines=[*_reasons("failed", {cell.name: why.reason for cell, why in failed})],
        next=[
            f"\nwhat they say: quantdrift study results {shlex.quote(str(folder.path))}",
            *(["to try again what failed: the same line with retry in place of run"] if failed else []),
        ],
        code=1 if failed else 0,
    )


def _reasons(what: str, by_cell: Mapping[str, str]) -> Iterator[str]:
    """Why cells failed, or will, each reason once."""
    names: dict[str, list[str]] = {}
    for name, reason in by_cell.items():
        names.setdefault(reason, []).append(name)
    for reason, cells in names.items():
        others = f" and {len(cells) - 1:,} more" if cells[1:] else ""
        yield f"{what}: {cells[0]}{others}: {reason}"
