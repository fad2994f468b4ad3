"""The folder of a study: its cells, which are run folders, and their states.

FOLDER/study.json        the cells, with the fingerprint that each must have
FOLDER/cells/NAME/       a run folder
FOLDER/failed/NAME.json  why a cell could not be measured
FOLDER/.locks/NAME       held by the process that measures the cell
FOLDER/.running/NAME     the attempt that runs, or that ended the process
"""

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from quantdrift.asking.ask import State, finished
from quantdrift.base.display import clean, error_line
from quantdrift.base.errors import StudyError
from quantdrift.base.records import AS_LIST, Record, check_writable, clear_dead, write_text
from quantdrift.runs.folder import Run, now
from quantdrift.study.grid import CaptureGrid
from quantdrift.study.plan import Cell

StudyKind = Annotated[str, Field(pattern="^[a-z][a-z0-9-]{0,40}$")]
"""The reading of a study's results: a table (grid), or that of the feature of this name."""
STUDY, CELLS, FAILED, RUNNING = "study.json", "cells", "failed", ".running"


class StudyRecord(Record):
    """study.json.

    Attributes:
        cells: the cells of the study.
        capture: the grid of a capture study.
        kind: the reading of its results.
        shows: tables of the paper that it measures.
    """

    FORMAT, VERSION = "quantdrift-study", 1
    WHAT, MAKE = "the record of a study", "quantdrift study run study.yaml"
    ERROR = StudyError

    cells: Annotated[tuple[Cell, ...], AS_LIST]
    capture: CaptureGrid | None = None
    kind: StudyKind = "grid"
    shows: Annotated[tuple[str, ...], AS_LIST] = ()


class FailedCell(Record):
    """failed/NAME.json."""

    FORMAT, VERSION = "quantdrift-failed-cell", 1
    WHAT, MAKE = "the record of a cell that failed", "quantdrift study run study.yaml"
    ERROR = StudyError

    fingerprint: str | None
    reason: str
    where: str
    when: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFolder:
    """The folder of a study.

    Attributes:
        path: path of the folder.
        record: its study.json.
    """

    path: Path
    record: StudyRecord

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of the study."""
        return self.record.cells

    def place(self, name: str) -> Path:
        """Return the run folder of a cell."""
        return self.path / CELLS / name

    def failure(self, cell: Cell) -> FailedCell | None:
        """Return the record of a cell's failure with its present fingerprint, if any."""
        try:
            record = FailedCell.read(self.path / FAILED / f"{cell.name}.json")
        except StudyError:  # there is none, or it is damaged and the cell is tried again
            return None
        return record if record.fingerprint == cell.fingerprint else None

    def run(self, cell: Cell) -> Run | None:
        """Return the finished run of a cell, if it is whole and has the cell's fingerprint."""
        return finished(self.place(cell.name), cell.fingerprint)[1]

    def state(self, cell: Cell) -> State:
        """Return the state of a cell; a changed run is damaged, one of other data or settings outdated."""
        state, _ = finished(self.place(cell.name), cell.fingerprint)
        if state == "done":
            return state
        if self._is_held(cell.name):
            return "running"
        return "failed" if self.failure(cell) is not None else state

    def _is_held(self, name: str) -> bool:
        with (
            suppress(OSError, ImportError),
            self.holding(name) as held,
        ):  # if locks cannot be used, it counts as not held
            return not held
        return False

    @contextmanager
    def holding(self, name: str) -> Iterator[bool]:
        """Lock a cell; yield False if another process holds it."""
        from filelock import FileLock, Timeout  # noqa: PLC0415 -- whoever only reads a study need not have it

        lock = FileLock(self.path / ".locks" / name)
        (self.path / ".locks").mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def note(self, cell: Cell) -> Path:
        """Return the place of the note on a running attempt."""
        return self.path / RUNNING / cell.name

    def fail(self, cell: Cell, error: BaseException) -> FailedCell:
        """Record why a cell failed."""
        frames = traceback.extract_tb(error.__traceback__)
        where = (
            f"{type(error).__name__} in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
        )
        reason = clean(error_line(error))[:1000]
        record = FailedCell(fingerprint=cell.fingerprint, reason=reason, where=where, when=now())
        place = self.path / FAILED / f"{cell.name}.json"
        write_text(place, record.text(), what="why the cell failed")  # replaces a damaged record too
        return record

    def forget_failure(self, cell: Cell) -> None:
        """Delete the record of a failure and the note on an attempt."""
        for file in (self.path / FAILED / f"{cell.name}.json", self.note(cell)):
            file.unlink(missing_ok=True)


def open_study(path: Path) -> StudyFolder:
    """Open the study in a folder, or in the folder of a study.json.

    Raises:
        StudyError: there is none, or it is damaged.
    """
    folder = path.parent if path.name == STUDY else path
    return StudyFolder(path=folder, record=StudyRecord.read(folder / STUDY))


def plan_into(path: Path, cells: Sequence[Cell], fingerprints: Sequence[str | None], **more: Any) -> StudyFolder:
    """Write the cells of a study into its folder, with `more` fields of its record; finished runs stay.

    Raises:
        StudyError: the folder holds something else.
        RunError: it cannot be written to.
    """
    check_folder(path)
    planned = tuple(
        cell.model_copy(update={"fingerprint": mark}) for cell, mark in zip(cells, fingerprints, strict=True)
    )
    record = StudyRecord(cells=planned, **more)
    if not (path / CELLS).is_dir():  # beside cells a damaged record may be replaced
        record.check_place(path / STUDY)
    write_text(path / STUDY, record.text(), what="the record of the study")
    for folder in (path, path / CELLS, path / FAILED, path / RUNNING):
        clear_dead(folder)
    return StudyFolder(path=path, record=record)


def check_folder(path: Path) -> None:
    """Refuse a folder that holds something other than a study, before anything is measured."""
    check_writable(path / STUDY, what="the study")
    ours = f".{STUDY}.partial-"  # of a process that was killed while writing it
    others = path.is_dir() and any(not part.name.startswith(ours) for part in path.iterdir())
    if path.is_file() or (others and not (path / STUDY).is_file()):
        raise StudyError(
            f"{path} holds something that is not a study (no {STUDY}); expected a new folder or that of an earlier "
            "study. Choose another with --out"
        )
