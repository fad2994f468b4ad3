"""The offline variant of every suite, run on tiny models and tiny data: each gives the tables that it is for."""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import BertForSequenceClassification, ViTConfig, ViTForImageClassification, ViTImageProcessorPil

from quantdrift.study.suites import load_suite, suite_names
from support.beir_folder import numbered, write_beir_folder
from support.candidate_samples import bert, save_backbone
from support.rerank_samples import save_cross_encoder
from support.small_clip import image_search, small_clip
from support.tiny_command_line import Run, corpora, one_thread, place, quantdrift, text

__all__ = ["corpora", "one_thread", "place", "quantdrift"]

CLIP = ("ROOT/clip", "ROOT/captions")
WITH = {
    "allocation": ("TINY", "ROOT/more"),
    "classes": ("TINY", "ROOT/labelled"),
    "clip": CLIP,
    "clip-allocation": CLIP,
    "clip-sizes": ("ROOT/clip", "ROOT/many"),
    "contrast": ("TINY", "ROOT/labelled"),
    "corpus-sizes": ("TINY", "PythonDocsSmall"),
    "fine-tuned": ("ROOT/classifier", "ROOT/labelled"),
    "images": ("ROOT/vit", "ROOT/images.npz"),
    "image-sizes": ("ROOT/vit", "ROOT/images.npz"),
    "reranking": ("ROOT/reranker", "ROOT/data"),
    "text": ("TINY", "ROOT/more"),
}
"""Model and data, where they are not the texts that others have."""
WITHOUT = {
    "classes": {"accrank", "routing_sweep"},
    "clip-allocation": {"alloc_seed"},
    "fine-tuned": {"fragility", "routing_sweep"},
    "images": {"accrank"},
    "rag": {"alloc_rag_gap", "alloc_rag_mse", "rag"},
}
"""Tables that need several data, lost accuracy, two draws, a search beside the classes, or a reader."""


@pytest.fixture(scope="module")
def models(place: Path) -> None:
    """What the suites measure beside an encoder and a search of texts."""
    save_cross_encoder(place / "reranker")
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    save_backbone(place / "classifier", BertForSequenceClassification(bert(**sizes, num_labels=3)))
    (place / "labelled").mkdir()
    for part, start in (("train", 0), ("test", 500)):
        rows = [{"text": text(start + n), "label": f"LABEL_{n % 3}"} for n in range(60)]
        (place / "labelled" / f"{part}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    patches = {"image_size": 8, "patch_size": 4, "num_hidden_layers": 2, "num_labels": 3}
    ViTForImageClassification(ViTConfig(**sizes, **patches)).save_pretrained(place / "vit")
    ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(place / "vit")
    pixels = np.random.default_rng(0).integers(0, 256, (1060, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(len(pixels)) % 3
    np.savez(place / "images.npz", x_train=pixels[:30], y_train=labels[:30], x_test=pixels[30:], y_test=labels[30:])
    asked, documents = ([text(start + n, 5) for n in range(size)] for start, size in ((8000, 280), (9000, 30)))
    qrels = {f"q{n}": [f"c{n % 30}"] for n in range(280)}
    write_beir_folder(place / "more", numbered("q", asked), numbered("c", documents), qrels)
    small_clip(place / "clip")
    image_search(place / "captions", n_queries=80)
    image_search(place / "many", n_images=510)


@pytest.mark.slow
@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("name", suite_names())
def test_a_suite_gives_its_tables(name: str, quantdrift: Run) -> None:
    model, data = WITH.get(name, ("TINY", "ROOT/data"))
    quantdrift("study", "run", "--suite", name, "--offline", "--models", model, "--data", data)
    folder = Path(f"quantdrift-runs/{name}-offline")
    print(quantdrift("tables", str(folder), "-o", "tex", quiet=False))
    made = {file.stem for kind in ("tables", "figures") for file in Path("tex", kind).iterdir()}
    assert {*load_suite(name).shows} - made == WITHOUT.get(name, set())
