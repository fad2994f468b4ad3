"""Processes that work on one study at the same time, one of which is killed."""

import re
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from support.faults import FULL, RUN, essence, files_in, stamps, write_study


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 4] if FULL else [2])
def test_they_share_the_work(n: int, tmp_path: Path, undisturbed, tell) -> None:
    root, fork = undisturbed.root, undisturbed.fork
    write_study(tmp_path, root)
    line, cache = [word for word in RUN if word != "--quiet"], {"QUANTDRIFT_CACHE": str(tmp_path / "cache")}
    processes = [fork.start(*line, cwd=tmp_path, **cache) for _ in range(n)]
    while not (done := stamps(tmp_path / "out")):
        time.sleep(0.01)
    processes[0].send(signal.SIGKILL)
    assert processes[0].wait() == -signal.SIGKILL
    rest = processes[1:]
    assert {each.wait() for each in rest} <= {0, 1}, [each.told for each in rest]
    assert {name: stamps(tmp_path / "out")[name] for name in done} == done
    assert essence(tmp_path / "out") == undisturbed.cells
    assert fork.run(*RUN, cwd=tmp_path, **cache)[0] == 1
    assert files_in(tmp_path / "out", tmp_path / "cache") == undisturbed.files
    begun = Counter(name for each in processes for name in re.findall(r"cell \d+ of \d+: ([^;\n]+)", each.told))
    assert len(begun) == len(undisturbed.cells) + 1  # one fails
    twice = sum(begun.values()) - len(begun)
    assert twice <= 1  # the one that the killed process was at
    tell(f"{n} processes, one killed: of {len(begun)} cells {twice} begun twice (the killed one's); results equal")
