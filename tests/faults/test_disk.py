"""A disk that is full or read-only, and no room in memory: a line says so, and the same command goes on."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.processes import FULL, RUN, Forks, essence, files_in, stamps, write_study

MOUNTS = os.geteuid() == 0
needs_mounts = pytest.mark.skipif(not MOUNTS, reason="only root mounts a disk")


def mount(*words: object) -> None:
    done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")


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


def one_line(printed: str, *words: str) -> None:
    lines = [line for line in printed.splitlines() if not line.startswith(("note:", "quantdrift: note"))]
    assert "QUANTDRIFT_DEBUG" not in printed
    assert "Traceback" not in printed
    assert len(lines) == 1, printed
    assert all(word in lines[0] for word in words), printed


ROOMS = {"cache": (200_000, 60_000, 0), "out": (120_000, 30_000, 0)}


@pytest.mark.very_slow
@needs_mounts
@pytest.mark.parametrize("what", ["cache", "out"] if FULL else ["cache"])
@pytest.mark.usefixtures("disk")
def test_a_full_disk(what: str, tmp_path: Path, root: Path, fork: Forks, undisturbed) -> None:
    disk = tmp_path / "disk"
    places = {"cache": tmp_path / "cache", "out": tmp_path / "out", what: disk / what}
    write_study(tmp_path, root)
    line = [*RUN[:-1], places["out"]]
    cache = {"QUANTDRIFT_CACHE": str(places["cache"])}
    before: dict[str, int] = {}
    for left in ROOMS[what] if FULL else ROOMS[what][:1]:
        filling = fill(disk, left)
        code, printed = fork.run(*line, cwd=tmp_path, **cache)
        assert code == 2, printed
        one_line(printed, "no space left", "Free some space")
        assert {name: stamps(places["out"])[name] for name in before} == before
        before = stamps(places["out"])
        filling.unlink()
    code, printed = fork.run(*line, cwd=tmp_path, **cache)
    assert code == 1, printed
    assert essence(places["out"]) == undisturbed.cells
    assert files_in(places["out"], places["cache"]) == undisturbed.files


@needs_mounts
@pytest.mark.parametrize("what", ["cache", "out"] if FULL else ["out"])
def test_a_disk_that_is_read_only(what: str, tmp_path: Path, root: Path, fork: Forks, undisturbed) -> None:
    write_study(tmp_path, root, data=[str(root / "a")], schemes=["W8"], exclude=[])
    place = tmp_path / what
    shutil.copytree(undisturbed.place / what, place)
    mount("--bind", place, place)
    try:
        mount("-o", "remount,ro,bind", place)
        code, printed = fork.run(*RUN, cwd=tmp_path)
        assert code == 2, printed
        one_line(printed, "Read-only file system", "--no-cache" if what == "cache" else "Choose another place")
        if what == "out":  # what is there can be read
            assert fork.run("study", "results", "out", cwd=tmp_path)[0] == 0
    finally:
        subprocess.run(["umount", "-l", place], check=True)
    if what == "cache":
        code, printed = fork.run(*RUN, "--no-cache", cwd=tmp_path)
        assert code == 0, printed
        name = "tiny@W8-g128-rtn_on_a"
        assert essence(tmp_path / "out")[name] == undisturbed.cells[name]


@pytest.mark.skipif(MOUNTS, reason="root may write to any folder")
@pytest.mark.parametrize("what", ["cache", "out"])
def test_a_folder_of_somebody_else(what: str, tmp_path: Path, root: Path, fork: Forks) -> None:
    write_study(tmp_path, root, data=[str(root / "a")], schemes=["W8"], exclude=[])
    (tmp_path / what).mkdir(mode=0o555)
    code, printed = fork.run(*RUN, cwd=tmp_path)
    assert code == 2, printed
    one_line(printed, "Permission denied", "--no-cache" if what == "cache" else "Choose another place")


# --- memory: half of a batch is tried, and the run is that of the smaller batches --------------------


FULL_DEVICE = "faults.processes:no_room_for_batches"


def said(printed: str) -> list[str]:
    return [line.removeprefix("note: ") for line in printed.splitlines() if "no room in memory" in line]


@pytest.mark.very_slow
@pytest.mark.parametrize("kind", ["cuda", "mkl"] if FULL else ["cuda"])
def test_a_study_goes_on_in_smaller_batches(kind: str, tmp_path: Path, root: Path, fork: Forks) -> None:
    some = {"data": [str(root / "a"), str(root / "labelled")], "schemes": ["W8", "W4A8+calib=16"]}
    some["exclude"] = [{"data": "labelled", "scheme": "W4*"}]
    for name, size in (("full", 8), ("asked", 4)):
        write_study(tmp_path / name, root, **some, settings={"k": 20, "batch_size": size})
        how = {"before": FULL_DEVICE, "FAULT_BATCH": "5", "FAULT_KIND": kind} if name == "full" else {}
        code, printed = fork.run(*RUN, cwd=tmp_path / name, **how)
        assert code == 0, printed
        line = "no room in memory for batches of 8: measured in batches of 4"
        assert set(said(printed)) == ({line} if name == "full" else set())
    halved, asked = (essence(tmp_path / name / "out") for name in ("full", "asked"))
    for name, cell in asked.items():  # bit for bit what --batch-size 4 gives, and it says so
        assert (halved[name]["files"], halved[name]["metrics"]) == (cell["files"], cell["metrics"])
        assert (halved[name]["settings"], cell["settings"]["batch_size"]) == (cell["settings"], 4)


@pytest.mark.slow
def test_a_model_that_fits_in_no_batch_fails_with_one_line(tmp_path: Path, root: Path, fork: Forks) -> None:
    write_study(tmp_path, root, data=[str(root / "a")], schemes=["W8"], exclude=[])
    how = {"before": FULL_DEVICE, "FAULT_BATCH": "0", "FAULT_KIND": "cuda"}
    code, printed = fork.run(*RUN, cwd=tmp_path, **how)
    assert code == 1, printed
    failed = json.loads(next((tmp_path / "out" / "failed").iterdir()).read_text())["reason"]
    assert "CUDA out of memory" in failed
    assert not said(printed)  # the first text, which is put through by itself when the model is loaded, does not fit
