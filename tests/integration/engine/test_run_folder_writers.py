"""Processes that write one run folder at the same time, or are killed while they do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no locks on folders there")

WRITER = """
import sys, itertools
from pathlib import Path
from quantdrift.records import whole_folder

name, place, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
for number in range(rounds) if rounds else itertools.count():
    with whole_folder(place, what="the run") as folder:
        for part in ("a", "b"):
            (folder / part).write_text(f"{name}{number}\\n" * 50)
"""


def writer(name: str, place: Path, rounds: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, name, str(place), str(rounds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def parts(place: Path) -> list[str]:
    return [(place / part).read_text() for part in ("a", "b")]


def whole(place: Path) -> bool:
    a, b = parts(place)
    return a == b and a.count("\n") == 50


def test_two_that_write_at_once_both_end_well(tmp_path: Path) -> None:
    place = tmp_path / "run"
    writers = [writer(name, place, 50) for name in ("one", "other")]
    for process in writers:
        assert process.wait() == 0, process.stderr and process.stderr.read()
    assert whole(place)
    assert parts(place)[0].split()[0] in {"one49", "other49"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
