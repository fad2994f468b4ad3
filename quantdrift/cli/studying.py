"""Measure a study for a command: its cells one by one, with progress, and a summary at the end."""

import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from quantdrift.asking.ask import State
from quantdrift.asking.forecast import Forecast, is_off
from quantdrift.base.display import duration, error_line, note, size_words
from quantdrift.base.errors import DiskError, QuantDriftError, RoomError
from quantdrift.base.progress import progress_bars
from quantdrift.base.text import counted
from quantdrift.cli import Interrupted
from quantdrift.cli.options import OnCells
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, records, table
from quantdrift.study.folder import StudyFolder, StudyKind, check_folder, plan_into
from quantdrift.study.forecast import forecasts
from quantdrift.study.plan import Cell, CellSettings, DataEntry, ModelEntry, Study, cells_of
from quantdrift.study.sources import Data, fingerprint_of


def measured(
    study: Study, out: Path, options: OnCells, *, again: bool = False, kind: StudyKind = "grid", **streaming: Any
) -> Output:
    """Measure the open cells of a study in its folder, and return a summary.

    Args:
        study: the study.
        out: its folder.
        options: those of the command.
        again: whether to try failed cells again.
        kind: the command that reads the results.
        streaming: for data in shards, arguments of `open_streamed`.
    """
    cells = cells_of(study)
    check_folder(out)
    bars = progress_bars(quiet=options.quiet, transient=True)
    data = Data(progress=bars)
    fingerprints, problems = list[str | None](), dict[str, str]()
    for cell in cells:
        try:
            fingerprints.append(fingerprint_of(cell, data))
        except (QuantDriftError, OSError) as error:
            fingerprints.append(None)
            problems[cell.name] = error_line(error)
    folder = plan_into(out, cells, fingerprints, capture=study.capture, kind=kind, shows=tuple(study.shows))
    states = {cell.name: folder.state(cell) for cell in folder.cells}
    finished = {"done"} if again else {"done", "failed"}
    to_do = [cell for cell in folder.cells if states[cell.name] not in finished]
    from quantdrift.models.store import EmbeddingStore, default_store

    store = default_store() if options.cache else EmbeddingStore(None)
    foretold: dict[str, Forecast | QuantDriftError] = {}
    if not is_off():
        foretold = {cell.name: told for cell, told in forecasts(to_do, data, store=store, device=options.device)}
    told = {name: each for name, each in foretold.items() if isinstance(each, Forecast)}
    counts = _plan(folder, states, to_do, problems, told)
    if options.plan or not to_do:
        return counts
    from quantdrift.study.cells import run_cells

    for cell in to_do:
        if isinstance(without := foretold.get(cell.name), RoomError):
            folder.fail(cell, without)
    to_do = [cell for cell in to_do if not isinstance(foretold.get(cell.name), RoomError)]
    seconds = [told[cell.name].seconds if cell.name in told else 0.0 for cell in to_do]
    rows = [zip(grid.head, row, strict=True) for grid in counts.grids for row in grid.rows]
    for line in (counts.title, *(", ".join(map(" ".join, row)) for row in rows), *counts.lines):
        note(line)
    if again:
        for cell in to_do:
            folder.forget_failure(cell)
    try:
        run_cells(
            to_do,
            folder,
            data,
            store=store,
            progress=bars,
            announce=(lambda _: None) if options.quiet else announcer(seconds),
            failed=lambda cell, why: note(f"failed: {cell.name}: {why.reason}"),
            device=options.device,
            streaming=streaming,
        )
    except KeyboardInterrupt:
        raise Interrupted(f"finished cells are in {out}; the same command goes on from there") from None
    except DiskError as error:
        raise DiskError(f"{error}. Finished cells are in {out}; the same command goes on from there") from error
    return _ended(folder)


_OF_DATA = ("task", "split", "keep_own_ids", "columns")


def measured_schemes(
    model: str, schemes: Sequence[str], options: Any, out: Path, *, kind: StudyKind, **settings: Any
) -> Output:
    """Measure schemes of one model as a study, on the data and with the settings of a command's options."""
    folder = None if options.data is None else str(options.data.absolute())
    study = Study(
        models=[ModelEntry(model=model)],
        schemes=list(schemes),
        seeds=[0],
        data=[DataEntry(folder=folder, **{name: getattr(options, name) for name in _OF_DATA})],
        settings=CellSettings(k=options.k, batch_size=options.batch_size, **settings),
    )
    return measured(study, out, options, kind=kind)


