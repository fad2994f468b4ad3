"""What lies below a folder: runs, studies, results of gates, and what cannot be read."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from quantdrift.base.display import error_line
from quantdrift.base.errors import QuantDriftError
from quantdrift.gate.result import GateResult, read_result
from quantdrift.runs.folder import EVIDENCE, RECORD, Run, read_run
from quantdrift.study.folder import STUDY

MOST = 5_000
"""Runs, and results of gates, that are listed."""
_LARGEST = 20_000_000
"""Bytes of a JSON file that may be the result of a gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What lies below a folder, by the path from there.

    Attributes:
        runs: finished runs.
        studies: folders of studies.
        gates: results of gates, with the time at which each was written, in seconds since the epoch.
        problems: what is there and cannot be read, and why.
    """

    runs: dict[str, Run] = field(default_factory=dict)
    studies: dict[str, Path] = field(default_factory=dict)
    gates: dict[str, tuple[GateResult, float]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def find(folder: Path, results: Iterable[Path] = ()) -> Found:
    """Look through a folder, and at files that may be results of gates."""
    found = Found()
    for at, below, files in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))  # what is being written is hidden
        name = Path(at).relative_to(folder).as_posix()
        if STUDY in files:
            found.studies[name] = Path(at)
        try:
            if RECORD in files:
                found.runs[name] = read_run(at)
        except Exception as error:  # whatever it is, it is a row of what cannot be read
            if EVIDENCE in files:  # else it is of another tool
                found.problems[name] = error_line(error)
        if len(found.runs) >= MOST:
            break
    for file in islice(results, MOST):
        with suppress(OSError, QuantDriftError):  # another JSON file
            if (told := file.stat()).st_size <= _LARGEST:
                found.gates[file.name] = (read_result(file), told.st_mtime)
    return found
