"""Tiny random classifiers of transformers, saved to a folder and loaded from there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn

from quantdrift.engine.encoders.classifier import Classifier, load_classifier
from quantdrift.models.classifier_config import is_classifier
from quantdrift.models.named import ModelSource, resolve

CPU = torch.device("cpu")
LABELS = {0: "sport", 1: "law", 2: "art"}
WORDS = ("the", "a", "court", "ruled", "goal", "scored", "painter", "of", "museum", "match", "red")
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
POSITIONS = 24
IMAGE = 32


def common(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(SPECIAL) + len(WORDS),
        **small(2),
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.5,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "id2label": LABELS,
        **more,
    }


def small(n_layers: int) -> dict[str, int]:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    return {**sizes, "num_hidden_layers": n_layers}


def image_config(**more: Any) -> dict[str, Any]:
    return {"image_size": IMAGE, "initializer_range": 0.5, "id2label": LABELS, **more}


def decoder(**more: Any) -> dict[str, Any]:
    return common(num_key_value_heads=1, head_dim=16, **more)


TEXT_MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "bert": (lambda: hf.BertForSequenceClassification(hf.BertConfig(**common())), ("classifier",)),
    "roberta": (  # two layers in one head
        lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**common())),
        ("classifier.dense", "classifier.out_proj"),
    ),
    "distilbert": (
        lambda: hf.DistilBertForSequenceClassification(
            hf.DistilBertConfig(dim=32, hidden_dim=48, n_layers=2, n_heads=2, **common())
        ),
        ("classifier",),
    ),
    "deberta": (
        lambda: hf.DebertaV2ForSequenceClassification(
            hf.DebertaV2Config(**common(relative_attention=True, pos_att_type=["p2c", "c2p"]))
        ),
        ("classifier",),
    ),
    "modernbert": (
        lambda: hf.ModernBertForSequenceClassification(hf.ModernBertConfig(cls_token_id=1, sep_token_id=2, **common())),
        ("classifier",),
    ),
    "bart": (
        lambda: hf.BartForSequenceClassification(
            hf.BartConfig(
                d_model=32,
                encoder_layers=1,
                decoder_layers=1,
                encoder_ffn_dim=48,
                decoder_ffn_dim=48,
                encoder_attention_heads=2,
                decoder_attention_heads=2,
                decoder_start_token_id=2,
                init_std=0.5,
                **common(),
            )
        ),
        ("classification_head.dense", "classification_head.out_proj"),
    ),
    "llama": (lambda: hf.LlamaForSequenceClassification(hf.LlamaConfig(**decoder())), ("score",)),
    "qwen3": (lambda: hf.Qwen3ForSequenceClassification(hf.Qwen3Config(**decoder())), ("score",)),
}
IMAGE_MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "vit": (
        lambda: hf.ViTForImageClassification(hf.ViTConfig(patch_size=8, **small(2), **image_config())),
        ("classifier",),
    ),
    "convnext": (
        lambda: hf.ConvNextForImageClassification(
            hf.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, **image_config())
        ),
        ("classifier",),
    ),
    "swin": (
        lambda: hf.SwinForImageClassification(
            hf.SwinConfig(embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4, **image_config())
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


OTHER_MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "xlnet": (
        lambda: hf.XLNetForSequenceClassification(
            hf.XLNetConfig(
                vocab_size=len(SPECIAL) + len(WORDS),
                d_model=32,
                n_layer=1,
                n_head=2,
                d_inner=48,
                pad_token_id=0,
                initializer_range=0.5,
                id2label=LABELS,
            )
        ),
        ("logits_proj",),
    ),
    "levit": (  # distilled: two heads
        lambda: hf.LevitForImageClassificationWithTeacher(
            hf.LevitConfig(
                image_size=IMAGE,
                hidden_sizes=[16, 24, 32],
                num_attention_heads=[1, 1, 1],
                depths=[1, 1, 1],
                key_dim=[8, 8, 8],
                id2label=LABELS,
            )
        ),
        ("classifier.linear", "classifier_distill.linear"),
    ),
    "deit": (
        lambda: hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(patch_size=8, **small(1), **image_config())),
        ("cls_classifier", "distillation_classifier"),
    ),
    "gpt2": (lambda: hf.GPT2ForSequenceClassification(hf.GPT2Config(n_inner=48, **common())), ("score",)),
    "wav2vec2": (
        lambda: hf.Wav2Vec2ForSequenceClassification(
            hf.Wav2Vec2Config(
                **small(1),
                conv_dim=[16],
                conv_kernel=[3],
                conv_stride=[2],
                num_conv_pos_embedding_groups=2,
                classifier_proj_size=16,
                id2label=LABELS,
            )
        ),
        ("classifier",),
    ),
}
"""Whose heads are looked at, and no more."""


def tokenizer() -> Any:
    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *WORDS))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=["input_ids", "attention_mask"], **names)


def processor() -> Any:
    return hf.ViTImageProcessorPil(size={"height": IMAGE, "width": IMAGE})


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
    source = saved(folder, build, tokenizer() if is_text else processor())
    assert is_classifier(source)
    return load_classifier(source, device=CPU)


def images(n: int = 3) -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (40 + 3 * i, 50, 3), dtype=np.uint8) for i in range(n)]


def close(one: Any, other: Any) -> bool:
    return np.allclose(one, other, rtol=1e-4, atol=1e-5)
