"""The formats of finished runs, recognized by content and not by file name; each is a module or an entry point."""

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
    """A file or folder that may be a finished run.

    Attributes:
        path: the file or folder.
        arm: the arm to read, if it holds both.
    """

    path: Path
    arm: Arm = "candidate"

    @cached_property
    def text(self) -> str:
        """The text of the file, unpacked if it is gzipped."""
        return read_text(self.path)

    @cached_property
    def first(self) -> Any:
        """The JSON object on the first line, or in the whole file if it spans several lines; None if there is none."""
        line = self._lines[0]
        if not line.startswith("{"):
            return None
        try:
            return parse_json(line, self.path)
        except DataError:
            return self.whole if self._lines[2] else None

    @cached_property
    def whole(self) -> Any:
        """The JSON value in the whole file, parsed once."""
        return parse_json(self.text, self.path) if self._lines[2] or self.first is None else self.first

    @cached_property
    def _lines(self) -> tuple[str, str, str]:
        return self.text.strip().partition("\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format that finished runs are written in.

    Attributes:
        expected: the format in words, with its look or the program that writes it.
        accepts: says whether a source has this format; it may read the source.
        read: reads a source.
        place: its position in lists and in the order in which formats are tried on a file; formats that accept any text
            or any JSON come last. A folder must have exactly one format.
    """

    expected: str
    accepts: Callable[[Source], bool]
    read: Callable[[Source], FinishedRun]
    place: int = 50


FORMATS: Registry[Format] = Registry(
    "quantdrift.formats", package="quantdrift.finished.formats", attribute="FORMAT", kind=Format
)


def expected() -> str:
    """List the formats in words."""
    *most, last = reversed([entry.expected for entry in FORMATS.values()])
    return f"{'; '.join(most)}; or {last}"


def read_finished(path: Path, *, arm: Arm = "candidate") -> FinishedRun:
    """Read a finished run.

    Raises:
        DataError: there is nothing at the path, or its format is not known.
        RunError: it is a run folder made by `quantdrift diff`.
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
