"""What the zoo's models are made of: settings, modules of its own, what counts as the answer."""

from typing import Any

import transformers as hf
from torch import Tensor, nn
from torch.nn.functional import normalize

Batch = dict[str, Tensor]
VOCABULARY, HIDDEN, WIDTH, HEADS, BLOCKS = 50, 40, 72, 4, 2
IMAGE, PATCH = 16, 8
SPECIAL = ("pad", "bos", "eos")


def mean_of_tokens(model: nn.Module, batch: Batch) -> Tensor:
    mask = batch["attention_mask"].unsqueeze(-1)
    return normalize((model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1))


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
