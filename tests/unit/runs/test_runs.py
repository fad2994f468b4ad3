"""A run folder is there in full or not at all, whatever goes wrong while it is written."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.base.errors import RunError
from quantdrift.base.records import with_checksum
from quantdrift.evidence.record import Evidence
from quantdrift.measuring.flow import assemble
from quantdrift.runs.folder import find_runs, read_run, write_run
from quantdrift.scoring.streamed import score_matrix

RECORD: dict[str, Any] = {"spec": "m@W4", "data": {"name": "corpus"}, "metrics": {}}


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    scores = np.array([[1.0, 2.0]])
    return assemble(score_matrix(scores, scores, k=2), input_ids=["q"], item_ids=["a", "b"])


def content(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize(
    ("failure", "error"), [(OSError(errno.ENOSPC, "No space left"), RunError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_a_failure_while_the_run_is_put_in_place(
    *,
    tmp_path: Path,
    evidence: Evidence,
    failure: BaseException,
    error: Any,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
) -> None:
    """Where two folders cannot be exchanged in one step, the earlier one is moved aside; then all is as it was."""
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: None)  # as on a system that cannot
    path = write_run(tmp_path / "run", evidence=evidence, record={**RECORD, "spec": "earlier"}).path
    before, rename, steps = content(path), os.rename, [0]

    def fail_once(source: Path, target: Path) -> None:
        steps[0] += 1
        if steps[0] == step:
            raise failure
        rename(source, target)

    monkeypatch.setattr("os.rename", fail_once)
    with pytest.raises(error):
        write_run(path, evidence=evidence, record=RECORD)
    assert ([entry.name for entry in tmp_path.iterdir()], content(path)) == (["run"], before)


def test_what_is_not_a_run_is_left_alone(tmp_path: Path, evidence: Evidence) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text('{"format": "quantdrift-run"}')
    (folder / "notes.txt").write_text("mine")
    before = content(folder)
    with pytest.raises(RunError, match=r"not a run: .*--out"):
        write_run(folder, evidence=evidence, record=RECORD)
    assert content(folder) == before


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b'{"format": ', "is damaged"),
        (b'{"format": "other"}', "expected the record of a run; .* holds something else"),
        (b'{"format": "quantdrift-run", "format_version": 1}', "version 1; .* Make it again: q"),
        (b'{"format": "quantdrift-run", "format_version": 2}', "its digest is missing"),
        (b"[" * 100_000 + b"]" * 100_000, "nested deeper than"),
    ],
)
def test_records_that_cannot_be_read(tmp_path: Path, record: bytes, message: str) -> None:
    (tmp_path / "run.json").write_bytes(record)
    with pytest.raises(RunError, match=message):
        read_run(tmp_path)


def test_a_damaged_run_is_not_passed_over(tmp_path: Path, evidence: Evidence) -> None:
    """Nine runs of ten, without a word, would be wrong."""
    for name in ("a", "b"):
        write_run(tmp_path / name, evidence=evidence, record=RECORD)
    damaged = tmp_path / "b" / "run.json"
    damaged.write_text(damaged.read_text()[:-20])
    with pytest.raises(RunError, match=r"b.run\.json is damaged"):
        find_runs([tmp_path])


@pytest.mark.parametrize(
    "changes",
    [
        *({"data": data} for data in (None, [], {"name": ["x"]})),
        *({"model": model} for model in (None, [])),
        {"model": {"fingerprint": []}},
        {"settings": {"similarity": 4}},
        {"spec": 4},
        {"metrics": {"flip@1": {"value": 10**400}}},
        {"data": {"name": "x", "n_documents": -1}},
        {"quantization": {"allocation": {"widths": {"layer": 2**70}}}},
        {"files": None},
    ],
)
def test_a_record_of_another_shape_is_refused(tmp_path: Path, evidence: Evidence, changes: dict[str, Any]) -> None:
    run = write_run(tmp_path / "run", evidence=evidence, record=RECORD)
    (run.path / "run.json").write_text(json.dumps(with_checksum({**run.record, **changes})))
    with pytest.raises(RunError, match=r"run\.json is damaged"):
        read_run(run.path)
    if "files" not in changes:
        with pytest.raises(RunError, match="is damaged"):
            write_run(tmp_path / "new", evidence=evidence, record={**RECORD, **changes})
