"""What lies below a folder: runs, studies, results of gates, and what cannot be read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from quantdrift.base.errors import QuantDriftError
from quantdrift.gate.result import GateResult, read_result
from quantdrift.runs.folder import EVIDENCE, RECORD, Run, read_run
from quantdrift.study.folder import STUDY

_MOST = 5_000
"""Runs, studies and gates that are listed."""
_RESULT = 20_000_000
"""Bytes of a JSON file that may be the result of a gate."""

Kind = Literal["run", "study", "gate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What lies below a folder, by the path from there.

    Attributes:
        runs: finished runs.
        studies: folders of studies.
        gates: results of gates, with the second since the epoch at which each was written.
        problems: what is there and cannot be read, and why.
        left_out: whether there is more than is listed.
    """

    runs: Mapping[str, Run] = field(default_factory=dict)
    studies: Mapping[str, Path] = field(default_factory=dict)
    gates: Mapping[str, tuple[GateResult, float]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    left_out: bool = False

    def path(self, kind: str, name: str) -> Path | None:
        """Where a run, a study or the result of a gate lies; None where none of that name was found."""
        if kind == "run":
            return self.runs[name].path if name in self.runs else None
        return self.studies.get(name) if kind == "study" else None


def find(folder: Path, results: Iterator[Path] | None = None) -> Found:
    """Look through a folder, and for results of gates at further files."""
    runs: dict[str, Run] = {}
    studies: dict[str, Path] = {}
    gates: dict[str, tuple[GateResult, float]] = {}
    problems: dict[str, str] = {}
    n = 0
    for at, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))
        place = Path(at)
        name = place.relative_to(folder).as_posix()
        if STUDY in names:
            studies[name] = place
        if RECORD in names:
            below.clear()
            n += 1
            try:
                runs[name] = read_run(place)
            except QuantDriftError as error:
                if EVIDENCE in names:  # else it is of another tool
                    problems[name] = str(error)
        else:
            _read_gates(folder, (place / file for file in sorted(names) if file.endswith(".json")), gates)
        if n >= _MOST:
            break
    _read_gates(folder, results or iter(()), gates)
    return Found(runs=runs, studies=studies, gates=gates, problems=problems, left_out=n >= _MOST)


def _read_gates(folder: Path, files: Iterator[Path], gates: dict[str, tuple[GateResult, float]]) -> None:
    for file in files:
        try:
            told = file.stat()
            if file.name == STUDY or told.st_size > _RESULT or len(gates) >= _MOST:
                continue
            name = file.relative_to(folder).as_posix() if file.is_relative_to(folder) else file.name
            gates.setdefault(name, (read_result(file), told.st_mtime))
        except (OSError, QuantDriftError):  # another JSON file
            continue
