"""What a run says of its embeddings and its calibration, in run.json and on the screen."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from support.beir_folder import numbered, write_beir_folder
from support.tiny_command_line import N_DOCS, Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]


def notes(place: Path, name: str) -> list[str]:
    record = json.loads((place / name / "run.json").read_text())
    return [str(note) for note in record["data"]["warnings"]]


def test_inputs_that_a_model_does_not_tell_apart_are_said(place: Path, quantdrift: Run) -> None:
    """Texts none of whose words the model knows, as with another model's tokenizer."""
    texts = numbered("x", [f"w{n} x{n}" for n in range(40)])
    write_beir_folder(place / "foreign", texts, texts)
    shown = quantdrift("run", "TINY@W4", "--data", "ROOT/foreign", "--out", "ROOT/same")
    warnings = notes(place, "same")
    for arm in ("reference", "candidate"):
        for side in ("query", "document"):
            text = rf"{arm}: 9\d % of the {side} embeddings are duplicates"
            assert any(re.match(text, note) for note in warnings), warnings
    assert "reference: 9" in shown


@pytest.mark.slow
@pytest.mark.parametrize(("calib", "said"), [("", True), ("+calib=10", False)])
def test_a_calibration_on_all_that_is_ranked_is_said(calib: str, said: bool, place: Path, quantdrift: Run) -> None:
    command = ("run", f"TINY@W4-adaround{calib}", "--data", "ROOT/data", "--out", "ROOT/fitted")
    shown = quantdrift(*command)
    text = f"calibrated on all {N_DOCS} documents, the very ones that are ranked"
    assert (text in " ".join(shown.split())) is said
    assert any(note.startswith(text) for note in notes(place, "fitted")) is said
