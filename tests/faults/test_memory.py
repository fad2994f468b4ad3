"""No room in memory for a batch: half of it is tried, which is said; the run is that of the smaller batches."""

import json
from pathlib import Path

import pytest

from faults.processes import FULL, RUN, Forks, essence, write_study

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
