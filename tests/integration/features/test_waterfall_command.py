"""`quantdrift waterfall` on a tiny model: shares add up to what `run` finds, and embeddings are made once."""

import json
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")
pytest.importorskip("faiss", reason="the extra 'faiss' is not installed")

from support.tiny_command_line import Run, corpora, counted_inputs, one_thread, place, quantdrift

__all__ = ["corpora", "one_thread", "place", "quantdrift"]

SPEC = "TINY@W3+emb=int8+index=IVF4,Flat"


def test_shares_add_up_to_what_run_finds(place: Path, quantdrift: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = counted_inputs(monkeypatch)
    result = json.loads(quantdrift("waterfall", SPEC, "--data", "ROOT/a", "-k", "20", "--no-noise-floor", "--json"))
    n = len((place / "a" / "corpus.jsonl").read_text().splitlines())
    n += len((place / "a" / "queries.jsonl").read_text().splitlines())
    looked_at = 2 * 2 * 7  # each combination first looks at which layers two inputs of either side reach
    assert sum(encoded) == 2 * n + looked_at
    flips = result["waterfalls"][0]
    assert [stage["name"] for stage in flips["stages"]] == ["weights", "embeddings", "index"]
    quantdrift("run", SPEC, "--data", "ROOT/a", "-k", "20", "--out", "plain")
    run = json.loads(Path("plain/run.json").read_text())["metrics"]
    assert len(result["waterfalls"]) == 1  # there are no labels
    assert flips["total"]["value"] == pytest.approx(run["flip@1"]["value"])
    assert sum(stage["share"]["value"] for stage in flips["stages"]) == pytest.approx(run["flip@1"]["value"])
    quantdrift("report", result["path"], "-o", "page.html", quiet=False)
    assert "Every run at a glance" in Path("page.html").read_text()
    stamps = {path: path.stat().st_mtime_ns for path in Path(result["path"]).glob("cells/*/run.json")}
    again = json.loads(quantdrift("waterfall", SPEC, "--data", "ROOT/a", "-k", "20", "--no-noise-floor", "--json"))
    assert (again, stamps) == (result, {path: path.stat().st_mtime_ns for path in stamps})


def test_one_stage_is_refused(quantdrift: Run) -> None:
    quantdrift("waterfall", "TINY@W3", "--data", "ROOT/a", code=2)
    told = quantdrift("waterfall", "TINY@W3+query+table=4", "--data", "ROOT/a", code=2)
    assert "cannot be measured alone" in told
