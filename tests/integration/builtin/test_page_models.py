"""ColPali and ColQwen2 through `quantdrift run`: images as documents, against transformers' own scores."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from torch import nn

from quantdrift.data.retrieval import read_beir_folder
from quantdrift.runs.folder import read_run
from support.page_models import page_model
from support.row_models import search_data
from support.small_clip import image_search
from support.tiny_command_line import Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]


@pytest.fixture(scope="module", autouse=True)
def folders(place: Path) -> None:
    image_search(place / "pages")
    search_data(place / "rows")


def scores(model: Any, processor: Any, folder: Path) -> np.ndarray:
    """MaxSim [n_queries, n_documents] by transformers alone, an input at a time."""
    data = read_beir_folder(folder)
    given = [processor.process_queries(text=[text], return_tensors="pt") for text in data.queries]
    pages = [processor.process_images([Image.fromarray(image)], return_tensors="pt") for image in data.documents]
    with torch.no_grad():
        queries, documents = (
            [model(**{k: v for k, v in one.items() if k != "labels"}).embeddings[0] for one in side]
            for side in (given, pages)
        )
    return np.asarray(processor.score_retrieval(queries, documents))


def by_hand(model: nn.Module) -> None:
    """Round linear weights to 4 bits, a scale for a row: none has more than a group of columns."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            scale = (module.weight.data.abs().amax(1, keepdim=True) / 7).clamp(min=1e-12)
            module.weight.data = (module.weight.data / scale).round() * scale


@pytest.mark.parametrize("name", ["ColPali", "ColQwen2"])
def test_both_arms_score_as_transformers_does(name: str, place: Path, quantdrift: Run) -> None:
    model, processor = page_model(name, place / name)
    shown = quantdrift("run", f"ROOT/{name}@W4-rtn", "--data", "ROOT/pages", "--out", "run")
    full = scores(model, processor, place / "pages")
    by_hand(model)
    low = scores(model, processor, place / "pages")
    finished = read_run(Path("run"))
    evidence = finished.evidence()
    for made, top in ((full, evidence.reference_top), (low, evidence.candidate_top)):
        assert [f"i{place}" for place in made.argmax(axis=1)] == evidence.item_ids[top.items[:, 0]].tolist()
    first = evidence.reference_top.reference_scores[:, 0]
    assert first == pytest.approx(full.max(axis=1), rel=1e-5)
    assert evidence.delta_max == pytest.approx((low - full).max(axis=1), abs=1e-4)
    assert evidence.delta_min == pytest.approx((low - full).min(axis=1), abs=1e-4)
    assert finished.record["model"]["layers_quantized"] == sum(isinstance(part, nn.Linear) for part in model.modules())
    assert finished.record["model"]["layers_never_reached"] == []
    assert finished.record["data"]["modalities"] == "text to image"
    assert "texts as it reads queries" not in shown
    MultiVectorEncoder(str(place / name), device="cpu").save_pretrained(str(place / f"{name}-again"))
    quantdrift("run", f"ROOT/{name}-again@fp+emb=int8", "--data", "ROOT/pages", "--out", "again")
    assert read_run(Path("again")).evidence().reference_top.reference_scores[:, 0] == pytest.approx(first, rel=1e-6)


def test_both_kinds_of_inputs_are_calibrated_on(place: Path, quantdrift: Run) -> None:
    page_model("ColPali", place / "calibrated")
    quantdrift("run", "ROOT/calibrated@W4-gptq", "--data", "ROOT/pages", "--out", "run")
    finished = read_run(Path("run"))
    made = finished.record["quantization"]
    assert all(layer["n_tokens"] for layer in made["layers"])
    assert made["calibration"]["n_queries"] == 4  # a quarter of 16
    assert finished.evidence().n_inputs == 12


def test_texts_as_documents_are_told(place: Path, quantdrift: Run) -> None:
    page_model("ColPali", place / "texts")
    shown = quantdrift("run", "ROOT/texts@W4", "--data", "ROOT/rows", "--out", "run")
    told = "is made for documents that are images, and reads texts as it reads queries"
    assert told in " ".join(shown.split())
    data, model = read_beir_folder(place / "rows"), MultiVectorEncoder(str(place / "texts"), device="cpu")
    queries, documents = ([{"text": text} for text in side] for side in (data.queries, data.documents))
    expected = model.similarity(model.encode_query(queries), model.encode_document(documents)).numpy()
    top = read_run(Path("run")).evidence().reference_top.reference_scores[:, 0]
    assert top == pytest.approx(expected.max(axis=1), rel=1e-5)


def test_a_processor_that_its_library_calls_otherwise_is_refused(place: Path, quantdrift: Run) -> None:
    page_model("ColModernVBert", place / "modern")
    told = quantdrift("run", "ROOT/modern@W4", "--data", "ROOT/pages", "--out", "run", code=2)
    assert "reads the queries of" in told
    assert "otherwise than process_queries of its ColModernVBertProcessor does" in " ".join(told.split())


def test_a_projection_that_no_file_holds_is_refused(place: Path, quantdrift: Run) -> None:
    page_model("ColPali", place / "bare")
    file = place / "bare" / "model.safetensors"
    kept = {key: value for key, value in load_file(file).items() if not key.startswith("embedding_proj_layer")}
    save_file(kept, file, {"format": "pt"})
    told = quantdrift("run", "ROOT/bare@W4", "--data", "ROOT/pages", "--out", "run", code=2)
    assert "has no weights for embedding_proj_layer.bias and 1 more" in " ".join(told.split())
