"""`quantdrift allocate --predict`, as a user types it, on a tiny model."""

import json
import re
from pathlib import Path

import pytest

from quantdrift.engine.sensitivity import gaps
from support.tiny_command_line import Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]  # fixtures

DATA = ("--data", "ROOT/data", "--group", "64")
RUN = ("--data", "ROOT/data", "--no-noise-floor")
FILES = ("--data", "ROOT/data", "--group", "64")


def test_unlabeled_files_are_enough_and_every_width_is_predicted(quantdrift: Run) -> None:
    shown = quantdrift("allocate", "--predict", "TINY", *FILES)
    assert "predicted on 10 queries of queries, 4 documents behind each" in shown
    assert "nothing was quantized" in shown
    assert not re.search(r"[0-9] % \(", shown)  # an interval, and no figure in front of it
    assert re.search(r"W4 +│ +4\.00 +│ +[0-9.]+ to [0-9.]+ %", shown)
    assert all(row in shown for row in ("W2 ", "at most 2.25, by gap", "at most 7.75, by gap", "W8 "))
    assert "scales add 0.250 per weight" in shown
    assert "-g64-rtn+gap+widths=2,3,4,5,6,7,8" in shown.replace("\n", "")
    assert not list(Path().iterdir())  # nothing is written beside the cache


def test_json_has_the_whole_curve(quantdrift: Run) -> None:
    result = json.loads(quantdrift("allocate", "--predict", "TINY", *DATA, "--json"))
    curve = result["curve"]
    uniform = {p["budget"]: p for p in curve if not p["allocated"]}
    # shifts shrink by about two a bit
    shifts = [uniform[width]["median_shift"]["value"] for width in range(2, 9)]
    assert shifts == sorted(shifts, reverse=True)
    assert shifts[0] > 16 * shifts[-1]
    assert uniform[2]["random_signs"]["value"] > 4 * uniform[8]["random_signs"]["value"]
    assert uniform[2]["flip@1"]["n"] == len(result["input_ids"]) == 10


def test_the_second_time_nothing_is_measured(quantdrift: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ("allocate", "--predict", "TINY", *DATA, "--widths", "2,3")
    first = quantdrift(*args)

    def measured(*_: object) -> None:
        pytest.fail("layers were measured again")

    monkeypatch.setattr(gaps, "with_graph", measured)
    assert quantdrift(*args) == first
