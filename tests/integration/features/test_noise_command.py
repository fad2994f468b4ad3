"""`quantdrift noise` on a tiny model, and on a server whose answers depend on the company of a text."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from support.embedding_server import of_letters, of_odd_letters, serving
from support.tiny_command_line import Run, corpora, one_thread, place, quantdrift

__all__ = ["corpora", "one_thread", "place", "quantdrift"]


def test_every_way_is_a_run_and_is_held_against_one(place: Path, quantdrift: Run) -> None:
    quantdrift("run", "TINY@W2", "--data", "ROOT/a", "-k", "20", "--out", "w2")
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
    assert "more than any" in " ".join(quantdrift(*asked, "--against", "w2").split())
    quantdrift("noise", "TINY", "--data", "ROOT/b", "--against", "w2", code=2)
    told = quantdrift("noise", "minilm", "--data", "ROOT/a", "--against", "w2", code=2)
    assert "expected --against with a run of minilm; that of w2 is of" in told


@pytest.mark.parametrize(
    ("odd", "way"),
    [
        (lambda texts: len(texts) == 1, "4 requests of 1"),
        (lambda texts: len(texts) > 1 and len({*texts}) == 1, "4 requests of a text twice"),
    ],
)
def test_a_server_that_answers_by_what_is_in_a_batch(quantdrift: Run, odd: Callable[..., bool], way: str) -> None:
    """Some batches are embedded by another model: all that changes is of the way that has them."""

    def embed(texts):
        return of_odd_letters(texts) if odd(texts) else of_letters(texts)

    with serving(m=embed) as server:
        result = json.loads(quantdrift("noise", server.name("m"), "--data", "ROOT/a", "-k", "20", "--json"))
    flips = {way["way"]: way["metrics"]["flip@1"]["value"] for way in result["ways"]}
    assert flips.pop(way) > 0
    assert set(flips.values()) == {0}
