"""Tiny random classifiers of transformers, saved to a folder and loaded from there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from numpy.typing import NDArray
from torch import nn

from quantdrift.builtin.classifier.work import Classifier, load_classifier
from quantdrift.models.files.kinds import classifier_kind
from quantdrift.models.files.named import ModelSource, resolve
from support import candidate_samples

CPU = torch.device("cpu")
LABELS = {0: "sport", 1: "law", 2: "art"}
WORDS = ("the", "a", "court", "ruled", "goal", "scored", "painter", "of", "museum", "match", "red")
POSITIONS = 24
IMAGE = 32


def tokenizer() -> Any:
    return candidate_samples.tokenizer(WORDS, model_input_names=["input_ids", "attention_mask"])


SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 2}


def save_classifier(folder: Path) -> None:
    """A BERT of three classes."""
    saved(folder, TEXT_MODELS["bert"][0], tokenizer())


def common(**more: Any) -> dict[str, Any]:
    special = {f"{kind}_token_id": number for number, kind in enumerate(("pad", "bos", "eos"))}
    lengths = {"vocab_size": len(tokenizer()), "max_position_embeddings": POSITIONS}
    return {**SIZES, **lengths, **special, "initializer_range": 0.5, "id2label": LABELS, **more}


TEXT_MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "bert": (lambda: hf.BertForSequenceClassification(hf.BertConfig(**common())), ("classifier",)),
    "roberta": (  # two layers in one head
        lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**common())),
        ("classifier.dense", "classifier.out_proj"),
    ),
    "qwen3": (
        lambda: hf.Qwen3ForSequenceClassification(hf.Qwen3Config(num_key_value_heads=1, head_dim=16, **common())),
        ("score",),
    ),
}
IMAGE_MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "vit": (
        lambda: hf.ViTForImageClassification(
            hf.ViTConfig(patch_size=8, image_size=IMAGE, initializer_range=0.5, id2label=LABELS, **SIZES)
        ),
        ("classifier",),
    ),
    "resnet": (  # no other linear layer
        lambda: hf.ResNetForImageClassification(
            hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", id2label=LABELS)
        ),
        ("classifier.1",),
    ),
}


LEVIT = {"hidden_sizes": [16, 24, 32], "num_attention_heads": [1] * 3, "depths": [1] * 3, "key_dim": [8] * 3}
OTHER_MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "levit": (  # distilled: two heads
        lambda: hf.LevitForImageClassificationWithTeacher(hf.LevitConfig(**LEVIT, image_size=IMAGE, id2label=LABELS)),
        ("classifier.linear", "classifier_distill.linear"),
    ),
    "gpt2": (lambda: hf.GPT2ForSequenceClassification(hf.GPT2Config(n_inner=48, **common())), ("score",)),
}
"""Whose heads are looked at, and no more."""


def saved(folder: Path, build: Callable[[], nn.Module], reader: Any) -> ModelSource:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = build().eval()
    model.save_pretrained(folder)
    reader.save_pretrained(folder)
    return resolve(str(folder))


def loaded(folder: Path, name: str) -> Classifier:
    is_text = name in TEXT_MODELS
    build, _ = (TEXT_MODELS if is_text else IMAGE_MODELS)[name]
    reader = tokenizer() if is_text else hf.ViTImageProcessorPil(size={"height": IMAGE, "width": IMAGE})
    source = saved(folder, build, reader)
    assert classifier_kind(source)
    return load_classifier(source, device=CPU)


def images(n: int = 3) -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (40 + 3 * i, 50, 3), dtype=np.uint8) for i in range(n)]


def close(first: Any, second: Any) -> bool:
    return np.allclose(first, second, rtol=1e-4, atol=1e-5)
