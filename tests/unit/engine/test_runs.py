"""A run folder is there in full or not at all, whatever goes wrong while it is written."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift import runs
from quantdrift.engine.measure import assemble
from quantdrift.engine.scoring.streamed import score_matrix
from quantdrift.errors import RunError
from quantdrift.evidence import Evidence
from quantdrift.records import sealed
from quantdrift.runs import check_place, find_runs, read_run, write_run

RECORD: dict[str, Any] = {"spec": "m@W4", "data": {"name": "corpus"}, "metrics": {}}


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    scores = np.array([[1.0, 2.0]])
    return assemble(score_matrix(scores, scores, k=2), input_ids=["q"], item_ids=["a", "b"])


@pytest.fixture(params=[OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def failure(request: pytest.FixtureRequest) -> BaseException:
    error: BaseException = request.param
    return error


def content(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def raising(error: BaseException) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


# --- a good run ------------------------------------------------------------------------------


def test_what_is_written_is_read_back(tmp_path: Path, evidence: Evidence) -> None:
    written = write_run(tmp_path / "new" / "run", evidence=evidence, record={**RECORD, "spec": "modèle@W4"})
    assert sorted(content(written.path)) == ["evidence.parquet", "run.json"]
    for path in (written.path, written.path / "run.json"):
        run = read_run(path)
        assert run.record == written.record
        assert run.record["spec"] == "modèle@W4"
        assert run.evidence().input_ids.tolist() == ["q"]
    assert "modèle" in (written.path / "run.json").read_text(encoding="utf-8")


def test_a_run_takes_the_place_of_an_earlier_one(tmp_path: Path, evidence: Evidence) -> None:
    for spec in ("first", "second"):
        write_run(tmp_path / "run", evidence=evidence, record={**RECORD, "spec": spec})
    assert read_run(tmp_path / "run").record["spec"] == "second"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_an_empty_folder_is_a_place(tmp_path: Path, evidence: Evidence) -> None:
    (tmp_path / "run").mkdir()
    write_run(tmp_path / "run", evidence=evidence, record=RECORD)
    assert read_run(tmp_path / "run").record["format"] == "quantdrift-run"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no permission bits")
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_run_is_as_readable_as_other_files(tmp_path: Path, evidence: Evidence, mask: int) -> None:
    before = os.umask(mask)
    try:
        path = write_run(tmp_path / "run", evidence=evidence, record=RECORD).path
        assert os.umask(mask) == mask  # looking at it does not change it
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o777 & ~mask
    for entry in path.iterdir():
        assert stat.S_IMODE(entry.stat().st_mode) == 0o666 & ~mask


def test_a_relative_path(tmp_path: Path, evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert write_run(Path("run"), evidence=evidence, record=RECORD).path == tmp_path / "run"


# --- failures --------------------------------------------------------------------------------


@pytest.fixture(params=["nothing", "earlier run"])
def place(request: pytest.FixtureRequest, tmp_path: Path, evidence: Evidence) -> Iterator[Path]:
    """Where a run is to go; afterwards it must be as it was, and nothing may lie beside it."""
    path = tmp_path / "run"
    before = None
    if request.param == "earlier run":
        before = content(write_run(path, evidence=evidence, record={**RECORD, "spec": "earlier"}).path)
    yield path
    assert [entry.name for entry in tmp_path.iterdir()] == ([] if before is None else ["run"])
    if before is not None:
        assert content(path) == before


def test_a_failure_before_the_evidence_is_complete(
    place: Path, evidence: Evidence, failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(_: Evidence, path: Path) -> None:
        path.write_bytes(b"PAR1 half")
        raise failure

    monkeypatch.setattr(runs, "write_evidence", half)
    expect_failure(place, evidence, failure)


@pytest.mark.parametrize(
    ("place", "step"), [("nothing", 1), ("earlier run", 1), ("earlier run", 2), ("earlier run", 3)], indirect=["place"]
)
def test_a_failure_while_the_run_is_put_in_place(
    place: Path, evidence: Evidence, failure: BaseException, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Where two folders cannot be exchanged in one step, the earlier one is moved aside before."""
    replace, steps = os.rename, [0]
    monkeypatch.setattr("ctypes.CDLL", raising(OSError("no such library")))

    def fail_once(source: Path, target: Path) -> None:
        steps[0] += 1
        if steps[0] == step:
            raise failure
        replace(source, target)

    monkeypatch.setattr("os.rename", fail_once)
    expect_failure(place, evidence, failure)


