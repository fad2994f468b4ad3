"""Sensitivities on disk: whole or not at all, one file for each name."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from quantdrift.engine.sensitivity.allocate import HeldArrays, KeptArrays
from quantdrift.errors import RunError

ARRAY = np.array([[1.0, np.nan], [-0.5, 1e-300]])


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_what_is_put_is_what_is_got(where: str, tmp_path: Path) -> None:
    kept = KeptArrays(tmp_path, "ab12") if where == "disk" else HeldArrays()
    assert kept.get("gap") is None
    kept.put("gap", ARRAY)
    found = kept.get("gap")
    assert found is not None
    np.testing.assert_array_equal(found, ARRAY)
    assert found.dtype == np.float64
    kept.put("gap", ARRAY + 1)
    np.testing.assert_array_equal(kept.get("gap"), ARRAY + 1)


def test_another_process_finds_it_and_another_key_does_not(tmp_path: Path) -> None:
    KeptArrays(tmp_path, "ab12").put("gap", ARRAY)
    np.testing.assert_array_equal(KeptArrays(tmp_path, "ab12").get("gap"), ARRAY)
    assert KeptArrays(tmp_path, "ab13").get("gap") is None
    assert [path.parent for path in files(tmp_path)] == [tmp_path / "sensitivities/ab/ab12"]


def test_names_that_no_file_could_have_stay_apart(tmp_path: Path) -> None:
    """Some file systems do not tell case, and all have a limit."""
    long = "x" * 300
    names = ["a/b", "a_b", "a:b", "a b", "A_b", "é", "è", "..", "a.b.c", long, long + "y"]
    kept = KeptArrays(tmp_path, "ab12")
    for number, name in enumerate(names):
        kept.put(name, np.array([float(number)]))
    found = [kept.get(name) for name in names]
    assert [array.item() for array in found if array is not None] == list(range(len(names)))
    assert len({path.name.lower() for path in files(tmp_path)}) == len(names)


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00", b"PK\x03\x04 zip"])
def test_a_damaged_file_is_as_none(content: bytes, tmp_path: Path) -> None:
    kept = KeptArrays(tmp_path, "ab12")
    kept.put("gap", ARRAY)
    (file,) = files(tmp_path)
    file.write_bytes(content)
    assert kept.get("gap") is None
    kept.put("gap", ARRAY)
    np.testing.assert_array_equal(kept.get("gap"), ARRAY)


def test_half_a_file_or_one_of_other_numbers_is_as_none(tmp_path: Path) -> None:
    kept = KeptArrays(tmp_path, "ab12")
    kept.put("gap", ARRAY)
    (file,) = files(tmp_path)
    file.write_bytes(file.read_bytes()[:-8])
    assert kept.get("gap") is None
    np.save(file, ARRAY.astype(np.float32))
    assert kept.get("gap") is None


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_what_fails_half_way_leaves_the_earlier_array_and_nothing_else(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptArrays(tmp_path, "ab12")
    kept.put("gap", ARRAY)

    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "replace", failing)
    said = RunError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(said):
        kept.put("gap", ARRAY + 1)
    assert len(files(tmp_path)) == 1
    np.testing.assert_array_equal(kept.get("gap"), ARRAY)


def test_a_folder_that_cannot_be_written_is_said_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "sensitivities").write_text("a file in the way")
    kept = KeptArrays(tmp_path, "ab12")
    assert kept.get("gap") is None
    with pytest.raises(RunError, match=r"sensitivities cannot be kept in .* QUANTDRIFT_CACHE"):
        kept.put("gap", ARRAY)
