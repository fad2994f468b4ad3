"""What embeds nothing is no reference of a search, wherever the candidate lies."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")


from quantdrift import perturbation
from quantdrift.engine.opening import open_pair
from quantdrift.errors import UnsupportedError
from quantdrift.spec import Versus
from support.candidate_samples import encoder
from support.rerank_samples import save_cross_encoder
from support.versus_samples import DATASET, run_two


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An embedding model, a cross-encoder and a classifier of three classes."""
    folder = tmp_path_factory.mktemp("models")
    made = encoder(folder / "backbone")
    for name in ("embeds", "same"):
        made.save_pretrained(str(folder / name))
    save_cross_encoder(folder / "cross")
    save_cross_encoder(folder / "nli", n_scores=3)
    return folder


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("cross", r"cross is a cross-encoder: .*cross@SCHEME --data FOLDER --shortlist RUN"),
        # as transformers saves it, without sentence-transformers' files
        ("cross-backbone", "cross-backbone is a cross-encoder"),
        ("nli", "nli is a cross-encoder"),
        ("nli-backbone", "is a classifier: it puts out logits of classes"),
    ],
)
def test_a_reference_that_embeds_nothing_is_refused(models: Path, name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=told):
        run_two(models / name, models / "embeds", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_it_is_refused_before_a_server_is_asked(models: Path) -> None:
    """Nobody listens at this address."""
    versus = Versus(reference=str(models / "cross"), candidate="openai:http://127.0.0.1:9/v1#tiny")
    with pytest.raises(UnsupportedError, match="cross is a cross-encoder"):
        open_pair(versus, DATASET, device="cpu")


def test_an_embedding_model_is_still_a_reference(models: Path, tmp_path: Path) -> None:
    run = run_two(models / "embeds", models / "same", tmp_path / "run")
    assert not perturbation.epsilon(run.evidence()).any()
