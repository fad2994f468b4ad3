"""What embeds nothing is no reference of a search, wherever the candidate lies."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")


from quantdrift.errors import UnsupportedError
from support.candidate_samples import encoder
from support.rerank_samples import save_cross_encoder
from support.versus_samples import run_two


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
        ("cross", r"cross is a cross-encoder, .*--shortlist RUN"),
        # as transformers saves it, without sentence-transformers' files
        ("cross-backbone", "cross-backbone is a cross-encoder"),
        ("nli", "nli is a cross-encoder"),
        ("nli-backbone", "is a classifier, which takes classification data"),
    ],
)
def test_a_reference_that_embeds_nothing_is_refused(models: Path, name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=told):
        run_two(models / name, models / "embeds", tmp_path / "run")
    assert not (tmp_path / "run").exists()
