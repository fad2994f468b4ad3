"""Text-to-image searches: CLIP of transformers and of open_clip, against these libraries themselves."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPModel, CLIPProcessor

from quantdrift.api import drift
from quantdrift.asking.opening import load_model
from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.sentence.work import load_encoder
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.data.retrieval import read_beir_folder
from quantdrift.models.files.named import resolve
from support.small_clip import image_search, small_clip
from support.versus_samples import check

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_search(tmp_path_factory.mktemp("images") / "data")


def similarities(model: Any, processor: Any, folder: Path) -> np.ndarray:
    """Cosines of the captions [n_queries] and images [n_documents], by transformers alone."""
    data = read_beir_folder(folder)
    pictures = [Image.fromarray(image) for image in data.documents]
    with torch.no_grad():
        given = processor(text=list(data.queries), images=pictures, return_tensors="pt", padding=True)
        return np.asarray(model(**given).logits_per_text / model.logit_scale.exp())


def test_both_arms_are_what_transformers_computes(clip: Path, search: Path) -> None:
    run = drift(str(clip), "W3-rtn", search, cache=False)
    model, processor = CLIPModel.from_pretrained(clip).eval(), CLIPProcessor.from_pretrained(clip)
    full = similarities(model, processor, search)
    pair = QuantizedPair(model, "W3-rtn")
    with pair.candidate():
        low = similarities(model, processor, search)
    check(run, full, low, 1e-5, read_beir_folder(search).document_ids)
    assert run.record["model"]["layers_quantized"] == len(pair.layers) == 26
    assert run.record["model"]["layers_never_reached"] == []
    assert run.record["data"]["modalities"] == "text to image"


def test_a_caption_that_is_a_path_is_read_and_not_opened(clip: Path, tmp_path: Path) -> None:
    """sentence-transformers would take it for an image; both captions are as many unknown words."""
    Image.new("RGB", (16, 16)).save(tmp_path / "secret.png")
    encoder = load_encoder(resolve(str(clip)), device=CPU)
    opened = encoder.encode([str(tmp_path / "secret.png")], "query", 1)
    other = encoder.encode([str(tmp_path / "public.png")], "query", 1)
    assert np.array_equal(opened, other)


def test_images_are_embedded_as_many_at_once_as_was_asked_for(clip: Path, search: Path) -> None:
    encoder, data = load_encoder(resolve(str(clip)), device=CPU), read_beir_folder(search)
    sizes = []
    encoder.model[0].register_forward_pre_hook(lambda _, given: sizes.append(len(given[0]["pixel_values"])))
    vectors = encoder.encode(data.documents, "document", 8)
    assert sizes == [8, 8, 4]
    assert np.allclose(vectors, encoder.encode(data.documents, "document", 20), atol=1e-6)


@pytest.mark.parametrize("scheme", ["W4-gptq", "W4A8"])
def test_both_towers_are_calibrated_and_the_queries_of_that_left_out(scheme: str, clip: Path, search: Path) -> None:
    run = drift(str(clip), scheme, search, cache=False)
    made = run.record["quantization"]
    assert not made["fallbacks"]
    assert all(layer["n_tokens"] for layer in made["layers"])
    assert made["calibration"]["n_inputs"] == 20
    assert made["calibration"]["n_queries"] == 4  # a quarter of 16
    assert (run.record["data"]["inputs_left_out"], run.evidence().n_inputs) == (4, 12)


def test_texts_of_a_file_take_the_queries_place(clip: Path, search: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a photo of a cat\na dark ship\n")
    run = drift(str(clip), f"W4-gptq+calib={tmp_path / 'texts.txt'}", search, cache=False)
    assert (run.record["quantization"]["calibration"]["n_queries"], run.evidence().n_inputs) == (2, 16)


def test_widths_are_chosen_by_the_gaps_between_captions_and_images(clip: Path, search: Path) -> None:
    run = drift(str(clip), "W3.5+gap", search, cache=False)
    losses = run.record["quantization"]["allocation"]["losses"]
    assert any("vision" in name and loss > 0 for name, loss in losses.items())
    assert any("text" in name and loss > 0 for name, loss in losses.items())
    assert run.evidence().n_inputs == 12


def test_a_model_of_texts_alone_is_refused(search: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"documents of data .*minilm"):
        drift("minilm", "W4", search, cache=False)


# --- open_clip ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def open_clip() -> Any:
    """The library, or a reason why these tests cannot run: it needs a torchvision that is built for this torch."""
    try:
        return importlib.import_module("open_clip")
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(f"open_clip cannot be imported here: {str(error).splitlines()[0]}")


@pytest.fixture(scope="module")
def open_folder(open_clip: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as open_clip writes them."""
    from safetensors.torch import save_file  # noqa: PLC0415 -- as the library

    sizes = {
        "embed_dim": 32,
        "vision_cfg": {"image_size": 16, "layers": 2, "width": 64, "patch_size": 8, "head_width": 32},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
    }
    settings = {"model_cfg": sizes, "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    folder = tmp_path_factory.mktemp("open_clip")
    (folder / "open_clip_config.json").write_text(json.dumps(settings))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = open_clip.CLIP(**sizes)
    save_file(
        {name: value.contiguous() for name, value in model.state_dict().items()}, folder / "open_clip_model.safetensors"
    )
    return folder


def test_open_clip_is_run_as_it_runs_itself(open_clip: Any, open_folder: Path, search: Path) -> None:
    model, _, prepare = open_clip.create_model_and_transforms(f"local-dir:{open_folder}")
    tokens = open_clip.get_tokenizer(f"local-dir:{open_folder}")
    data = read_beir_folder(search)
    with torch.no_grad():
        texts = model.eval().encode_text(tokens(list(data.queries)))
        images = model.encode_image(torch.stack([prepare(Image.fromarray(image)) for image in data.documents]))
    encoder = load_model(f"open_clip:{open_folder}", None, device="cpu")
    assert np.allclose(encoder.encode(data.queries, "query", 4), texts.numpy(), atol=1e-5)
    assert np.allclose(encoder.encode(data.documents, "document", 4), images.numpy(), atol=1e-5)


def test_what_torchs_attention_multiplies_by_is_quantized_and_seen(open_folder: Path, search: Path) -> None:
    run = drift(str(open_folder), "W4A8", search, cache=False)
    assert run.record["model"]["layers_quantized"] == 16  # 4 blocks of in_proj, out_proj, c_fc, c_proj
    assert run.record["model"]["layers_never_reached"] == []
    activations = run.record["quantization"]["activations"]
    assert (activations["layers_covered"], activations["not_covered"]) == (16, [])


def test_code_that_a_config_asks_for_is_not_run(open_folder: Path, tmp_path: Path) -> None:
    settings = json.loads((open_folder / "open_clip_config.json").read_text())
    settings["model_cfg"]["text_cfg"]["tokenizer_kwargs"] = {"trust_remote_code": True}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(settings))
    with pytest.raises(UnsupportedError, match="trust_remote_code"):
        load_model(str(tmp_path), None, device="cpu")