def expect_failure(place: Path, evidence: Evidence, failure: BaseException) -> None:
    if isinstance(failure, OSError):
        with pytest.raises(RunError, match="no space left; nothing was left behind"):
            write_run(place, evidence=evidence, record=RECORD)
    else:
        with pytest.raises(type(failure)):
            write_run(place, evidence=evidence, record=RECORD)


def test_other_complaints_of_the_disk(place: Path, evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    error = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(runs, "write_evidence", raising(error))
    with pytest.raises(RunError, match=r"cannot be written .*Permission denied"):
        write_run(place, evidence=evidence, record=RECORD)


def test_a_record_that_json_cannot_hold(place: Path, evidence: Evidence) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        write_run(place, evidence=evidence, record={**RECORD, "value": float("nan")})


# --- places that hold something else ---------------------------------------------------------


@pytest.mark.parametrize(
    "files",
    [
        {"notes.txt": "mine"},
        {"run.json": "{}"},  # of another program
        {"run.json": "not JSON"},
        {"run.json": '{"format": "quantdrift-run"}', "notes.txt": "mine"},
        {"evidence.parquet": ""},
    ],
)
def test_what_is_not_a_run_is_left_alone(tmp_path: Path, evidence: Evidence, files: dict[str, str]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    before = content(folder)
    with pytest.raises(RunError, match=r"something that is not a run: .*--out"):
        write_run(folder, evidence=evidence, record=RECORD)
    assert content(folder) == before


def test_a_file_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(RunError, match="something that is not a run: run"):
        check_place(tmp_path / "run")


def test_a_new_place_is_not_made_by_looking(tmp_path: Path) -> None:
    check_place(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())


# --- runs that cannot be read ----------------------------------------------------------------


def test_no_run_there(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nowhere does not exist"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"has no run\.json\. Runs are written by: quantdrift run"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b'{"format": ', "is damaged"),
        (b"\xff\xfe{}", "is damaged"),
        (b"[1, 2]", "expected the record of a run; .* holds something else"),
        (b'{"format": "other"}', "expected the record of a run; .* holds a 'other'"),
        (b'{"format": "quantdrift-run", "format_version": 7}', "version 7; .* reads version 2"),
        (b'{"format": "quantdrift-run", "format_version": 1}', "version 1; .* Make it again: q"),
        (b'{"format": "quantdrift-run", "format_version": 2}', "its digest is missing"),
        (b"[" * 100_000 + b"]" * 100_000, "nested deeper than"),
        (b'{"n": ' + b"7" * 5_000 + b"}", "is damaged"),
    ],
)
def test_records_that_cannot_be_read(tmp_path: Path, record: bytes, message: str) -> None:
    (tmp_path / "run.json").write_bytes(record)
    with pytest.raises(RunError, match=message):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000 + "]" * 100_000,
        '{"format": "other", "n": ' + "7" * 5_000 + "}",
        '{"format": "other"}',
        "not JSON",
        "[]",
    ],
    ids=["deep", "long", "other", "text", "list"],
)
def test_files_of_that_name_that_are_no_runs_are_passed_over(tmp_path: Path, evidence: Evidence, text: str) -> None:
    foreign = tmp_path / "foreign" / "run.json"
    for place in (tmp_path / "run.json", foreign):
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
    with pytest.raises(RunError, match=r"expected the record of a run|expected JSON|is damaged"):
        find_runs([tmp_path])
    (tmp_path / "run.json").unlink()
    with pytest.raises(RunError, match="none of the 1 files named"):
        find_runs([tmp_path])
    run = write_run(tmp_path / "some" / "run", evidence=evidence, record=RECORD)
    (tmp_path / "run.json").write_text(text)
    assert [each.path for each in find_runs([tmp_path])] == [run.path]


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
        *({"data": data} for data in (None, [], "x", {}, {"name": None}, {"name": ["x"]})),
        *({"model": model} for model in (None, [], 4, {"fingerprint": []})),
        {"settings": None},
        {"settings": {"similarity": 4}},
        {"spec": None},
        {"spec": 4},
        {"metrics": []},
        {"metrics": {"flip@1": None}},
        {"metrics": {"flip@1": {"value": "high"}}},
        {"metrics": {"flip@1": {"value": 10**400}}},
        {"data": {"name": "x", "n_documents": -1}},
        {"data": {"name": "x", "n_documents": True}},
        {"data": {"name": "x", "warnings": "a word"}},
        {"bits_per_weight": {"linear": "four"}},
        {"quantization": {"allocation": {"widths": {"layer": 2**70}}}},
        {"files": None},
        {"files": {}},
        {"times": "now"},
    ],
)
def test_a_record_of_another_shape_is_refused_when_it_is_read(
    tmp_path: Path, evidence: Evidence, changes: dict[str, Any]
) -> None:
    run = write_run(tmp_path / "run", evidence=evidence, record=RECORD)
    (run.path / "run.json").write_text(json.dumps(sealed({**run.record, **changes})))
    with pytest.raises(RunError, match=r"run\.json is damaged"):
        read_run(run.path)
    if "files" not in changes:
        with pytest.raises(RunError, match="is damaged"):
            write_run(tmp_path / "new", evidence=evidence, record={**RECORD, **changes})


