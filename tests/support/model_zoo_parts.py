"""What the zoo's models are made of: settings, modules of its own, what counts as the answer."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn.functional import normalize, scaled_dot_product_attention

Batch = dict[str, Tensor]
VOCABULARY, HIDDEN, WIDTH, HEADS, BLOCKS = 50, 40, 72, 4, 2
IMAGE, PATCH = 16, 8
SPECIAL = ("pad", "bos", "eos")


def mean_of_tokens(model: nn.Module, batch: Batch) -> Tensor:
    mask = batch["attention_mask"].unsqueeze(-1)
    return normalize((model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1))


def last_token(model: nn.Module, batch: Batch) -> Tensor:
    last = batch["attention_mask"].sum(1) - 1
    hidden: Tensor = model(**batch).last_hidden_state
    return normalize(hidden[torch.arange(len(hidden)), last])


def logits(model: nn.Module, batch: Batch) -> Tensor:
    result: Tensor = model(**batch).logits
    return result


def mean_of_logits(model: nn.Module, batch: Batch) -> Tensor:
    """Over all tokens, padding too, so that every expert that runs has a part in it."""
    return logits(model, batch).mean(dim=1)


def image_by_text(model: nn.Module, batch: Batch) -> Tensor:
    result: Tensor = model(**batch).logits_per_image
    return result


def pooled(model: nn.Module, batch: Batch) -> Tensor:
    result: Tensor = model(**batch).pooler_output
    return result


def called(model: nn.Module, batch: Batch) -> Tensor:
    result: Tensor = model(**batch)
    return result


def common(**more: Any) -> dict[str, Any]:
    """Settings that most configurations of transformers have by these names."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH,
        "num_hidden_layers": BLOCKS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": 32,
        "initializer_range": 0.2,
        **{f"{kind}_token_id": number for number, kind in enumerate(SPECIAL)},
        **more,
    }


def decoder(**more: Any) -> dict[str, Any]:
    return common(num_key_value_heads=2, head_dim=8, **more)


def vision(**more: Any) -> dict[str, Any]:
    settings = common(image_size=IMAGE, patch_size=PATCH, **more)
    of_text = ("vocab_size", "max_position_embeddings", *(f"{k}_token_id" for k in SPECIAL))
    return {key: value for key, value in settings.items() if key not in of_text}


def clip() -> nn.Module:
    text = common(projection_dim=24)
    return hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision(), projection_dim=24))


class TorchEncoder(nn.Module):
    """Token embeddings and torch's own transformer, which fuses whole blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, WIDTH, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, BLOCKS)
        for parameter in self.parameters():  # copies of one layer until now
            nn.init.normal_(parameter, std=0.3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.encoder(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        mask = attention_mask.unsqueeze(-1)
        return (hidden * mask).sum(1) / mask.sum(1)


class FusedAttention(nn.Module):
    """Queries, keys and values of one linear layer, as in timm's vision transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))


class PlainVit(nn.Module):
    """A vision transformer with fused attention and patches cut by a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Sequential(nn.Unfold(PATCH, stride=PATCH), nn.Flatten(2))
        self.patch_proj = nn.Linear(3 * PATCH**2, HIDDEN)
        self.blocks = nn.ModuleList()
        for _ in range(BLOCKS):
            mlp = nn.Sequential(nn.Linear(HIDDEN, WIDTH), nn.GELU(), nn.Linear(WIDTH, HIDDEN))
            norms = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
            self.blocks.append(
                nn.ModuleDict({"norm1": norms[0], "attn": FusedAttention(), "norm2": norms[1], "mlp": mlp})
            )
        self.head = nn.Linear(HIDDEN, 10)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.patch_proj(self.patches(pixel_values).transpose(1, 2))
        for block in self.blocks:
            x = x + block["attn"](block["norm1"](x))
            x = x + block["mlp"](block["norm2"](x))
        return self.head(x.mean(dim=1))
