"""`+guided` on a tiny model, as a user types it."""

import json
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")
pytest.importorskip("gptqmodel", reason="the extra 'gptq' is not installed")

from quantdrift.runs.folder import read_run
from support.beir_folder import numbered, write_beir_folder
from support.tiny_command_line import Run, one_thread, place, quantdrift, text

__all__ = ["one_thread", "place", "quantdrift"]


def test_a_guided_candidate_is_another_is_kept_and_can_be_saved(quantdrift: Run, place: Path, tmp_path: Path) -> None:
    queries = [text(number, 5) for number in range(20)]
    documents = [f"{text(1000 + number, 9)}. {text(3000 + number, 6)}." for number in range(30)]
    write_beir_folder(tmp_path / "data", numbered("q", queries), numbered("c", documents))
    data = ("--data", str(tmp_path / "data"))
    records = {}
    for scheme in ("W3-g32-gptq", "W3-g32-gptq+guided"):
        quantdrift("run", f"TINY@{scheme}", *data, "--out", scheme)
        records[scheme] = read_run(tmp_path / scheme).record
    plain, guided = records.values()
    assert guided["spec"].endswith("W3-g32-gptq+guided=gap")
    assert guided["model"]["candidate_fingerprint"] != plain["model"]["candidate_fingerprint"]
    assert guided["quantization"]["guided"] == "by the gap, 0.6"
    assert guided["bits_per_weight"] == plain["bits_per_weight"]
    again = json.loads(quantdrift("run", "TINY@W3-g32-gptq+guided", *data, "--out", "again", "--json"))
    assert again["quantization"]["layers_kept_from_before"] == len(again["quantization"]["layers"])
    assert again["model"]["candidate_fingerprint"] == guided["model"]["candidate_fingerprint"]
    quantdrift("quantize", "TINY@W3-g32-gptq+guided", *data, "--out", "saved")
    saved = json.loads((tmp_path / "saved" / "scheme.json").read_text())
    assert saved["spec"].endswith("+guided=gap")


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("W3-g32-rtn+guided", "+guided= has no effect on W3-g32-rtn+guided=gap"),
        ("W3-g32-gptq+guided=loss", "unusable value of guided"),
    ],
)
def test_what_cannot_be_guided_is_refused_in_one_line(scheme: str, message: str, quantdrift: Run) -> None:
    error = quantdrift("run", f"TINY@{scheme}", "--data", "ROOT/data", code=2)
    assert message in error
