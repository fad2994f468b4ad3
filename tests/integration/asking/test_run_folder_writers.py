"""Processes that write one run folder at the same time, or are killed while they do."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no locks on folders there")

WRITER = """
import ctypes, sys, itertools
from pathlib import Path
from quantdrift.base.records import whole_folder

name, place, rounds, exchange = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if exchange == "moved":
    ctypes.CDLL = None  # TypeError: as on a system where folders cannot be exchanged
print("ready", flush=True)
for number in range(rounds) if rounds else itertools.count():
    with whole_folder(place, what="the run") as folder:
        for part in ("a", "b"):
            (folder / part).write_text(f"{name}{number}\\n" * 50)
"""


def writer(name: str, place: Path, rounds: int, exchange: str, code: str = WRITER) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, name, str(place), str(rounds), exchange],
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


@pytest.mark.parametrize("exchange", ["exchanged", "moved"])
def test_two_that_write_at_once_both_end_well(tmp_path: Path, exchange: str) -> None:
    place = tmp_path / "run"
    writers = [writer(name, place, 150, exchange) for name in ("one", "other")]
    missing = mixed = reads = 0
    while any(process.poll() is None for process in writers):
        try:
            mixed += not whole(place)
            reads += 1
        except FileNotFoundError:
            missing += reads > 0
    for process in writers:
        assert process.wait() == 0, process.stderr and process.stderr.read()
    assert whole(place)
    assert parts(place)[0].split()[0] in {"one149", "other149"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
    assert reads > 20
    if exchange == "exchanged":
        assert missing == 0  # what a reader opens is of one folder or the other, and there