def announcer(expected: Sequence[float]) -> Callable[[Cell], None]:
    """Return what names each cell as it begins, with the time that the rest takes.

    `expected` has the seconds of each cell: those of the forecast at first, then as much longer or shorter as the cells
    so far. Where none are known, cells are alike.
    """
    done, start, known = 0, time.monotonic(), all(expected)

    def announce(cell: Cell) -> None:
        nonlocal done
        weights = expected if known else [1.0] * len(expected)
        pace = (time.monotonic() - start) / sum(weights[:done]) if done else 1.0
        left = f"; about {duration(pace * sum(weights[done:]))} left" if done or known else ""
        done += 1
        note(f"cell {done:,} of {len(expected):,}: {cell.model}@{cell.spec.scheme} on {cell.data.called}{left}")

    return announce


_WORK = (
    *(Column(name, name, kind="words") for name in ("model", "data")),
    Column("cells", "cells", "{:,}".format),
    Column("time", "seconds", lambda seconds: duration(seconds) if seconds else "?"),
)


def _plan(
    folder: StudyFolder,
    states: Mapping[str, State],
    to_do: Sequence[Cell],
    problems: Mapping[str, str],
    told: Mapping[str, Forecast],
) -> Output:
    counts = Counter(states.values())
    pairs, seconds = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for cell in to_do:
        pairs[key := (cell.model, cell.data.corpus)] += 1
        seconds[key] += math.ceil(told[cell.name].seconds) if cell.name in told else 0
    work = [{"model": key[0], "data": key[1], "cells": n, "seconds": seconds[key]} for key, n in pairs.items()]
    ahead = {cell.name: problems[cell.name] for cell in to_do if cell.name in problems}
    facts = _in_all([*told.values()])
    lines = [*_reasons("cannot be measured", ahead)]
    if facts:
        memory, disk, download = (size_words(facts[name]) for name in ("memory", "disk", "download"))
        longest = f"the longest cell, {facts['longest']['name']}, about {duration(facts['longest']['seconds'])}"
        lines.append(f"about {duration(facts['seconds'])} in all; {longest}")
        lines.append(f"at most {memory} of memory; keeps {disk} in the cache, downloads {download}")
    if counts["failed"]:
        lines.append(f"{counted(counts['failed'], 'cell')} failed before: quantdrift study retry tries again")
    return Output(
        data={
            "path": str(folder.path),
            "cells": len(states),
            "states": dict(counts),
            "to_do": len(to_do),
            "work": records(_WORK, work),
            "forecast": facts,
        },
        title=f"{folder.path}: {counted(len(states), 'cell')}, {counts['done']:,} done, {len(to_do):,} to do",
        grids=[table(_WORK, work)] if work else [],
        lines=lines,
        code=1 if counts["failed"] and not to_do else 0,
    )


def _in_all(told: Sequence[Forecast]) -> dict[str, Any]:
    """The time, disk and download of all cells, the memory of the largest, and the longest."""
    if not told:
        return {}
    sums = {name: sum(getattr(each, name) for each in told) for name in ("seconds", "disk", "download")}
    longest = max(told, key=lambda each: each.seconds)
    return {**sums, "memory": max(each.memory for each in told), "longest": longest.to_json()}


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
            f"\nthe results: quantdrift study results {shlex.quote(str(folder.path))}",
            *(["to try the failed cells again: the same line with retry in place of run"] if failed else []),
        ],
        code=1 if failed else 0,
    )


def _reasons(what: str, by_cell: Mapping[str, str]) -> Iterator[str]:
    """One line for each reason, with the first of its cells."""
    names: dict[str, list[str]] = {}
    for name, reason in by_cell.items():
        names.setdefault(reason, []).append(name)
    for reason, cells in names.items():
        others = f" and {len(cells) - 1:,} more" if cells[1:] else ""
        yield f"{what}: {cells[0]}{others}: {reason}"
