"""SIGKILL, Ctrl-C and several processes at one study: what was done stays, nothing half-made is served or left."""

import random
import re
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from faults.processes import FULL, RETRY, RUN, Forks, essence, files_in, stamps, write_study

N_KILLS = 50 if FULL else 4


def whole(study: Path, cells: object) -> dict[str, int]:
    """When the cells that are done were written; each is one of the undisturbed study, and whole."""
    times = stamps(study)
    if times:
        assert all(essence(study)[name] == cells[name] for name in times)
    return times


@pytest.mark.slow
def test_sigkill(root: Path, fork: Forks, undisturbed) -> None:
    draws, kills, rounds = random.Random(20), 0, 0
    while kills < N_KILLS:
        rounds += 1
        place = root / f"killed-{rounds}"
        write_study(place, root)
        code, before = -signal.SIGKILL, dict[str, int]()
        while code == -signal.SIGKILL:
            at = draws.randint(1, undisturbed.changes // 3)
            if kills >= N_KILLS:
                code, printed = fork.run(*RUN, cwd=place)
            elif kills % 2:  # before some change of a file or folder
                code, printed = fork.run(*RUN, cwd=place, kill_at=at)
            else:  # at some time after one
                (place / "changes").write_text("0")
                process = fork.start(*RUN, cwd=place, count=place / "changes")
                while process.running and int((place / "changes").read_text()) < at:
                    time.sleep(0.001)
                time.sleep(draws.uniform(0, 0.05))
                process.send(signal.SIGKILL)
                code, printed = process.wait(), process.printed
            kills += code == -signal.SIGKILL
            after = whole(place / "out", undisturbed.cells)
            assert before.items() <= after.items()  # nothing is made twice
            before = after
        if "without an error" in printed:  # two kills at one cell are taken for its own fault
            code, printed = fork.run(*RETRY, cwd=place)
        assert code == 1, printed  # one cell fails
        assert "QUANTDRIFT_DEBUG" not in printed
        assert essence(place / "out") == undisturbed.cells
        assert files_in(place / "out", place / "cache") == undisturbed.files


N_STOPS = 20 if FULL else 2


@pytest.mark.slow
def test_ctrl_c(tmp_path: Path, root: Path, fork: Forks, undisturbed) -> None:
    draws, odd = random.Random(7), []
    write_study(tmp_path, root)
    for number in range(N_STOPS):
        if number % 5 == 4:  # from the start, so that every stage is met
            shutil.rmtree(tmp_path / "out")
            shutil.rmtree(tmp_path / "cache")
        if number % 2:
            at = draws.randint(1, undisturbed.changes // 2)
            process = fork.start(*RUN, cwd=tmp_path, kill_at=at, sign=signal.SIGINT)
        else:
            process = fork.start(*RUN, cwd=tmp_path)
            time.sleep(draws.uniform(0, undisturbed.seconds / 2))
            process.send(signal.SIGINT)
        code = process.wait()
        lines = [line for line in process.printed.splitlines() if not line.startswith("note: ")]
        if code == 130:
            odd += [process.printed] if len(lines) != 1 or "interrupted" not in lines[0] else []
        elif code == -signal.SIGINT and "cells done" in process.printed:  # it was leaving, and all was said
            pass
        elif code not in {0, 1} or "QUANTDRIFT_DEBUG" in process.printed:
            odd.append(process.printed)
        assert not list(tmp_path.glob("out/**/.*.partial-*"))
    assert not odd, odd
    assert fork.run(*RUN, cwd=tmp_path)[0] == 1
    assert essence(tmp_path / "out") == undisturbed.cells
    assert files_in(tmp_path / "out", tmp_path / "cache") == undisturbed.files


# --- processes that work on one study, one of which is killed ----------------------------------------


@pytest.mark.very_slow
@pytest.mark.parametrize("n", [2, 4] if FULL else [2])
def test_they_share_the_work(n: int, tmp_path: Path, root: Path, fork: Forks, undisturbed) -> None:
    write_study(tmp_path, root)
    line = [word for word in RUN if word != "--quiet"]
    processes = [fork.start(*line, cwd=tmp_path) for _ in range(n)]
    while not (done := stamps(tmp_path / "out")):
        time.sleep(0.01)
    processes[0].send(signal.SIGKILL)
    assert processes[0].wait() == -signal.SIGKILL
    rest = processes[1:]
    assert {process.wait() for process in rest} <= {0, 1}, [process.printed for process in rest]
    assert {name: stamps(tmp_path / "out")[name] for name in done} == done
    assert essence(tmp_path / "out") == undisturbed.cells
    assert fork.run(*RUN, cwd=tmp_path)[0] == 1
    assert files_in(tmp_path / "out", tmp_path / "cache") == undisturbed.files
    printed = "".join(process.printed for process in processes)
    begun = Counter(re.findall(r"cell \d+ of \d+: ([^;\n]+)", printed))
    assert len(begun) == len(undisturbed.cells) + 1  # one fails
    assert begun.total() - len(begun) <= 1  # the one that the killed process was at
