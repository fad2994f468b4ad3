"""What is left of a study, from the mean time of the cells that are done."""

from types import SimpleNamespace
from typing import Any

import pytest

from quantdrift.cli import studying


def cell(name: str) -> Any:
    return SimpleNamespace(name=name, model="m", spec=SimpleNamespace(scheme=name), data=SimpleNamespace(called="d"))


def test_what_is_left_goes_by_the_cells_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(studying.time, "monotonic", lambda: now[0])
    notes: list[str] = []
    monkeypatch.setattr(studying, "note", notes.append)
    announce = studying.announcer(3)
    for name, clock in (("a", 0.0), ("b", 10.0), ("c", 40.0)):
        now[0] = clock
        announce(cell(name))
    assert "left" not in notes[0]
    assert [line.rpartition("; ")[2] for line in notes[1:]] == ["about 20 s left", "about 20 s left"]