def test_what_is_not_known_may_be_null(tmp_path: Path, evidence: Evidence) -> None:
    record = {
        **RECORD,
        "model": {"name": "m", "fingerprint": None, "candidate_fingerprint": None},
        "bits_per_weight": None,
        "data": {"name": "x", "n_documents": None, "split": None},
    }
    assert read_run(write_run(tmp_path / "run", evidence=evidence, record=record).path)


def test_evidence_of_another_run_is_refused(tmp_path: Path, evidence: Evidence) -> None:
    other = replace(evidence, delta_max=evidence.delta_max + 1)
    run, second = (
        write_run(tmp_path / name, evidence=held, record=RECORD) for name, held in (("a", evidence), ("b", other))
    )
    (run.path / "evidence.parquet").write_bytes((second.path / "evidence.parquet").read_bytes())
    with pytest.raises(RunError, match="changed since, or comes from another run"):
        read_run(run.path).evidence()


def test_a_run_without_its_evidence(tmp_path: Path, evidence: Evidence) -> None:
    run = write_run(tmp_path / "run", evidence=evidence, record=RECORD)
    (run.path / "evidence.parquet").unlink()
    with pytest.raises(RunError, match=r"expected evidence in .*no such file"):
        read_run(run.path).evidence()


def test_another_run_in_its_place_is_not_taken_for_it(tmp_path: Path, evidence: Evidence) -> None:
    """The record of one and the evidence of the other are read, one after the other."""
    run = write_run(tmp_path / "run", evidence=evidence, record=RECORD)
    other = assemble(
        score_matrix(np.array([[2.0, 1.0]]), np.array([[2.0, 1.0]]), k=2), input_ids=["q"], item_ids=["a", "b"]
    )
    write_run(tmp_path / "run", evidence=other, record={**RECORD, "spec": "m@W8"})
    with pytest.raises(RunError, match=r"another run was written to .*run the command again"):
        run.evidence()
    assert read_run(run.path).evidence().reference_top.items.tolist() == [[0, 1]]


def test_the_same_run_made_again_is_as_good(tmp_path: Path, evidence: Evidence) -> None:
    run = write_run(tmp_path / "run", evidence=evidence, record=RECORD)
    write_run(tmp_path / "run", evidence=evidence, record={**RECORD, "times": {"finished": "later"}})
    assert run.evidence().input_ids.tolist() == ["q"]
