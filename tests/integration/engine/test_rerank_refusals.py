"""What cannot be reranked is said before it costs time, and how models of other forms are read."""

import re
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

import torch
from sentence_transformers import CrossEncoder

from quantdrift.checkpoints.named import resolve
from quantdrift.engine.encoders.cross_encoder import load_cross_encoder
from quantdrift.engine.encoders.sentence import pick_device
from support.finished_samples import write_trec
from support.rerank_samples import lists, save_cross_encoder, write_data
from support.tiny_command_line import Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]

CPU = pick_device("cpu")
PAIRS = [("wing drag", "the drag of the wing"), ("heat", "boundary layer"), ("flow", "shock wave")]


@pytest.fixture(scope="module", autouse=True)
def _data(place: Path) -> None:
    save_cross_encoder(place / "cross")
    save_cross_encoder(place / "nli", n_scores=3)
    write_trec(place / "bm25.trec", lists())
    write_data(place / "judged")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("TINY@W4", "an embedding model, which searches .leave --shortlist out"),
        ("ROOT/nli@W4", "gives a pair 3 scores"),
        ("ROOT/nli-backbone@W4", "is a classifier, which takes classification data"),
        ("ROOT/cross@W4+query", ".query needs embeddings.*and a cross-encoder"),
        ("ROOT/cross@W3.5+gap", "the criterion gap needs embeddings"),
        ("ROOT/cross vs ROOT/cross", "with --shortlist is not available"),
    ],
)
def test_models_and_schemes_that_cannot_rerank(spec: str, message: str, quantdrift: Run) -> None:
    command = ("run", spec, "--data", "ROOT/judged", "--shortlist", "ROOT/bm25.trec")
    shown = quantdrift(*command, code=2)
    assert re.search(message, shown), shown
    assert "Traceback" not in shown


def test_a_shortlist_of_other_data_is_refused(quantdrift: Run) -> None:
    quantdrift("run", "TINY@W8", "--data", "ROOT/data", "--out", "other")
    command = ("run", "ROOT/cross@W4", "--data", "ROOT/judged", "--shortlist", "other")
    shown = quantdrift(*command, code=2)
    assert "is of other data than judged" in shown


@pytest.mark.skipif(
    not hasattr(CrossEncoder, "set_keep_in_fp32_modules"), reason="sentence-transformers is older than 6.2"
)
def test_a_head_of_low_precision_scores_in_float32(tmp_path: Path) -> None:
    folder = save_cross_encoder(tmp_path / "half", dtype=torch.bfloat16)
    model = load_cross_encoder(resolve(str(folder)), device=CPU, dtype="bfloat16")
    assert next(model.model.parameters()).dtype == torch.bfloat16
    assert model.model.keep_in_fp32_modules == ["0.model.classifier"]
    scores = model.encode(PAIRS, "pair", 2)[:, 0]
    rounded = torch.from_numpy(scores).bfloat16().float().numpy()
    assert (scores != rounded).any()
