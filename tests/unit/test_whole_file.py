"""A file is there in full or not at all, and what was there before stays until the last step."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from quantdrift.errors import RunError
from quantdrift.whole_file import whole_file, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "made" / "for" / "it.json"
    with whole_file(path) as partial:
        assert partial.parent == path.parent  # so that moving it copies nothing
        assert partial.name.startswith(".it.json.partial-")
        partial.write_text("all")
        assert not path.exists()
    assert path.read_text() == "all"
    assert names(path.parent) == ["it.json"]


def test_an_earlier_file_is_whole_until_then(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    path.write_text("earlier")
    with whole_file(path) as partial:
        partial.write_text("later")
        assert path.read_text() == "earlier"
    assert path.read_text() == "later"
    assert names(tmp_path) == ["it.json"]


def test_two_that_write_at_once_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    with whole_file(path) as one:
        with whole_file(path) as other:
            other.write_text("other")
            one.write_text("one")
        assert path.read_text() == "other"
    assert path.read_text() == "one"
    assert names(tmp_path) == ["it.json"]


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
@pytest.mark.parametrize("earlier", [None, "earlier"])
def test_after_an_error_the_place_is_as_it_was(
    tmp_path: Path, error: type[BaseException], earlier: str | None
) -> None:
    path = tmp_path / "it.json"
    if earlier is not None:
        path.write_text(earlier)

    def write() -> None:
        with whole_file(path) as partial:
            partial.write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert names(tmp_path) == ([] if earlier is None else ["it.json"])
    assert earlier is None or path.read_text() == earlier


def test_an_error_before_anything_is_written_is_shown_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "it.json"):
        raise ZeroDivisionError
    assert names(tmp_path) == []


def test_text_is_utf_8(tmp_path: Path) -> None:
    write_text(tmp_path / "made" / "it.txt", "modèle ∆\n", what="the study")
    assert (tmp_path / "made" / "it.txt").read_bytes() == "modèle ∆\n".encode()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_and_leaves_the_earlier_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = tmp_path / "it.json"
    path.write_text("earlier")

    def full(self: Path, text: str, **_: Any) -> None:
        self.write_bytes(text[:4].encode())
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunError) as said:
        write_text(path, "later text", what="the study")
    assert str(said.value) == (
        f"the study was not written to {path}: no space left; nothing was left behind. Free some "
        "space or choose another place."
    )
    assert path.read_bytes() == b"earlier"
    assert names(tmp_path) == ["it.json"]


def test_a_folder_without_permission_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a stand-in: tests may run as a user who may write everywhere."""

    def denied(self: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(RunError, match=r"the allocation was not written to .*Permission denied"):
        write_text(tmp_path / "new" / "it.json", "text", what="the allocation")
    assert names(tmp_path) == []


def test_a_place_that_cannot_be_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError, match=r"it cannot be written .*directory"):
        write_text(tmp_path / "folder", "text", what="the study")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match=r"it cannot be written .*([dD]irectory|exists)"):
        write_text(tmp_path / "file" / "study.json", "text", what="the study")
    assert names(tmp_path) == ["file", "folder"]
    assert names(tmp_path / "folder") == []
    assert (tmp_path / "file").read_text() == "mine"
