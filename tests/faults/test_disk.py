"""A disk that is full or may not be written to: one line that says so, and the same command goes on afterwards."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.faults import FULL, RUN, Forks, essence, files_in, stamps, states, write_study

MOUNTS = os.geteuid() == 0
needs_mounts = pytest.mark.skipif(not MOUNTS, reason="only root mounts a disk")


def mount(*words: object) -> None:
    found = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"no disk can be mounted here: {found.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk."""
    place = tmp_path / "disk"
    place.mkdir()
    mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", place)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill(disk: Path, left: int) -> Path:
    """Leave so many bytes."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "filling").write_bytes(bytes(max(0, free - left)))
    return disk / "filling"


def one_line(told: str, *words: str) -> None:
    lines = [line for line in told.splitlines() if not line.startswith(("note:", "quantdrift: note"))]
    assert "QUANTDRIFT_DEBUG" not in told
    assert "Traceback" not in told
    assert len(lines) == 1, told
    assert all(word in lines[0] for word in words), told


ROOMS = {"cache": (200_000, 60_000, 0), "out": (120_000, 30_000, 0)}


@pytest.mark.slow
@needs_mounts
@pytest.mark.parametrize("what", ["cache", "out"] if FULL else ["cache"])
def test_a_full_disk(what: str, disk: Path, tmp_path: Path, undisturbed, tell) -> None:
    root, fork = undisturbed.root, undisturbed.fork
    places = {"cache": tmp_path / "cache", "out": tmp_path / "out", what: disk / what}
    write_study(tmp_path, root)
    line = [*RUN[:-1], places["out"]]
    cache = {"QUANTDRIFT_CACHE": str(places["cache"])}
    stops, before = 0, {}
    for left in ROOMS[what] if FULL else ROOMS[what][:1]:
        filling = fill(disk, left)
        code, told = fork.run(*line, cwd=tmp_path, **cache)
        assert code == 2, told
        one_line(told, "no space left", "Free some space")
        stops += 1
        assert {name: stamps(places["out"])[name] for name in before} == before
        before = stamps(places["out"])
        filling.unlink()
    code, told = fork.run(*line, cwd=tmp_path, **cache)
    assert code == 1, told
    assert essence(places["out"]) == undisturbed.cells
    assert files_in(places["out"], places["cache"]) == undisturbed.files
    tell(f"{what}: stopped {stops} times with one line, {len(before)} cells done before the last; then results equal")


@needs_mounts
@pytest.mark.parametrize("what", ["cache", "out"] if FULL else ["out"])
def test_a_disk_that_is_read_only(what: str, tmp_path: Path, undisturbed, tell) -> None:
    root, fork = undisturbed.root, undisturbed.fork
    write_study(tmp_path, root, data=[str(root / "a")], schemes=["W8"], exclude=[])
    place = tmp_path / what
    shutil.copytree(undisturbed.place / what, place)
    mount("--bind", place, place)
    try:
        mount("-o", "remount,ro,bind", place)
        code, told = fork.run(*RUN, cwd=tmp_path, QUANTDRIFT_CACHE=str(tmp_path / "cache"))
        assert code == 2, told
        one_line(told, "Read-only file system", "--no-cache" if what == "cache" else "Choose another place")
        if what == "out":  # what is there can be read
            assert set(states(fork, tmp_path).values()) == {"done", "failed"}
            assert fork.run("study", "results", "out", cwd=tmp_path)[0] == 0
    finally:
        subprocess.run(["umount", "-l", place], check=True)
    if what == "cache":
        code, told = fork.run(*RUN, "--no-cache", cwd=tmp_path)
        assert code == 0, told
        name = "tiny@W8-g128-rtn_on_a"
        assert essence(tmp_path / "out")[name] == undisturbed.cells[name]
    tell(f"{what}: one line")


@pytest.mark.skipif(MOUNTS, reason="root may write to any folder")
@pytest.mark.parametrize("what", ["cache", "out"])
def test_a_folder_of_somebody_else(what: str, tmp_path: Path, root: Path, fork: Forks) -> None:
    write_study(tmp_path, root, data=[str(root / "a")], schemes=["W8"], exclude=[])
    (tmp_path / what).mkdir(mode=0o555)
    code, told = fork.run(*RUN, cwd=tmp_path, QUANTDRIFT_CACHE=str(tmp_path / "cache"))
    assert code == 2, told
    one_line(told, "Permission denied", "--no-cache" if what == "cache" else "Choose another place")
