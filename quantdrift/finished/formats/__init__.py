"""Formats of finished runs, told by their content and not by their name: one a module, or an entry point."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from quantdrift.base.errors import DataError
from quantdrift.base.registry import Registry
from quantdrift.base.text import some
from quantdrift.finished.contents import Arm, FinishedRun, parse_json, read_text


@dataclass(frozen=True)
class Source:
    """A file or a folder that somebody names as a finished run.

    Attributes:
        path: of it.
        arm: whose answers are meant, where there are those of both.
    """

    path: Path
    arm: Arm = "candidate"

    @cached_property
    def text(self) -> str:
        """The text of a file, unpacked if it is gzipped."""
        return read_text(self.path)

    @cached_property
    def first(self) -> Any:
        """The JSON value on the first line of a file; of one value over several lines, all of it; None if neither."""
        line = self._lines[0]
        if not line.startswith("{"):
            return None
        try:
            return parse_json(line, self.path)
        except DataError:
            return self.whole if self._lines[2] else None

    @cached_property
    def whole(self) -> Any:
        """The JSON value in a file, parsed once."""
        return parse_json(self.text, self.path) if self._lines[2] or self.first is None else self.first

    @cached_property
    def _lines(self) -> tuple[str, str, str]:
        return self.text.strip().partition("\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format that finished runs are written in.

    Attributes:
        expected: in words, with how it looks or what writes it.
        accepts: whether a source is of it; it may read the source.
        read: reads it.
        place: in lists and in the order in which files are asked about, ascending; what takes any text or any JSON
            comes last. A folder must be of one format.
    """

    expected: str
    accepts: Callable[[Source], bool]
    read: Callable[[Source], FinishedRun]
    place: int = 50


FORMATS: Registry[Format] = Registry(
    "quantdrift.formats", package="quantdrift.finished.formats", attribute="FORMAT", kind=Format
)


def expected() -> str:
    """List what a finished run can be, in words."""
    *most, last = reversed([entry.expected for entry in FORMATS.values()])
    return f"{'; '.join(most)}; or {last}"


def read_finished(path: Path, *, arm: Arm = "candidate") -> FinishedRun:
    """Read a finished run.

    Raises:
        DataError: there is none, or it is of no format.
        RunError: it is a run folder that was made of two others.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist; expected {expected()}")
    source = Source(path, arm)
    accepting = (entry for entry in FORMATS.values() if entry.accepts(source))
    formats = [*accepting] if path.is_dir() else [*islice(accepting, 1)]
    if path.is_dir() and len(formats) != 1:
        names = some(sorted(entry.name for entry in path.iterdir())) or "nothing"
        raise DataError(f"{path}: expected {expected()}; the folder holds {names}")
    return formats[0].read(source)
