"""A candidate's folder: all of it or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantdrift.errors import RunError
from quantdrift.saving import folder as folders
from quantdrift.saving.folder import check_place, is_onnx_folder, read_record, write_folder


def write(text: str) -> Any:
    def fill(folder: Path) -> dict[str, Any]:
        (folder / "part").mkdir()
        (folder / "part" / "weights").write_text(text)
        return {"spec": text, "model_format": "safetensors"}

    return fill


def test_an_earlier_candidate_is_replaced_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_folder(out, write("one"))

    def other(folder: Path) -> dict[str, Any]:
        (folder / "other").write_text("two")
        return {"spec": "two", "model_format": "onnx"}

    write_folder(out, other)
    assert sorted(entry.name for entry in out.iterdir()) == ["other", "scheme.json"]
    assert read_record(out)["files"] == {"other": 3}
    assert is_onnx_folder(out)
    assert list(tmp_path.iterdir()) == [out]  # nothing is left beside it


def test_a_place_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    write_folder(tmp_path / "own", write("one"))
    (tmp_path / "own" / "notes.txt").write_text("mine")
    for name, named in (("file", "file"), ("model", "config.json"), ("own", "notes.txt")):
        with pytest.raises(RunError, match=rf"not a saved candidate: {named};"):
            check_place(tmp_path / name)
        with pytest.raises(RunError, match="not a saved candidate"):
            write_folder(tmp_path / name, write("two"))
    (tmp_path / "empty").mkdir()
    check_place(tmp_path / "empty")
    check_place(tmp_path / "new")


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_was_interrupted_leaves_the_earlier_one_and_nothing_else(
    tmp_path: Path, error: type[BaseException]
) -> None:
    def broken(folder: Path) -> dict[str, Any]:
        (folder / "half").write_text("")
        assert not (tmp_path / "new").exists()
        raise error

    write_folder(tmp_path / "out", write("one"))
    for name in ("out", "new"):
        with pytest.raises(error):
            write_folder(tmp_path / name, broken)
    assert read_record(tmp_path / "out")["spec"] == "one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_a_kill_at_the_last_moment_leaves_nothing_that_looks_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kill leaves it: the clean-up does not run."""
    monkeypatch.setattr(folders.shutil, "rmtree", lambda *_, **__: None)
    monkeypatch.setattr(json, "dumps", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_folder(tmp_path / "out", write("one"))
    left = list(tmp_path.rglob("*"))
    assert any(path.name == "weights" for path in left)
    assert not any(path.name == "scheme.json" for path in left)
    assert not (tmp_path / "out").exists()


def test_a_folder_appears_with_its_record_and_the_earlier_one_comes_back_if_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write_folder(out, write("one"))
    real = folders.os.replace

    def replace(here: Path, there: Path) -> None:
        if there == out and "partial" in str(here):
            assert (here / "scheme.json").is_file()
            raise KeyboardInterrupt
        real(here, there)

    monkeypatch.setattr(folders.os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        write_folder(out, write("two"))
    assert read_record(out)["spec"] == "one"
    assert (out / "part" / "weights").read_text() == "one"
    assert list(tmp_path.iterdir()) == [out]


def test_a_full_disk_says_so(tmp_path: Path) -> None:
    def full(folder: Path) -> dict[str, Any]:
        raise OSError(28, "No space left on device")

    with pytest.raises(RunError, match="no space left to write the candidate"):
        write_folder(tmp_path / "out", full)
    assert list(tmp_path.iterdir()) == []


def test_records_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"expected a candidate's folder \(with scheme.json\)"):
        read_record(tmp_path)
    (tmp_path / "scheme.json").write_text('{"format": "quantdrift-candidate", "format_version": 9}')
    with pytest.raises(RunError, match="format version 9; this quantdrift reads version 1"):
        read_record(tmp_path)
    for text in ("{", "[]", '{"format": "other"}'):
        (tmp_path / "scheme.json").write_text(text)
        assert not is_onnx_folder(tmp_path)
