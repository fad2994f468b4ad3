"""`quantdrift diagnose`: against a folder, against a server, as JSON, and what it refuses."""

import json

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

pytest.importorskip("httpx", reason="httpx is not installed")

from support.embedding_server import no_long_texts, of_model, serving
from support.tiny_command_line import Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]


@pytest.fixture(scope="module")
def pooled(place):
    model = SentenceTransformer(str(place / "tiny"), device="cpu")
    model[1].pooling_mode = "cls"
    model.save(str(place / "pooled"))
    return model


def test_a_folder_that_pools_in_another_way(quantdrift: Run, pooled):
    shown = quantdrift("diagnose", "TINY vs ROOT/pooled", "--data", "ROOT/data", "-n", "22")
    assert "the candidate pools by cls" in shown
    assert "set the candidate's pooling to mean" in shown
    assert "That explains all of it." in shown
    result = json.loads(quantdrift("diagnose", "TINY vs ROOT/pooled", "--data", "ROOT/data", "-n", "22", "--json"))
    assert [entry["name"] for entry in result["found"]] == ["pooling"]
    assert result["left"] < 1e-6 < result["before"]


def test_a_server_that_rounds(quantdrift: Run, place):
    model = SentenceTransformer(str(place / "tiny"), device="cpu")
    with serving(rounding=lambda texts: np.round(model.encode(list(texts)), 1)) as server:
        words = ("diagnose", f"TINY vs {server.name('rounding')}", "--data", "ROOT/data", "-n", "22")
        shown, result = quantdrift(*words), json.loads(quantdrift(*words, "--json"))
    assert "No hypothesis explains it" in shown
    assert result["left"] == pytest.approx(result["before"])


def test_a_text_that_a_server_refuses_is_left_out(quantdrift: Run, place):
    model = SentenceTransformer(str(place / "tiny"), device="cpu")
    with serving(tiny=of_model(model)) as server:
        server.always = no_long_texts
        words = ("diagnose", f"TINY vs {server.name('tiny')}", "--data", "ROOT/data", "-n", "22", "--json")
        few = json.loads(quantdrift(*words))
        server.always = None
        assert few["n"] < json.loads(quantdrift(*words))["n"]


def test_one_model_is_refused(quantdrift: Run):
    shown = quantdrift("diagnose", "TINY@W4", "--data", "ROOT/data", code=2)
    assert 'expected two, such as "minilm vs ./minilm-onnx"' in shown
