"""Which models are classifiers, and what is said of those that cannot be loaded as one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from sentence_transformers import SentenceTransformer

from quantdrift.engine.encoders.classifier import load_classifier
from quantdrift.errors import DataError, MissingExtraError, UnsupportedError
from quantdrift.models.classifier_config import is_classifier
from quantdrift.models.named import ModelSource, resolve
from support.classifier_samples import CPU, IMAGE_MODELS, common, loaded, processor, saved, tokenizer

TEXTS = ("the court ruled", "goal", "a painter of the museum of the red match scored a goal")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads only stand in each other's way in models this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_an_embedding_model_is_no_classifier(tmp_path: Path) -> None:
    source = saved(tmp_path, lambda: hf.BertModel(hf.BertConfig(**common())), tokenizer())
    SentenceTransformer(source.location, device="cpu").save(str(tmp_path / "st"))
    config = tmp_path / "st" / "config.json"
    said = json.loads(config.read_text()) | {"architectures": ["BertForSequenceClassification"]}
    config.write_text(json.dumps(said))  # modules.json counts for more
    for one in (source, resolve(str(tmp_path / "st"))):
        assert not is_classifier(one)
        with pytest.raises(UnsupportedError, match="is no classifier"):
            load_classifier(one, device=CPU)


def test_a_head_that_is_not_in_the_checkpoint_is_not_made_up(tmp_path: Path) -> None:
    source = saved(tmp_path, lambda: hf.BertModel(hf.BertConfig(**common())), tokenizer())
    config = tmp_path / "config.json"
    said = json.loads(config.read_text()) | {"architectures": ["BertForSequenceClassification"]}
    config.write_text(json.dumps(said))
    with pytest.raises(UnsupportedError, match=r"no weights for classifier\.bias and 1 more"):
        load_classifier(source, device=CPU)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"architectures": ["WhisperForAudioClassification"]}, "takes audio"),
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


def test_a_hub_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub  # noqa: PLC0415 -- to be replaced where it is looked up
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError  # noqa: PLC0415

    source = ModelSource(name="org/x", canonical="org/x", kind="hub", location="org/x")

    def unreachable(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("no connection\nand more")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    with pytest.raises(UnsupportedError, match=r"'org/x' .* from the hub: no connection$"):
        is_classifier(source)

    def nothing(*_: Any, **__: Any) -> str:
        raise EntryNotFoundError("404")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", nothing)
    assert not is_classifier(source)  # a repository without a config.json


def test_a_classifier_of_the_hub_is_known_by_its_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub  # noqa: PLC0415 -- to be replaced where it is looked up
    from huggingface_hub.errors import EntryNotFoundError  # noqa: PLC0415

    config = tmp_path / "config.json"

    def download(repo: str, file: str, **_: Any) -> str:
        assert repo == "timm/vit"
        if file != "config.json":
            raise EntryNotFoundError("404")
        return str(config)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    source = ModelSource(name="timm/vit", canonical="timm/vit", kind="hub", location="timm/vit")
    for content, wanted in (
        ({"architecture": "vit_tiny_patch16_224", "num_classes": 5}, True),
        ({"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"num_classes": 0}}, False),
        ({"architectures": ["ViTForImageClassification"]}, True),
        ({"architectures": ["ViTModel"]}, False),
    ):
        config.write_text(json.dumps(content))
        assert is_classifier(source) == wanted


@pytest.mark.parametrize(
    ("image", "got"),
    [
        (np.zeros((4, 4), np.uint8), r"uint8 \[4, 4\]"),
        (np.zeros((3, 4, 4), np.uint8), r"uint8 \[3, 4, 4\]"),
        (np.zeros((4, 4, 3), np.float32), r"float32 \[4, 4, 3\]"),
        ("cat.png", "got str"),
    ],
)
def test_what_is_no_image_is_refused(image: Any, got: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=got):
        loaded(tmp_path, "vit").encode([image], "input", 1)


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = saved(tmp_path / "vit", IMAGE_MODELS["vit"][0], processor())
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit", "num_classes": 3}))
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r"quantdrift\[images\]"):
        load_classifier(source, device=CPU)
    with pytest.raises(MissingExtraError, match=r"quantdrift\[timm\]"):
        load_classifier(resolve(str(tmp_path)), device=CPU)
