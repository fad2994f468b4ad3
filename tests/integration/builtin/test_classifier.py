"""Classifiers of transformers, sentence-transformers and timm: their logits, and their heads."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from sentence_transformers import CrossEncoder
from torch import nn

from quantdrift.asking.opening import before_head
from quantdrift.base.errors import ScoreError, UnsupportedError
from quantdrift.builtin.classifier.work import load_classifier
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.models.files.kinds import classifier_kind
from quantdrift.models.files.named import ModelSource, resolve
from quantdrift.models.heads import find_head
from quantdrift.models.layers import find_linears
from quantdrift.spec.grammar import parse_scheme
from support.classifier_samples import (
    CPU,
    IMAGE_MODELS,
    LABELS,
    OTHER_MODELS,
    POSITIONS,
    TEXT_MODELS,
    close,
    common,
    images,
    loaded,
    saved,
    tokenizer,
)

TEXTS = ("the court ruled", "goal", "a painter of the museum of the red match scored a goal")


def of_pipeline(task: str, source: ModelSource, inputs: Any, **settings: Any) -> list[list[float]]:
    """Logits as transformers' own pipeline gives them, one input at a time, by position."""
    run: Any = hf.pipeline(task, model=source.location, device=CPU, **settings)
    logits = [run(item, top_k=len(LABELS), function_to_apply="none") for item in inputs]
    return [
        [{entry["label"]: entry["score"] for entry in answer}[label] for label in LABELS.values()] for answer in logits
    ]


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_logits_of_texts_are_those_of_transformers_own_pipeline(name: str, tmp_path: Path) -> None:
    classifier = loaded(tmp_path, name)
    assert (classifier.takes, classifier.classes) == ("text", ("sport", "law", "art"))
    logits = classifier.encode(TEXTS, "input", 1)
    assert (logits.dtype, logits.shape) == (np.float32, (3, 3))
    source = classifier.source
    assert source is not None
    assert close(logits, of_pipeline("text-classification", source, TEXTS))
    assert np.ptp(logits, axis=0).min() > 0.01  # and differ from text to text
    for batch_size in (2, 3, 10):
        assert close(classifier.encode(TEXTS, "input", batch_size), logits)
    assert classifier.encode([], "input", 2).shape == (0, 3)


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_logits_of_images_are_those_of_transformers_own_pipeline(name: str, tmp_path: Path) -> None:
    from PIL import Image  # noqa: PLC0415 -- an optional package

    classifier = loaded(tmp_path, name)
    assert (classifier.takes, classifier.classes) == ("image", ("sport", "law", "art"))
    arrays = images()
    pictures = [Image.fromarray(array) for array in arrays]
    logits = classifier.encode(arrays, "input", 1)
    assert classifier.source is not None
    assert close(logits, of_pipeline("image-classification", classifier.source, pictures))
    assert logits.shape == (3, 3)
    assert np.ptp(logits, axis=0).min() > 1e-4
    assert close(classifier.encode(arrays, "input", 2), logits)
    assert np.array_equal(classifier.encode(pictures, "input", 1), logits)


@pytest.mark.parametrize("name", [*TEXT_MODELS, *IMAGE_MODELS, *OTHER_MODELS])
def test_the_head_of_every_model_is_found_and_left_out(name: str) -> None:
    build, layers = (TEXT_MODELS | IMAGE_MODELS | OTHER_MODELS)[name]
    model = build()
    assert find_head([model])
    everything = [layer.name for layer in find_linears([model])]
    others = [layer for layer in everything if layer not in layers]
    if not others:
        with pytest.raises(UnsupportedError, match="0 are left"):
            QuantizedPair([model], parse_scheme("W4"))
        return
    pair = QuantizedPair([model], parse_scheme("W4"))
    assert [layer.name for layer in pair.layers] == others
    assert pair.describe()["layers_left_out"] == dict.fromkeys(layers, "classification head")
    whole = QuantizedPair([model], parse_scheme("W4+head=none"))
    assert [layer.name for layer in whole.layers] == everything


def test_only_a_linear_head_is_searched_by_its_input(tmp_path: Path) -> None:
    """What goes into the head, times the head, is the logits."""
    scheme = parse_scheme("W3")
    classifier = loaded(tmp_path, "bert")
    before, head = before_head("bert", classifier, QuantizedPair([classifier.module], scheme))
    vectors = before.encode(TEXTS, "input", len(TEXTS))
    assert close(head.logits(vectors), classifier.encode(TEXTS, "input", len(TEXTS)))
    assert close(head.graph(torch.from_numpy(vectors)).detach(), head.logits(vectors))
    assert before.key("input") != classifier.key("input")
    dense = classifier.module.get_submodule("bert.encoder.layer.0.output.dense")  # which sees tokens
    with pytest.raises(ScoreError, match="no vector"):
        replace(classifier, before=("dense", dense)).encode(TEXTS, "input", 2)
    deep = loaded(tmp_path, "roberta")
    with pytest.raises(UnsupportedError, match="roberta"):
        before_head("roberta", deep, QuantizedPair([deep.module], scheme))


