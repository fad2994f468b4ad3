"""What is left of a study, by what was expected of its cells."""

from types import SimpleNamespace
from typing import Any

import pytest

from quantdrift.cli import studying


def cell(name: str) -> Any:
    return SimpleNamespace(name=name, model="m", spec=SimpleNamespace(scheme=name), data=SimpleNamespace(called="d"))


@pytest.mark.parametrize(
    ("expected", "left"),
    [
        ({"a": 10.0, "b": 30.0, "c": 20.0}, ["about 50 s left", "about 20 s left"]),  # as fast as was expected
        ({"a": 1.0, "b": 3.0, "c": 2.0}, ["about 50 s left", "about 20 s left"]),  # ten times as slow
        ({}, ["about 20 s left", "about 20 s left"]),  # nothing is known: cells are alike
    ],
)
def test_what_is_left_weighs_cells_by_what_was_expected_of_them(
    monkeypatch: pytest.MonkeyPatch, expected: dict[str, float], left: list[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(studying.time, "monotonic", lambda: now[0])
    notes: list[str] = []
    monkeypatch.setattr(studying, "note", notes.append)
    display = studying.Display(3, expected, quiet=False)
    for name, clock in (("a", 0.0), ("b", 10.0), ("c", 40.0)):
        now[0] = clock
        display.announce(cell(name))
    assert "left" not in notes[0]
    assert [line.rpartition("; ")[2] for line in notes[1:]] == left
