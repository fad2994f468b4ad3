"""What a run says of its embeddings and its calibration, in run.json and on the screen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from support.tiny_command_line import N_DOCS, Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]


def notes(place: Path, name: str) -> list[str]:
    record = json.loads((place / name / "run.json").read_text())
    return [str(note) for note in record["data"]["warnings"]]


@pytest.mark.slow
@pytest.mark.parametrize(("calib", "said"), [("", True), ("+calib=10", False)])
def test_a_calibration_on_all_that_is_ranked_is_said(calib: str, said: bool, place: Path, quantdrift: Run) -> None:
    command = ("run", f"TINY@W4-adaround{calib}", "--data", "ROOT/data", "--out", "ROOT/fitted")
    shown = quantdrift(*command)
    text = f"calibrated on all {N_DOCS} documents, the very ones that are ranked"
    assert (text in " ".join(shown.split())) is said
    assert any(note.startswith(text) for note in notes(place, "fitted")) is said
