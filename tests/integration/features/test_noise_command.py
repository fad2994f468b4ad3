"""`quantdrift noise` on a tiny model."""

import json
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from support.tiny_command_line import Run, corpora, one_thread, place, quantdrift

__all__ = ["corpora", "one_thread", "place", "quantdrift"]


def test_every_way_is_a_run(place: Path, quantdrift: Run) -> None:
    asked = ("noise", "TINY", "--data", "ROOT/a", "-k", "20")
    result = json.loads(quantdrift(*asked, "--json"))
    ways = {way["way"]: way["metrics"] for way in result["ways"]}
    assert list(ways)[:5] == ["batch=1", "batch=8", "batch=128", "dtype=fp16", "dtype=bf16"]
    for way in ("batch=1", "dtype=bf16"):
        quantdrift("run", f"TINY@fp+{way}", "--data", "ROOT/a", "-k", "20", "--out", "plain", "--no-cache")
        run = json.loads(Path("plain/run.json").read_text())["metrics"]
        assert ways[way]["flip@1"]["value"] == run["flip@1"]["value"]
        assert ways[way]["epsilon"]["value"] == run["epsilon"]["value"]
    assert ways["dtype=bf16"]["epsilon"]["value"] > 100 * ways["batch=1"]["epsilon"]["value"]


def test_a_server_is_refused(quantdrift: Run) -> None:
    assert "runs elsewhere" in quantdrift("noise", "openai:http://127.0.0.1:1/v1#m", "--data", "ROOT/a", code=2)
