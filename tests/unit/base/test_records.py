"""Files are there whole or not at all, and JSON from outside ends in a value or a ValueError."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from quantdrift.base import records
from quantdrift.base.errors import RunError
from quantdrift.base.records import MAX_DEPTH


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_two_that_write_at_once_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    with records.whole_file(path) as first:
        with records.whole_file(path) as other:
            other.write_text("other")
            first.write_text("one")
        assert path.read_text() == "other"
    assert (path.read_text(), names(tmp_path)) == ("one", ["it.json"])


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("earlier", [None, "earlier"])
def test_after_an_error_the_place_is_as_it_was(tmp_path: Path, error: type[BaseException], earlier: str | None) -> None:
    path = tmp_path / "it.json"
    if earlier is not None:
        path.write_text(earlier)

    def write() -> None:
        with records.whole_file(path) as partial:
            partial.write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert names(tmp_path) == ([] if earlier is None else ["it.json"])
    assert earlier is None or path.read_text() == earlier


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    path = tmp_path / "it.json"
    path.write_text("earlier")

    def full(self: Path, text: str, **_: Any) -> None:
        self.write_bytes(text[:4].encode())
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunError, match=r"the study .*no space left"):
        records.write_text(path, "later text", what="the study")
    assert (path.read_bytes(), names(tmp_path)) == (b"earlier", ["it.json"])


DEEP = MAX_DEPTH + 2


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "[" * DEEP + "]" * DEEP, "9" * 5_000, "{", b"\xff", ""], ids=range(7)
)
def test_json_from_outside_ends_in_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        records.parse_json(text)


@pytest.mark.parametrize("text", ["[1e999]", "[-1e999]", "[NaN]", "[Infinity]", '{"b": {"a": 1, "a": 2}}'])
def test_strict_refuses_what_is_no_number_and_a_key_that_stands_twice(text: str) -> None:
    records.parse_json(text)
    with pytest.raises(ValueError, match=r"finite|'a'"):
        records.parse_json(text, strict=True)


def test_a_pipe_a_device_and_a_large_file_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text("[" + "1," * 50 + "1]")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ValueError, match="pipe or a device"):
            records.read_json(path)
    with pytest.raises(ValueError, match="larger than 10 bytes"):
        records.read_json(tmp_path / "large", limit=10)
    with pytest.raises(OSError, match="directory"):
        records.read_json(tmp_path)


def test_a_seal_holds_for_the_same_content_and_no_other() -> None:
    content = {"b": [1, 2.5, "é"], "a": {"x": None}, "threshold": 0.1 + 0.2}
    whole = records.with_checksum(content)
    records.check_checksum(json.loads(json.dumps(whole, indent=2, ensure_ascii=False)))
    assert (list(whole)[-1], records.with_checksum(whole)) == ("digest", whole)
    for other in (
        {**whole, "threshold": 0.3},
        {**whole, "new": 1},
        {k: v for k, v in whole.items() if k != "a"},
        {**whole, "digest": None},
    ):
        with pytest.raises(ValueError, match="digest"):
            records.check_checksum(other)