def test_texts_beyond_the_limit_are_cut(tmp_path: Path) -> None:
    """RoBERTa counts positions from behind the padding's: of 24 it can use 23."""
    for name, limit in (("bert", POSITIONS), ("roberta", POSITIONS - 1)):
        classifier = loaded(tmp_path / name, name)
        words = ("goal match " * POSITIONS).split()
        longest, longer = (" ".join(words[:n]) for n in (limit - 2, limit + 5))
        shorter = " ".join(words[: limit - 3])
        logits = classifier.encode([longest, longer, shorter], "input", 1)
        assert np.array_equal(logits[0], logits[1])
        assert not np.array_equal(logits[0], logits[2])
        assert f"at most {limit} tokens" in classifier.description


def test_a_cross_encoder_keeps_its_head_and_is_refused_as_a_classifier(tmp_path: Path) -> None:
    config = hf.BertConfig(**common(id2label={0: "relevant"}))
    saved(tmp_path / "plain", lambda: hf.BertForSequenceClassification(config), tokenizer())
    model = CrossEncoder(str(tmp_path / "plain"), device="cpu")
    pair = QuantizedPair([model], parse_scheme("W4"))
    (name,) = pair.left_out
    assert name.endswith("model.classifier")
    assert len(pair.layers) == 2 * 6 + 1  # two blocks and the pooler
    model.save_pretrained(str(tmp_path / "cross"))
    for folder in ("plain", "cross"):
        source = resolve(str(tmp_path / folder))
        assert classifier_kind(source)
        with pytest.raises(UnsupportedError, match="quantdrift run --s"):
            load_classifier(source, device=CPU)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"architectures": ["WhisperForAudioClassification"]}, "no classifier of texts or images"),
        ({"architectures": ["BertForSequenceClassification"], "model_type": "none"}, "loaded from"),
        ("{", "cannot be read"),
    ],
)
def test_what_cannot_be_loaded_is_said_in_one_line(content: Any, said: str, tmp_path: Path) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UnsupportedError, match=said) as caught:
        load_classifier(resolve(str(tmp_path)), device=CPU)
    assert "\n" not in str(caught.value)


# --- timm, which needs torchvision; where they cannot be imported, these tests are skipped -----------


@pytest.fixture(scope="module")
def timm() -> Any:
    """The library, or a reason why these tests cannot run."""
    try:
        return importlib.import_module("timm")
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(f"timm cannot be imported here: {str(error).splitlines()[0]}")


SIZES = {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 3}
HEADS = {"vit_tiny_patch16_224": ("head",), "deit_tiny_distilled_patch16_224": ("head", "head_dist")}


@pytest.mark.parametrize("name", HEADS)
def test_a_model_of_timm_is_loaded_with_its_own_preprocessing(name: str, timm: Any, tmp_path: Path) -> None:
    from PIL import Image  # noqa: PLC0415 -- an optional package

    with torch.random.fork_rng():
        torch.manual_seed(0)
        overlay = {"input_size": (3, 32, 32)}
        model = timm.create_model(name, pretrained=False, num_classes=3, pretrained_cfg_overlay=overlay, **SIZES).eval()
        for parameter in model.parameters():  # some begin with zeros
            nn.init.normal_(parameter, std=0.3)
    timm.models.save_for_hf(model, tmp_path, model_args=SIZES, safe_serialization=True)
    source = resolve(str(tmp_path))
    assert classifier_kind(source)
    classifier = load_classifier(source, device=CPU)
    assert (classifier.takes, len(classifier.classes)) == ("image", 3)
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=model))
    batch = torch.stack([transform(Image.fromarray(array)) for array in images()])
    with torch.no_grad():
        wanted = model(batch)
        pooled = model.forward_head(model.forward_features(batch), pre_logits=True)
    assert close(classifier.encode(images(), "input", 3), wanted)
    assert close(classifier.encode(images(), "input", 1), wanted)
    pair = QuantizedPair([classifier.module], parse_scheme("W3"))
    assert tuple(pair.left_out) == tuple(f"timm_model.{head}" for head in HEADS[name])
    if len(HEADS[name]) == 1:  # what a contrast searches by is timm's own pooled representation
        before, head = before_head("vit", classifier, pair)
        vectors = before.encode(images(), "input", 3)
        assert close(vectors, pooled)
        assert close(head.logits(vectors), wanted)
    with pair.candidate():
        assert not close(classifier.encode(images(), "input", 3), wanted)
