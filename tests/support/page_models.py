"""Late-interaction models of transformers that read images (ColPali, ColQwen2), tiny and with random weights."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from support.small_clip import WORDS

_IMAGE = ("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>")  # of ColModernVBert
_QWEN = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
_ALL = ("<pad>", "<unk>", "<bos>", "<eos>", *_IMAGE, *_QWEN, *WORDS)
_SIDE = 16
_TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
_TEXT |= {"vocab_size": len(_ALL), "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
_EYES = {"model_type": "siglip_vision_model", "image_size": _SIDE, "patch_size": 8, "vision_use_head": False}
_EYES |= {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_ROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
_QWEN_EYES = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 8, "mlp_ratio": 2}
_QWEN_SIDES = {"shortest_edge": _SIDE**2, "longest_edge": 4 * _SIDE**2}
_QWEN_TOKENS = {f"{name[2:-2].replace('_pad', '')}_token_id": _ALL.index(name) for name in _QWEN}
_QWEN_TEXT = {**_TEXT, "num_key_value_heads": 1, "rope_parameters": _ROPE}
_GEMMA = {**_TEXT, "model_type": "gemma", "num_key_value_heads": 1, "head_dim": 16}
_MODERN = {"image_token_id": _ALL.index("<image>"), "pixel_shuffle_factor": 1}
_MODERN |= {"text_config": {**_TEXT, "model_type": "modernbert", "cls_token_id": 2, "sep_token_id": 3}}
_PARTS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "ColPali": (
        "SiglipImageProcessorPil",
        {"size": {"height": _SIDE, "width": _SIDE}},
        {},
        {"model_type": "paligemma", "projection_dim": 32, "text_config": _GEMMA, "vision_config": _EYES},
    ),
    "ColQwen2": (
        "Qwen2VLImageProcessorPil",
        {"size": _QWEN_SIDES, "patch_size": 8},
        {},
        {"model_type": "qwen2_vl", **_QWEN_TOKENS, "text_config": _QWEN_TEXT, "vision_config": _QWEN_EYES},
    ),
    "ColModernVBert": (
        "Idefics3ImageProcessorPil",
        {"size": {"longest_edge": _SIDE}, "do_image_splitting": False},
        {"image_seq_len": 4},
        {"model_type": "modernvbert", **_MODERN, "vision_config": _EYES},
    ),
}
"""By name: the image processor, its settings and those of the processor; and the settings of what sees and reads."""


def page_model(name: str, folder: Path) -> tuple[Any, Any]:
    """A `...ForRetrieval` and its processor, saved in a folder; token vectors have 8 numbers."""
    pixels, drawn, more, vlm = _PARTS[name]
    core = Tokenizer(models.WordLevel({word: place for place, word in enumerate(_ALL)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    kinds: Any = transformers
    special = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token"), _ALL, strict=False))
    tokens = kinds.PreTrainedTokenizerFast(
        tokenizer_object=core, **special, additional_special_tokens=[*_IMAGE, *_QWEN], model_max_length=64
    )
    images = getattr(kinds, pixels)(**drawn)
    images.image_seq_length = 4
    processor = getattr(kinds, f"{name}Processor")(images, tokens, **more)
    if name == "ColPali":  # its processor adds a thousand tokens of places
        text = {**vlm["text_config"], "vocab_size": len(tokens)}
        vlm = {**vlm, "text_config": text, "vocab_size": len(tokens), "image_token_index": processor.image_token_id}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(kinds, f"{name}ForRetrieval")(getattr(kinds, f"{name}Config")(embedding_dim=8, vlm_config=vlm))
    for saved in (model.eval(), processor):
        saved.save_pretrained(folder)
    return model, processor
