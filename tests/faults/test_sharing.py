"""Processes that work on one study at the same time, one of which is killed."""

import re
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from faults.processes import FULL, RUN, Forks, essence, files_in, stamps, write_study


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
